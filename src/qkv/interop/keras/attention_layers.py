"""Replacements for the Keras layers `Attention` and `AdditiveAttention` that compute attention with qkv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
from keras import ops

from qkv.core.typing import Array, Float, OutputArray, Shaped
from qkv.interop.keras.engine_call import EngineLayer, Weighted
from qkv.masks import AllowedKeys, Causal, Mask
from qkv.masks.base import and_masks
from qkv.scores import Additive, Bilinear, Dot, Score


class _InputListLayer(EngineLayer):
    """Mixin for the Keras layers whose inputs are a list, [query, value] or [query, value, key]."""

    if TYPE_CHECKING:
        dropout: float
        seed_generator: keras.random.SeedGenerator

        def _validate_inputs(
            self, inputs: Sequence[Float[Array, "*batch _ _"]], mask: Sequence[Shaped[Array, "*_ _"] | None] | None
        ) -> None: ...

    def _score(self, query: Float[Array, "*batch q width"]) -> Score:
        raise NotImplementedError

    def call(
        self,
        inputs: Sequence[Float[Array, "*batch _ _"]],
        mask: Sequence[Shaped[Array, "*_ _"] | None] | None = None,
        training: bool = False,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> OutputArray | Weighted:
        """Return the output `(*batch, q, value_width)`, and the weights `(*batch, q, k)` if requested."""
        self._validate_inputs(inputs=inputs, mask=mask)
        query, value = inputs[:2]
        key = inputs[2] if len(inputs) > 2 else value
        query_mask, value_mask = (mask[0], mask[1]) if mask else (None, None)
        allowed = and_masks(
            None if value_mask is None else _key_mask(value_mask, len(query.shape)),
            Causal("start") if use_causal_mask else None,
        )
        dropout = self.dropout if training else 0.0
        seed = self.seed_generator.next() if dropout else None
        output, weights = self.attend(
            query, key, value, self._score(query), allowed, dropout, seed, return_attention_scores
        )
        if query_mask is not None:
            real = ops.expand_dims(ops.cast(query_mask, "bool"), -1)
            output = ops.where(real, output, ops.zeros_like(output))
        return (output, weights) if return_attention_scores else output


@keras.saving.register_keras_serializable(package="qkv")
class Attention(_InputListLayer, keras.layers.Attention):  # type: ignore[misc, name-defined, unused-ignore]
    """Replacement for `keras.layers.Attention` that computes attention with qkv.

    The score is scale · <q, k> in mode "dot", and w Σ tanh(scale · (q + k)) with learned scalars in mode "concat".

    Args:
        args: arguments of `keras.layers.Attention`.
        normalizer: name of a normalizer in `qkv.normalizers`.
        kernel: name of the kernel to run; None lets the planner choose.
        memory: memory limit beyond inputs and output.
        kwargs: arguments of `keras.layers.Attention`.

    Example:
        >>> import numpy as np
        >>> from qkv.interop.keras import Attention
        >>> query, value = np.zeros((1, 1, 2), "float32"), np.array([[[1.0, 1.0], [3.0, 3.0]]], "float32")
        >>> tuple(Attention()([query, value]).shape)  # as keras.layers.Attention
        (1, 1, 2)
    """

    def _score(self, query: Float[Array, "*batch q width"]) -> Score:
        width, dtype = query.shape[-1], query.dtype
        scale = 1.0 if self.scale is None else ops.cast(self.scale, dtype)
        if self.score_mode == "dot":
            return Dot() if self.scale is None else Bilinear(ops.eye(width, dtype=dtype) * scale)
        maps = None if self.scale is None else ops.eye(width, dtype=dtype) * scale
        weight = ops.cast(self.concat_score_weight, dtype)
        return Additive(maps, maps, None, ops.ones((width,), dtype=dtype) * weight)


@keras.saving.register_keras_serializable(package="qkv")
class AdditiveAttention(_InputListLayer, keras.layers.AdditiveAttention):  # type: ignore[misc, name-defined, unused-ignore]
    """Replacement for `keras.layers.AdditiveAttention` that computes attention with qkv.

    It has no projections of query and key.

    The score is Σ scale · tanh(q + k), with a learned vector `scale`.

    Args:
        args: arguments of `keras.layers.AdditiveAttention`.
        normalizer: name of a normalizer in `qkv.normalizers`.
        kernel: name of the kernel to run; None lets the planner choose.
        memory: memory limit beyond inputs and output.
        kwargs: arguments of `keras.layers.AdditiveAttention`.

    Example:
        >>> import numpy as np
        >>> from qkv.interop.keras import AdditiveAttention
        >>> query, value = np.zeros((1, 1, 2), "float32"), np.ones((1, 3, 2), "float32")
        >>> tuple(AdditiveAttention(normalizer="sparsemax")([query, value]).shape)
        (1, 1, 2)
    """

    def _score(self, query: Float[Array, "*batch q width"]) -> Score:
        width, dtype = query.shape[-1], query.dtype
        vector = ops.ones((width,), dtype=dtype) if self.scale is None else ops.cast(self.scale, dtype)
        return Additive(vector=vector)


def _key_mask(mask: Shaped[Array, "*_ k"], rank: int) -> Mask:
    """Return the mask of keys that is equivalent to a Keras mask of values, for inputs with `rank` axes."""
    mask = ops.cast(mask, "bool")
    while len(mask.shape) < rank - 1:
        mask = ops.expand_dims(mask, -2)
    return AllowedKeys(mask)
