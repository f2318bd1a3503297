"""Named shapes of real workloads, shared by tests and benchmarks.

Example:
    >>> from qkv.workloads import WORKLOADS
    >>> WORKLOADS["sentence"].query
    (1, 12, 16, 32)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["WORKLOADS"]

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class _Workload:
    """Shapes of the query, key and value of a real workload, and the application in which they occur.

    Attributes:
        query, key, value: the shapes.
        source: the application with these shapes.
    """

    query: Shape
    key: Shape
    value: Shape
    source: str


def _square(length: int, batch: int, heads: int, source: str) -> _Workload:
    shape = (batch, heads, length, 64)
    return _Workload(shape, shape, shape, source)


WORKLOADS: dict[str, _Workload] = {
    "lookup": _Workload((1, 1), (7, 1), (7, 1), "one query to a table of seven rows"),
    "table": _Workload((100, 2), (20_640, 2), (20_640, 1), "a hundred queries to California housing, by place"),
    "lesson": _Workload((100, 10, 5), (100, 20, 5), (100, 20, 10), "the batch of a textbook's example, one head"),
    "sentence": _Workload(
        (1, 12, 16, 32), (1, 12, 16, 32), (1, 12, 16, 32), "a sentence in a MiniLM layer: 12 heads of width 32"
    ),
    "translate": _Workload((32, 20, 256), (32, 24, 256), (32, 24, 256), "decoder states and encoder states, one head"),
    "grouped": _Workload(
        (1, 8, 4, 512, 64), (1, 8, 1, 512, 64), (1, 8, 1, 512, 64), "grouped queries: four heads share keys and values"
    ),
    "decode": _Workload((8, 8, 1, 64), (8, 8, 2048, 64), (8, 8, 2048, 64), "one new token and a cache of 2,048"),
    "long": _Workload((8192, 64), (8192, 64), (8192, 64), "one head over 8,192 tokens"),
    "search": _Workload((64, 128), (1_000_000, 128), (1_000_000, 128), "64 queries to a million vectors"),
    "one search": _Workload((1, 128), (1_000_000, 128), (1_000_000, 1), "one query to a million numbers"),
    "regression": _Workload(
        (2000, 8), (100_000, 8), (100_000, 1), "kernel regression: 2,000 queries to 100,000 rows of 8 columns"
    ),
    "alignment": _Workload((1, 2048, 64), (1, 2048, 64), (1, 2048, 64), "one head over 2,048 tokens"),
    "book": _Workload((1, 65_536, 64), (1, 65_536, 64), (1, 65_536, 64), "one head over a whole book"),
    **{f"crowd {n}": _square(n, 8, 8, f"64 heads over {n} tokens") for n in (64, 128, 256, 512)},
    **{
        f"{n}k": _square(n * 1024, 1, heads, f"{heads} head{'s' * (heads > 1)} over {n * 1024:,} tokens")
        for n, heads in ((1, 8), (2, 8), (4, 4), (8, 1), (16, 1), (64, 1))
    },
}
