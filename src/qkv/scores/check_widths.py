"""Check that queries and keys have the same width, for scores that compare them feature by feature."""

from __future__ import annotations

from qkv.errors import ShapeError

__all__ = ["check_same_width"]


def check_same_width(score: object, query_width: int, key_width: int) -> None:
    """Raise a `ShapeError` if the widths of query and key differ."""
    if query_width != key_width:
        raise ShapeError(
            f"query and key must have the same width for {type(score).__name__}, got widths {query_width} and "
            f"{key_width}. Project them to the same width with Projected(score, query_weight, key_weight), or use "
            f"Bilinear(weight) with a weight of shape ({query_width}, {key_width})."
        )
