"""JAX's fused attention on GPUs, for scaled dot products."""
