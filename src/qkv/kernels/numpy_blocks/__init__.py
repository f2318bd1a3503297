"""Kernel that computes attention tile by tile in NumPy, forward only, in buffers that are reused for every tile."""
