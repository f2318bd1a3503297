"""Tiles in PyTorch: who works on which, the logits of each, softmax in place, what is read of the weights."""
