"""The dense kernel: the equation on whole arrays, the reference that other kernels are tested against."""
