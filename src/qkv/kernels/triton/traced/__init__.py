"""Programs for GPUs that are generated from the operators of a score, which PyTorch records."""
