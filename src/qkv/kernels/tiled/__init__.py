"""Kernel that computes attention tile by tile in PyTorch, in memory linear in the numbers of queries and keys."""
