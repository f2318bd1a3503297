"""Learned scores: modules whose parameters are the arrays of a score. Import them from `qkv.nn`."""
