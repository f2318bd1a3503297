"""Class `Axes`, which holds the lengths, widths and batch axes of the query, key and value of a call.

Batch axes broadcast without copies. Arrays of text have no width axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.errors import ShapeError


@dataclass(frozen=True)
class Axes:
    """Shapes of the arrays of a call, with the lengths and batch axes that follow from them.

    Query has shape `(*batch, q, query_width)`, key `(*batch, k, key_width)` and value `(*batch, k, value_width)`.

    Attributes:
        query, key, value: shapes of the three arrays.
        batch: batch axes to which the three arrays broadcast.
        q, k: number of queries and number of keys.
        query_width, key_width, value_width: lengths of the last axes.
        text: whether query and key are text, without a width axis.

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
        """Number of batch elements."""
        return int(np.prod(self.batch, dtype=np.int64))

    @property
    def pairs(self) -> int:
        """Number of pairs of a query and a key in all batch elements."""
        return self.batch_size * self.q * self.k

    @property
    def output(self) -> tuple[int, ...]:
        """Shape of the output, `(*batch, q, value_width)`."""
        return (*self.batch, self.q, self.value_width)

    @classmethod
    def of(cls, query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], text: bool = False) -> Axes:
        """Return the `Axes` of a call, computed from the shapes of query, key and value.

        Raises:
            ShapeError: a shape has too few axes or unknown ones, key and value differ in length, or batch axes do not
                broadcast.
        """
        query, key, value = tuple(query), tuple(key), tuple(value)
        core = 1 if text else 2
        expected = {"query": "(*batch, q, width)", "key": "(*batch, k, width)", "value": "(*batch, k, value_width)"}
        if text:
            expected |= {"query": "(*batch, q)", "key": "(*batch, k)"}
        for name, shape, least in (("query", query, core), ("key", key, core), ("value", value, 2)):
            if len(shape) < least:
                remedy = "Add the missing axes, for example with x[:, None] if an array x has one number per row."
                if least == 1:
                    remedy = "Pass an array of texts, even if there is only one."
                raise ShapeError(f"{name} must have shape {expected[name]}, got shape {shape}. {remedy}")
        if None in (*query, *key, *value):
            raise ShapeError(
                f"query, key and value must have known dimensions in tf.function, got {query}, {key} and {value}. "
                "Trace with fixed shapes, or use qkv.interop.keras.MultiHeadAttention, which reads them when it runs."
            )
        k = key[-1] if text else key[-2]
        if value[-2] != k:
            raise ShapeError(
                f"key and value must have the same length, got {k} keys in shape {key} and {value[-2]} values in "
                f"shape {value}. Pass one value per key."
            )
        batch = broadcast_batch(query=query[:-core], key=key[:-core], value=value[:-2])
        q = query[-1] if text else query[-2]
        widths = (1, 1) if text else (query[-1], key[-1])
        return cls(query, key, value, batch, q, k, *widths, value[-1], text)


def broadcast_batch(**shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which the batch axes of several arrays broadcast.

    Args:
        **shapes: batch axes of each array; the argument names are used in the error message.

    Raises:
        ShapeError: the batch axes do not broadcast.

    Example:
        >>> broadcast_batch(query=(2, 1), key=(3,))
        (2, 3)
    """
    first, *others = shapes.values()
    try:
        # np.broadcast_shapes would convert symbolic lengths of torch.export to numbers.
        return first if all(shape == first for shape in others) else _broadcast(first, *others)
    except ValueError:
        *before, last = [f"{name} {shape}" for name, shape in shapes.items()]
        remedy = "Make the lengths of corresponding batch axes equal, or 1."
        query, key = shapes.get("query"), shapes.get("key")
        if query and key and key[-1] and query[-1] % key[-1] == 0:
            remedy += " If consecutive query heads share a head of keys, pass enable_gqa=True."
        raise ShapeError(f"batch axes must broadcast, got {', '.join(before)} and {last}. {remedy}") from None


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    if all(type(n) is int for shape in shapes for n in shape):
        return tuple(np.broadcast_shapes(*shapes))
    out: list[int] = []
    for at in range(1, 1 + max(map(len, shapes))):
        lengths = [shape[-at] for shape in shapes if len(shape) >= at and shape[-at] != 1]
        if any(n != lengths[0] for n in lengths):
            raise ValueError
        out.append(lengths[0] if lengths else 1)
    return tuple(reversed(out))
