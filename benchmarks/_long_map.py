"""One head of 65,536 tokens in a new process: time, peak memory, and time of a tile at every zoom level."""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks._memory import in_fresh_process, status
from benchmarks._race import cpu_seconds

__all__ = ["long_map"]


def long_map(tokens: int, threads: int) -> dict[str, Any]:
    """Measurements of the process: CPU and wall seconds, bytes, planned bytes, and milliseconds of tiles by level."""
    found: dict[str, Any] = in_fresh_process("benchmarks._long_map", [tokens, threads])
    return found


def _measure(tokens: int, threads: int) -> dict[str, Any]:
    import numpy as np
    import torch

    from qkv.look.tiled_map import TILE_SIZE, TiledMap

    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(tokens, 64, generator=generator) for _ in range(2))
    TiledMap.from_arrays(query[:600], key[:600])
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = status("VmRSS")
    began, wall = cpu_seconds(), time.perf_counter()
    long = TiledMap.from_arrays(query, key)
    seconds, wall = cpu_seconds() - began, time.perf_counter() - wall
    growth = status("VmHWM") - before
    # Compare some rows with the equation in float64.
    rows = slice(tokens // 3, tokens // 3 + 4)
    logits = query[rows].double() @ key.double().T / 8
    error = float(abs(long.weights((rows.start, rows.stop), (0, tokens)) - logits.softmax(1).numpy()).max())
    rng, tiles = np.random.default_rng(0), {}
    for level in range(long.levels + 1):
        spots = long.mean_overview.shape[0] / 2 ** (level - long.base) if level >= long.base else tokens / 2**level
        across = max(1, int(np.ceil(spots / TILE_SIZE)))
        found = []
        for y, x in rng.integers(across, size=(9, 2)):
            start = time.process_time()
            long.tile(level, int(y), int(x))
            found.append(1000 * (time.process_time() - start))
        tiles[level] = float(np.median(found))
    needs = TiledMap.required_bytes(tokens, tokens, 64)
    return {
        "seconds": seconds,
        "wall": wall,
        "growth": growth,
        "needs": needs,
        "tiles": tiles,
        "error": error / float(long.max_overview.max()),
    }


if __name__ == "__main__":
    print(json.dumps(_measure(*json.loads(sys.argv[1]))))
