"""Array functions for all supported libraries, axes, positions, tiles, and a dense reference implementation."""
