"""The axes of a call: lengths, widths and batch axes of query, key and value, and whether they fit.

Batch axes broadcast, and a broadcast axis is never copied. Text has no width axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.errors import ShapeError

__all__ = ["Axes"]


@dataclass(frozen=True)
class Axes:
    """Shapes of one call: query `(*batch, q, width)`, key `(*batch, k, width)`, value
    `(*batch, k, value_width)`.

    Example:
        >>> axes = Axes.of((8, 5, 4), (1, 9, 4), (8, 9, 2))
        >>> axes.batch, axes.q, axes.k, axes.value_width
        ((8,), 5, 9, 2)
    """

    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    batch: tuple[int, ...]
    q: int
    k: int
    query_width: int
    key_width: int
    value_width: int
    text: bool = False

    @property
    def batch_size(self) -> int:
        """How many batch elements there are."""
        return int(np.prod(self.batch, dtype=np.int64))

    @property
    def pairs(self) -> int:
        """How many (query, key) pairs there are in all."""
        return self.batch_size * self.q * self.k

    @property
    def output(self) -> tuple[int, ...]:
        """Shape of the output."""
        return (*self.batch, self.q, self.value_width)

    @classmethod
    def of(cls, query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], text: bool = False) -> Axes:
        """Read the axes from three shapes.

        Raises:
            ShapeError: too few axes, lengths of key and value that differ, batch axes that do not broadcast.
        """
        query, key, value = tuple(query), tuple(key), tuple(value)
        core = 1 if text else 2
        said = {
            "query": "(*batch, q, width)",
            "key": "(*batch, k, width)",
            "value": "(*batch, k, value_width)",
        }
        if text:
            said |= {"query": "(*batch, q)", "key": "(*batch, k)"}
        for name, shape, least in (("query", query, core), ("key", key, core), ("value", value, 2)):
            if len(shape) < least:
                hint = " A table column x becomes x[:, None]." if name == "value" else ""
                raise ShapeError(f"{name} has shape {shape}; it must be {said[name]}.{hint}")
        k = key[-1] if text else key[-2]
        if value[-2] != k:
            raise ShapeError(
                f"key has length {k}, value has length {value[-2]} (shapes {key}, {value}). "
                f"Every key needs one value: give both the same length."
            )
        parts = (query[:-core], key[:-core], value[:-2])
        try:
            # NumPy would make a number of a length that is a symbol, as in torch.export.
            batch = parts[0] if parts[0] == parts[1] == parts[2] else _broadcast(*parts)
        except ValueError:
            raise ShapeError(
                f"the batch axes of query {parts[0]}, key {parts[1]} and value {parts[2]} do not broadcast. "
                f"Make them equal, or 1 where one side is shared."
            ) from None
        q = query[-1] if text else query[-2]
        widths = (1, 1) if text else (query[-1], key[-1])
        return cls(query, key, value, batch, q, k, *widths, value[-1], text)


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that these broadcast to.

    Raises:
        ValueError: they do not.
    """
    if all(type(n) is int for shape in shapes for n in shape):
        return tuple(np.broadcast_shapes(*shapes))
    out: list[int] = []
    for at in range(1, 1 + max(map(len, shapes))):
        lengths = [shape[-at] for shape in shapes if len(shape) >= at and shape[-at] != 1]
        if any(n != lengths[0] for n in lengths):
            raise ValueError
        out.append(lengths[0] if lengths else 1)
    return tuple(reversed(out))
