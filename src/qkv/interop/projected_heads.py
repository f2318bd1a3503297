"""Attention over projected heads, which the JAX modules of `interop/flax` and `interop/equinox` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import qkv
from qkv.core.arrays import namespace
from qkv.core.checks import check_integers, check_probability
from qkv.core.map_batch import map_batch
from qkv.core.positions import Positions
from qkv.core.threefry import Seed
from qkv.core.typing import Array, Float, Shaped
from qkv.engine import Observation
from qkv.errors import OptionError, ShapeError
from qkv.masks import Mask
from qkv.masks.base import and_masks
from qkv.normalizers import Normalizer
from qkv.readouts import Readout
from qkv.scores import Score

T = TypeVar("T")


@dataclass(frozen=True)
class HeadShapes:
    """Widths and numbers of heads of a multi-head attention module, and its options that hold no arrays."""

    width: int
    heads: int
    key_width: int
    value_width: int
    head_width: int
    head_value_width: int
    key_heads: int
    dropout: float
    kernel: str | None
    memory: int | str | None

    @classmethod
    def of(
        cls,
        width: int,
        heads: int,
        key_width: int | None,
        value_width: int | None,
        head_width: int | None,
        head_value_width: int | None,
        key_heads: int | None,
        dropout: float,
        kernel: str | None,
        memory: int | str | None,
    ) -> HeadShapes:
        """Return the shapes after checking them, with the defaults of `nn.MultiHeadAttention` in place of None.

        Raises:
            OptionError: a number is not positive, or the heads do not divide the width or the key heads the heads.

        Example:
            >>> HeadShapes.of(16, 4, None, None, None, None, 2, 0.0, None, "1 MiB").head_width
            4
        """
        check_integers(width=width, heads=heads, key_width=key_width, value_width=value_width, key_heads=key_heads)
        check_integers(head_width=head_width, head_value_width=head_value_width)
        check_probability(dropout)
        if head_width is None and width % heads:
            raise OptionError(f"width must be a multiple of heads, got {width} and {heads}. Pass head_width.")
        key_heads = heads if key_heads is None else key_heads
        if heads % key_heads:
            raise OptionError(
                f"heads must be a multiple of key_heads, got {heads} and {key_heads}. Change one of them."
            )
        key_width = width if key_width is None else key_width
        head_width = width // heads if head_width is None else head_width
        return cls(
            width,
            heads,
            key_width,
            key_width if value_width is None else value_width,
            head_width,
            head_width if head_value_width is None else head_value_width,
            key_heads,
            dropout,
            kernel,
            memory,
        )


def attend_heads(
    query: Float[Array, "*#batch q query_heads_width"],
    key: Float[Array, "*#batch k key_heads_width"],
    value: Float[Array, "*#batch k value_heads_width"],
    shapes: HeadShapes,
    *,
    score: Score | None,
    normalizer: Normalizer | None,
    masks: tuple[Mask | None, Mask | None],
    positions: Positions | None,
    dropout: float,
    seed: Seed | None,
    readouts: Sequence[Readout],
) -> Observation:
    """Return the outputs of all heads side by side, `(*batch, q, heads * head_value_width)`, and the readouts."""
    axes = max(query.ndim, key.ndim, value.ndim) - 2
    found = qkv.observe(
        _split(query, shapes.heads),
        _split(key, shapes.key_heads),
        _split(value, shapes.key_heads),
        score=_align(score, axes, True),
        normalizer=_align(normalizer, axes, True),
        mask=_align(and_masks(*masks), axes, False),
        positions=_align(positions, axes, False),
        dropout=dropout,
        seed=seed,
        readouts=readouts,
        kernel=shapes.kernel,
        memory=shapes.memory,
        enable_gqa=shapes.key_heads != shapes.heads,
    )
    xp = namespace(found.output)
    output = xp.moveaxis(found.output, -3, -2)
    return replace(found, output=xp.reshape(output, (*output.shape[:-2], output.shape[-2] * output.shape[-1])))


def check_last_axis(name: str, x: Shaped[Array, "*_"], width: int) -> Shaped[Array, "*_"]:
    """Return `x` if it has at least two axes and its last axis has length `width`."""
    if len(x.shape) < 2 or x.shape[-1] != width:
        raise ShapeError(f"{name} must have shape (*batch, n, {width}), got {tuple(x.shape)}. Reshape or project it.")
    return x


def _split(x: Float[Array, "*batch n heads_width"], heads: int) -> Float[Array, "*batch heads n head_width"]:
    xp = namespace(x)
    split: Array = xp.moveaxis(xp.reshape(x, (*x.shape[:-1], heads, x.shape[-1] // heads)), -2, -3)
    return split


def _align(part: T, batch_axes: int, per_head: bool) -> T:
    """Return a part whose arrays broadcast over the heads, which are the last batch axis of the call.

    Args:
        part: a part, or None.
        batch_axes: number of batch axes of the module's inputs.
        per_head: whether a single batch axis of an array means heads, or else an element of the batch.
    """

    def align(x: Array, own: int) -> Array:
        shape: tuple[int, ...] = tuple(x.shape)
        if own == 1 and (per_head or batch_axes == 0):
            shape = (1,) * batch_axes + shape
        elif own and own == batch_axes:
            shape = (*shape[:own], 1, *shape[own:])
        aligned: Array = namespace(x).reshape(x, shape)
        return aligned

    return map_batch(part, align)
