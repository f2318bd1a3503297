"""Kernel for attention over keys and values that are stored in several arrays, as in a key-value cache."""
