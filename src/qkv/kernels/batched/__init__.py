"""Kernel that computes all pairs of short sequences at once."""
