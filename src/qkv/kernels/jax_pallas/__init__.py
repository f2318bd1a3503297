"""Additive scores in JAX on accelerators, by programs written in Pallas."""
