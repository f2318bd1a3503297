"""Infrastructure that kernels share: worker threads, buffers, tile sizes, the cost model and the tile loop."""
