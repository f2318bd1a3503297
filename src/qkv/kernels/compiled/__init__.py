"""A whole call as one operator that torch.compile does not look into."""
