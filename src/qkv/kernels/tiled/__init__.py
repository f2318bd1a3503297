"""The tiled kernel: PyTorch, forward and backward tile by tile, in memory linear in the sequence lengths."""
