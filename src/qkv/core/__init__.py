"""Array functions for every library, axes, positions, tiles and the dense reference implementation of attention."""
