"""Keras' `Attention` and `AdditiveAttention`: their conventions, on the engine."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from qkv.interop.keras.engine_call import EngineOptions, and_masks, attend, next_seed
from qkv.masks import Causal, Keys, Mask
from qkv.scores import Additive, Bilinear, Dot, Score

__all__ = ["AdditiveAttention", "Attention"]


class _Engine:
    """What both layers do once Keras has called them."""

    def call(
        self,
        inputs: list[Any],
        mask: list[Any] | None = None,
        training: bool = False,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> Any:
        """Output `(*batch, q, value_width)`; with the weights `(*batch, q, k)` where they are wanted."""
        layer: Any = self
        layer._validate_inputs(inputs=inputs, mask=mask)
        query, value = inputs[:2]
        key = inputs[2] if len(inputs) > 2 else value
        query_mask, value_mask = (mask[0], mask[1]) if mask else (None, None)
        allowed: Mask | None = Causal("start") if use_causal_mask else None
        if value_mask is not None:
            allowed = and_masks(_keys(value_mask, len(query.shape)), allowed)
        drops = bool(training) and layer.dropout > 0
        output, scores = attend(
            query,
            key,
            value,
            layer._score(query),
            allowed,
            layer.engine,
            layer.dropout if drops else 0.0,
            next_seed(layer.seed_generator) if drops else None,
            return_attention_scores,
        )
        if query_mask is not None:
            kept = ops.expand_dims(ops.cast(query_mask, "bool"), -1)
            output = ops.where(kept, output, ops.zeros_like(output))
        return (output, scores) if return_attention_scores else output

    def get_config(self) -> dict[str, Any]:
        """Keras' configuration, and the engine's options."""
        layer: Any = self
        return {**super().get_config(), **layer.engine.config()}  # type: ignore[misc]


@keras.saving.register_keras_serializable(package="qkv")
class Attention(_Engine, keras.layers.Attention):  # type: ignore[misc, name-defined, unused-ignore]
    """Luong's attention, as `keras.layers.Attention`.

    "dot": scale · <q, k>; "concat": w Σ tanh(scale · (q + k)), with learned scalars.

    Args:
        use_scale, score_mode, dropout, seed: as in Keras.
        normalizer, kernel, memory: of the engine; see `calls.Options`.
        kwargs: as every Keras layer has.
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

    def _score(self, query: Any) -> Score:
        width, dtype = query.shape[-1], query.dtype
        scale = 1.0 if self.scale is None else ops.cast(self.scale, dtype)
        if self.score_mode == "dot":
            return Dot() if self.scale is None else Bilinear(ops.eye(width, dtype=dtype) * scale)
        maps = ops.eye(width, dtype=dtype) * scale
        weight = ops.cast(self.concat_score_weight, dtype)
        return Additive(maps, maps, None, ops.ones((width,), dtype=dtype) * weight)


@keras.saving.register_keras_serializable(package="qkv")
class AdditiveAttention(_Engine, keras.layers.AdditiveAttention):  # type: ignore[misc, name-defined, unused-ignore]
    """Bahdanau's attention without its maps, as `keras.layers.AdditiveAttention`: Σ scale · tanh(q + k).

    Args:
        use_scale, dropout: as in Keras.
        normalizer, kernel, memory: of the engine; see `calls.Options`.
        kwargs: as every Keras layer has.
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

    def _score(self, query: Any) -> Score:
        width, dtype = query.shape[-1], query.dtype
        maps = ops.eye(width, dtype=dtype)
        vector = ops.ones((width,), dtype=dtype) if self.scale is None else ops.cast(self.scale, dtype)
        return Additive(maps, maps, None, vector)


def _keys(mask: Any, rank: int) -> Mask:
    """Keras' mask of values, `(batch, k)`, before inputs of this rank."""
    mask = ops.cast(mask, "bool")
    while len(mask.shape) < rank - 1:
        mask = ops.expand_dims(mask, -2)
    return Keys(mask)
