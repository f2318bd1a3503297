"""Softmax in NumPy, in one pass over the keys."""
