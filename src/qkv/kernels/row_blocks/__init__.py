"""Kernel that computes row blocks in PyTorch, for readouts and for normalizers that need all logits of a row."""
