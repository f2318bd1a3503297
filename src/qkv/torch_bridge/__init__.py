"""Bridge to `torch.compile`, `torch.export` and `torch.func`: a call is one operator or function."""
