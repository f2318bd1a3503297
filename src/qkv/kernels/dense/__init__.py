"""Kernel that computes all logits at once as one array, the reference for tests of the other kernels."""
