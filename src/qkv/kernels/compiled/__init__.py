"""Support for `torch.compile`, as one opaque custom operator per call, and for `torch.export`."""
