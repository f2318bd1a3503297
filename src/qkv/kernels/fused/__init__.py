"""The fused kernel: PyTorch's fused attention, for softmax over scores that are inner products."""
