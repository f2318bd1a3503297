"""Ways to compute the logits of a tile and their gradients in PyTorch: one file per class of scores."""
