"""Support for `torch.compile`, where each call is one opaque custom operator, and for `torch.export`."""
