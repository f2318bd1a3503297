"""The JAX kernel: compiled loops over tiles and row blocks, in memory linear in the sequence lengths."""
