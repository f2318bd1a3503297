"""Kernel that calls PyTorch's fused attention, for softmax over scores that are inner products of lifted vectors."""
