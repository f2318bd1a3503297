"""The row-block kernel: PyTorch, whole rows of logits of some queries at a time, for sparse normalizers and top-k."""
