"""The NumPy kernel: a forward pass tile by tile, with reused buffers."""
