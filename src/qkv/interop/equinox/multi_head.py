"""Equinox module for multi-head attention with projections and any score, normalizer and mask."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp

from qkv.core.positions import Positions
from qkv.core.typing import Array, DType, Float, ValueArray
from qkv.engine import Observation
from qkv.errors import OptionError
from qkv.interop.projected_heads import HeadShapes, attend_heads
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.readouts import Readout
from qkv.scores import Score


class MultiHeadAttention(eqx.Module):  # type: ignore[misc, unused-ignore]
    """Multi-head attention with projections and any score, normalizer and mask.

        head_h = attend(query W_Q_h, key W_K_h, value W_V_h)          output = Σ_h head_h W_O_h

    Score, normalizer and mask are fields of the module, so that their floating-point arrays are trained with it.
    Projections are initialized uniformly as in Glorot and Bengio (2010), biases with 0, as in
    `qkv.nn.MultiHeadAttention`. Unlike layers of Equinox, the module also takes inputs with batch axes.

    Args:
        width: width of the query and of the output.
        heads: number of heads.
        key_width: width of the key input; None means `width`.
        value_width: width of the value input; None means `key_width`.
        head_width: width of a head's projected query and key; None means `width / heads`.
        head_value_width: width of a head's projected value; None means `head_width`.
        key_heads: number of key and value heads; each serves `heads / key_heads` consecutive query heads.
        bias: whether the projections have a bias.
        dropout: probability of dropping a weight during training, until `eqx.nn.inference_mode`.
        score: score, whose arrays have no batch axes or one per head. None: `ScaledDot()`.
        normalizer: as in `qkv.attend`, with arrays like those of the score.
        mask: as in `qkv.attend`.
        kernel: as in `qkv.attend`.
        memory: as in `qkv.attend`.
        dtype: dtype of the parameters.
        key: random key of the parameters.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, key_width)`, value `(*batch, k, value_width)` ->
        `(*batch, q, width)`. Masks and readouts have shape `(*batch, heads, q, k)`.

    Raises:
        OptionError: heads do not divide the widths, or an option is not allowed.

    Example:
        >>> from qkv import masks, scores
        >>> attention = MultiHeadAttention(16, 4, score=scores.Cosine(), mask=masks.Causal(), key=jax.random.key(0))
        >>> attention(jnp.ones((2, 5, 16))).shape
        (2, 5, 16)
    """

    query_map: eqx.nn.Linear
    key_map: eqx.nn.Linear
    value_map: eqx.nn.Linear
    output_map: eqx.nn.Linear
    score: Score | None
    normalizer: Normalizer | None
    mask: Mask | None
    shapes: HeadShapes = eqx.field(static=True)
    inference: bool

    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        key_width: int | None = None,
        value_width: int | None = None,
        head_width: int | None = None,
        head_value_width: int | None = None,
        key_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        score: Score | None = None,
        normalizer: Normalizer | None = None,
        mask: Mask | None = None,
        kernel: str | None = None,
        memory: int | str | None = None,
        dtype: DType = jnp.float32,
        key: Array,
    ) -> None:
        widths = key_width, value_width, head_width, head_value_width, key_heads
        shapes = HeadShapes.of(width, heads, *widths, dropout=dropout, kernel=kernel, memory=memory)
        self.shapes, self.inference = shapes, False
        keys = jax.random.split(key, 4)
        self.query_map = _linear(width, heads * shapes.head_width, bias, dtype, keys[0])
        self.key_map = _linear(shapes.key_width, shapes.key_heads * shapes.head_width, bias, dtype, keys[1])
        self.value_map = _linear(shapes.value_width, shapes.key_heads * shapes.head_value_width, bias, dtype, keys[2])
        self.output_map = _linear(heads * shapes.head_value_width, width, bias, dtype, keys[3])
        self.score = None if score is None else score.map_arrays(jnp.asarray)
        self.normalizer = None if normalizer is None else normalizer.map_arrays(jnp.asarray)
        self.mask = None if mask is None else mask.map_arrays(jnp.asarray)

    def __call__(
        self,
        query: Float[Array, "*#batch q width"],
        key_input: Float[Array, "*#batch k key_width"] | None = None,
        value: ValueArray | None = None,
        *,
        mask: Mask | None = None,
        positions: Positions | None = None,
        readouts: Sequence[Readout] | None = None,
        key: Array | None = None,
        inference: bool | None = None,
    ) -> Float[Array, "*batch q width"] | Observation:
        """Return the attention output, or an `Observation` of output, readouts and plan if readouts are requested.

        Args:
            query: query input.
            key_input: key input; None means the query.
            value: value input; None means the key input.
            mask: further mask, combined with the module's own. Its batch axes are `(*batch)`, the same for all
                heads, or `(*batch, heads)`.
            positions: positions of the queries among the keys, as in `qkv.attend`.
            readouts: quantities to read from the weights. The output does not change.
            key: random key of dropout and of random normalizers, required in training with them.
            inference: whether no weight is dropped; None means the field, which `eqx.nn.inference_mode` sets.

        Raises:
            ShapeError: a width is not that of the module.
            OptionError: a random key is required, and missing.
        """
        normalizer = self.normalizer
        dropout = 0.0 if (self.inference if inference is None else inference) else self.shapes.dropout
        seed = None
        if dropout or (normalizer is not None and normalizer.stochastic):
            if key is None:
                raise OptionError(
                    "key must be a random key of JAX in training with dropout or sampling, got None. Pass "
                    "key=jax.random.key(step), or call equinox.nn.inference_mode(module)."
                )
            seed = jax.random.bits(key, (2,), jnp.uint32)
        query_map, key_map, value_map, output_map = (
            partial(_project, layer) for layer in (self.query_map, self.key_map, self.value_map, self.output_map)
        )
        return attend_heads(
            query,
            key_input,
            value,
            (query_map, key_map, value_map, output_map),
            self.shapes,
            score=self.score,
            normalizer=normalizer,
            masks=(self.mask, mask),
            positions=positions,
            dropout=dropout,
            seed=seed,
            readouts=readouts,
            key_name="key_input",
        )


def _linear(inputs: int, outputs: int, bias: bool, dtype: DType, key: Array) -> eqx.nn.Linear:
    layer = eqx.nn.Linear(inputs, outputs, use_bias=bias, dtype=dtype, key=key)
    weight = jax.nn.initializers.glorot_uniform(in_axis=1, out_axis=0)(key, layer.weight.shape, dtype)
    layer = eqx.tree_at(lambda of: of.weight, layer, weight)
    return eqx.tree_at(lambda of: of.bias, layer, jnp.zeros(outputs, dtype)) if bias else layer


def _project(layer: eqx.nn.Linear, x: Float[Array, "*batch n width"]) -> Float[Array, "*batch n outputs"]:
    """Return the projection of each vector; layers of Equinox take a single one."""
    projected: Array = x @ layer.weight.T
    return projected if layer.bias is None else projected + layer.bias
