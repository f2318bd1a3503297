"""`Attention` and `AdditiveAttention` of Keras, computed by the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from qkv.core.typing import Array, Bool
from qkv.interop.keras.engine_call import EngineOptions, and_masks, attend, next_seed
from qkv.masks import Causal, Keys, Mask
from qkv.scores import Additive, Bilinear, Dot, Score

__all__ = ["AdditiveAttention", "Attention"]


class _EngineLayer:
    """The call that both layers share; a mixin before a layer of Keras."""

    engine: EngineOptions

    if TYPE_CHECKING:
        dropout: float
        seed_generator: keras.random.SeedGenerator

        def _validate_inputs(self, inputs: Sequence[Array], mask: Sequence[Array | None] | None) -> None: ...

    def _score(self, query: Array) -> Score:
        raise NotImplementedError

    def call(
        self,
        inputs: Sequence[Array],
        mask: Sequence[Array | None] | None = None,
        training: bool = False,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> Array | tuple[Array, Array | None]:
        """Return the output `(*batch, q, value_width)`, and the weights `(*batch, q, k)` if requested."""
        self._validate_inputs(inputs=inputs, mask=mask)
        query, value = inputs[:2]
        key = inputs[2] if len(inputs) > 2 else value
        query_mask, value_mask = (mask[0], mask[1]) if mask else (None, None)
        allowed: Mask | None = Causal("start") if use_causal_mask else None
        if value_mask is not None:
            allowed = and_masks(_key_mask(value_mask, len(query.shape)), allowed)
        drop = bool(training) and self.dropout > 0
        output, weights = attend(
            query,
            key,
            value,
            self._score(query),
            allowed,
            self.engine,
            self.dropout if drop else 0.0,
            next_seed(self.seed_generator) if drop else None,
            return_attention_scores,
        )
        if query_mask is not None:
            real = ops.expand_dims(ops.cast(query_mask, "bool"), -1)
            output = ops.where(real, output, ops.zeros_like(output))
        return (output, weights) if return_attention_scores else output

    def get_config(self) -> dict[str, Any]:
        """Return the configuration of the layer: that of Keras and the options of the engine."""
        return {**super().get_config(), **self.engine.config()}  # type: ignore[misc]


@keras.saving.register_keras_serializable(package="qkv")
class Attention(_EngineLayer, keras.layers.Attention):  # type: ignore[misc, name-defined, unused-ignore]
    """Luong's attention, as `keras.layers.Attention`.

    The score is scale · <q, k> in mode "dot", and w Σ tanh(scale · (q + k)) with learned scalars in mode "concat".

    Args:
        use_scale: as in Keras.
        score_mode: as in Keras, "dot" or "concat".
        dropout: as in Keras.
        seed: as in Keras.
        normalizer: name of a normalizer in `qkv.normalizers`.
        kernel: name of the kernel to run; None lets the planner choose.
        memory: memory limit beyond inputs and output.
        kwargs: arguments of every Keras layer.
    """

    def __init__(
        self,
        use_scale: bool = False,
        score_mode: str = "dot",
        dropout: float = 0.0,
        seed: int | None = None,
        normalizer: str = "softmax",
        kernel: str | None = None,
        memory: int | str = "4 GiB",
        **kwargs: Any,
    ) -> None:
        super().__init__(use_scale=use_scale, score_mode=score_mode, dropout=dropout, seed=seed, **kwargs)
        self.engine = EngineOptions(normalizer, kernel, memory)

    def _score(self, query: Array) -> Score:
        width, dtype = query.shape[-1], query.dtype
        scale = 1.0 if self.scale is None else ops.cast(self.scale, dtype)
        if self.score_mode == "dot":
            return Dot() if self.scale is None else Bilinear(ops.eye(width, dtype=dtype) * scale)
        maps = ops.eye(width, dtype=dtype) * scale
        weight = ops.cast(self.concat_score_weight, dtype)
        return Additive(maps, maps, None, ops.ones((width,), dtype=dtype) * weight)


@keras.saving.register_keras_serializable(package="qkv")
class AdditiveAttention(_EngineLayer, keras.layers.AdditiveAttention):  # type: ignore[misc, name-defined, unused-ignore]
    """Bahdanau's attention without projections, Σ scale · tanh(q + k), as `keras.layers.AdditiveAttention`.

    Args:
        use_scale: as in Keras.
        dropout: as in Keras.
        normalizer: name of a normalizer in `qkv.normalizers`.
        kernel: name of the kernel to run; None lets the planner choose.
        memory: memory limit beyond inputs and output.
        kwargs: arguments of every Keras layer.
    """

    def __init__(
        self,
        use_scale: bool = True,
        dropout: float = 0.0,
        normalizer: str = "softmax",
        kernel: str | None = None,
        memory: int | str = "4 GiB",
        **kwargs: Any,
    ) -> None:
        super().__init__(use_scale=use_scale, dropout=dropout, **kwargs)
        self.engine = EngineOptions(normalizer, kernel, memory)

    def _score(self, query: Array) -> Score:
        width, dtype = query.shape[-1], query.dtype
        maps = ops.eye(width, dtype=dtype)
        vector = ops.ones((width,), dtype=dtype) if self.scale is None else ops.cast(self.scale, dtype)
        return Additive(maps, maps, None, vector)


def _key_mask(mask: Bool[Array, "batch k"], rank: int) -> Mask:
    """Return Keras' mask of values as a mask of keys for inputs of this rank."""
    mask = ops.cast(mask, "bool")
    while len(mask.shape) < rank - 1:
        mask = ops.expand_dims(mask, -2)
    return Keys(mask)
