"""Flax NNX module for multi-head attention with projections and any score, normalizer and mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
from flax import nnx

from qkv.core.parts import Part
from qkv.core.positions import Positions
from qkv.core.typing import Array, DType, Float, ValueArray
from qkv.engine import Observation
from qkv.interop.projected_heads import HeadShapes, attend_heads
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.readouts import Readout
from qkv.scores import Score

AnyPart = TypeVar("AnyPart", bound=Part)


class MultiHeadAttention(nnx.Module):  # type: ignore[misc, unused-ignore]
    """Multi-head attention with projections and any score, normalizer and mask.

        head_h = attend(query W_Q_h, key W_K_h, value W_V_h)          output = Σ_h head_h W_O_h

    The arrays of score and normalizer are parameters (`nnx.Param`); the arrays of the mask are not. Projections are
    initialized uniformly as in Glorot and Bengio (2010), biases with 0, as in `qkv.nn.MultiHeadAttention`.

    Args:
        width: width of the query and of the output.
        heads: number of heads.
        key_width: width of the key input; None means `width`.
        value_width: width of the value input; None means `key_width`.
        head_width: width of a head's projected query and key; None means `width / heads`.
        head_value_width: width of a head's projected value; None means `head_width`.
        key_heads: number of key and value heads; each serves `heads / key_heads` consecutive query heads.
        bias: whether the projections have a bias.
        dropout: probability of dropping a weight during training, until `module.eval()`.
        score: score, whose arrays have no batch axes or one per head. None: `ScaledDot()`.
        normalizer: as in `qkv.attend`, with arrays like those of the score.
        mask: as in `qkv.attend`.
        kernel: as in `qkv.attend`.
        memory: as in `qkv.attend`.
        dtype: dtype of the parameters.
        rngs: random keys of the parameters, and of dropout.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, key_width)`, value `(*batch, k, value_width)` ->
        `(*batch, q, width)`. Masks and readouts have shape `(*batch, heads, q, k)`.

    Raises:
        OptionError: heads do not divide the widths, or an option is not allowed.

    Example:
        >>> from qkv import masks, scores
        >>> attention = MultiHeadAttention(16, 4, score=scores.Cosine(), mask=masks.Causal(), rngs=nnx.Rngs(0))
        >>> attention(jnp.ones((2, 5, 16))).shape
        (2, 5, 16)
    """

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
        rngs: nnx.Rngs,
    ) -> None:
        widths = key_width, value_width, head_width, head_value_width, key_heads
        shapes = HeadShapes.of(width, heads, *widths, dropout=dropout, kernel=kernel, memory=memory)
        self.shapes = shapes

        def linear(inputs: int, outputs: int) -> nnx.Linear:
            initial = nnx.initializers.xavier_uniform()
            return nnx.Linear(inputs, outputs, use_bias=bias, kernel_init=initial, param_dtype=dtype, rngs=rngs)

        self.query_map = linear(width, heads * shapes.head_width)
        self.key_map = linear(shapes.key_width, shapes.key_heads * shapes.head_width)
        self.value_map = linear(shapes.value_width, shapes.key_heads * shapes.head_value_width)
        self.output_map = linear(heads * shapes.head_value_width, width)
        self.score = _hold(score, nnx.Param)
        self.normalizer = _hold(normalizer, nnx.Param)
        self.mask = _hold(mask, nnx.Variable)
        self.deterministic = False
        self.rngs = rngs.dropout.fork() if dropout or (normalizer is not None and normalizer.stochastic) else None

    def __call__(
        self,
        query: Float[Array, "*#batch q width"],
        key: Float[Array, "*#batch k key_width"] | None = None,
        value: ValueArray | None = None,
        *,
        mask: Mask | None = None,
        positions: Positions | None = None,
        readouts: Sequence[Readout] | None = None,
        deterministic: bool | None = None,
    ) -> Float[Array, "*batch q width"] | Observation:
        """Return the attention output, or an `Observation` of output, readouts and plan if readouts are requested.

        Args:
            query: query input.
            key: key input; None means the query.
            value: value input; None means the key.
            mask: further mask, combined with the module's own. Its batch axes are `(*batch)`, the same for all
                heads, or `(*batch, heads)`.
            positions: positions of the queries among the keys, as in `qkv.attend`.
            readouts: quantities to read from the weights. The output does not change.
            deterministic: whether no weight is dropped; None means the attribute, which `train()` and `eval()` set.

        Raises:
            ShapeError: a width is not that of the module.
        """
        normalizer = _part(self.normalizer)
        dropout = 0.0 if (self.deterministic if deterministic is None else deterministic) else self.shapes.dropout
        seed = None
        if self.rngs is not None and (dropout or (normalizer is not None and normalizer.stochastic)):
            seed = jax.random.bits(self.rngs(), (2,), jnp.uint32)
        return attend_heads(
            query,
            key,
            value,
            (self.query_map, self.key_map, self.value_map, self.output_map),
            self.shapes,
            score=_part(self.score),
            normalizer=normalizer,
            masks=(_part(self.mask), mask),
            positions=positions,
            dropout=dropout,
            seed=seed,
            readouts=readouts,
        )


def _hold(part: AnyPart | None, kind: type[nnx.Variable[AnyPart]]) -> AnyPart | nnx.Variable[AnyPart] | None:
    """Return a part in a variable of NNX if it holds arrays, which are converted to JAX arrays, or else itself."""
    if part is None or not part.arrays():
        return part
    return kind(part.map_arrays(jnp.asarray))


def _part(part: AnyPart | nnx.Variable[AnyPart] | None) -> AnyPart | None:
    return cast("AnyPart", part.get_value() if isinstance(part, nnx.Variable) else part)
