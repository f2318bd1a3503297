"""The dense kernel: attention computed on whole arrays, the reference that other kernels are tested against."""
