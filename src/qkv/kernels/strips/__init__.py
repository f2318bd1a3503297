"""Strips in PyTorch: some queries with their whole rows; only the keys that can get weight are looked at."""
