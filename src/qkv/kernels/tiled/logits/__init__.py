"""Implementations of the logits of a tile and their gradients in PyTorch, one module for each class of scores."""
