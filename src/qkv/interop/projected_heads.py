"""Attention over projected heads, which the JAX modules of `interop/flax` and `interop/equinox` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import qkv
from qkv.core.arrays import namespace
from qkv.core.checks import check_probability
from qkv.core.head_widths import HeadWidths
from qkv.core.map_batch import align_batch
from qkv.core.positions import Positions
from qkv.core.threefry import Seed
from qkv.core.typing import Array, Float, ValueArray
from qkv.engine import Observation
from qkv.errors import ShapeError
from qkv.masks import Mask
from qkv.masks.base import and_masks
from qkv.normalizers import Normalizer
from qkv.readouts import Readout
from qkv.scores import Score

Project = Callable[[Array], Array]
"""Function that returns the projection of each vector `(*batch, n, width)`."""


@dataclass(frozen=True)
class HeadShapes(HeadWidths):
    """Widths and numbers of heads of a multi-head attention module, and its options that hold no arrays."""

    dropout: float
    kernel: str | None
    memory: int | str | None

    def __post_init__(self) -> None:
        check_probability(self.dropout)


def attend_heads(
    query: Float[Array, "*#batch q width"],
    key: Float[Array, "*#batch k key_width"] | None,
    value: ValueArray | None,
    maps: tuple[Project, Project, Project, Project],
    shapes: HeadShapes,
    *,
    score: Score | None,
    normalizer: Normalizer | None,
    masks: tuple[Mask | None, Mask | None],
    positions: Positions | None,
    dropout: float,
    seed: Seed | None,
    readouts: Sequence[Readout] | None,
    key_name: str = "key",
) -> Float[Array, "*batch q width"] | Observation:
    """Return the output of a module, or an `Observation` of output, readouts and plan if readouts are not None.

    Args:
        query: query input.
        key: key input; None means the query.
        value: value input; None means the key.
        maps: projections of query, key, value and output.
        shapes: widths and numbers of heads.
        score: score of the module.
        normalizer: normalizer of the module.
        masks: mask of the module, and mask of the call.
        positions: positions of the call.
        dropout: probability of dropping a weight.
        seed: random key of dropout and of random normalizers.
        readouts: quantities to read from the weights.
        key_name: name of the key input in error messages.
    """
    key = query if key is None else key
    value = key if value is None else value
    inputs = (
        ("query", query, shapes.width, shapes.heads),
        (key_name, key, shapes.key_width, shapes.key_heads),
        ("value", value, shapes.value_width, shapes.key_heads),
    )
    sides = []
    for (name, x, width, heads), project in zip(inputs, maps[:3], strict=True):
        if len(x.shape) < 2 or x.shape[-1] != width:
            raise ShapeError(
                f"{name} must have shape (*batch, n, {width}), got {tuple(x.shape)}. Reshape or project it."
            )
        sides.append(_split(project(x), heads))
    axes = max(x.ndim for x in sides) - 3
    found = qkv.observe(
        sides[0],
        sides[1],
        sides[2],
        score=align_batch(score, axes, None, True),
        normalizer=align_batch(normalizer, axes, None, True),
        mask=align_batch(and_masks(*masks), axes, None, False),
        positions=align_batch(positions, axes, None, False),
        dropout=dropout,
        seed=seed,
        readouts=readouts or (),
        kernel=shapes.kernel,
        memory=shapes.memory,
        enable_gqa=shapes.key_heads != shapes.heads,
    )
    xp = namespace(found.output)
    output = xp.moveaxis(found.output, -3, -2)
    output = maps[3](xp.reshape(output, (*output.shape[:-2], output.shape[-2] * output.shape[-1])))
    return output if readouts is None else replace(found, output=output)


def _split(x: Float[Array, "*batch n heads_width"], heads: int) -> Float[Array, "*batch heads n head_width"]:
    xp = namespace(x)
    split: Array = xp.moveaxis(xp.reshape(x, (*x.shape[:-1], heads, x.shape[-1] // heads)), -2, -3)
    return split
