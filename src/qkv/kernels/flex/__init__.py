"""Kernel that calls PyTorch's FlexAttention, for modified inner products and masks on GPUs."""
