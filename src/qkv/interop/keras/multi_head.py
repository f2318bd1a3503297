"""Replacement for the Keras layer `MultiHeadAttention` that computes attention with qkv."""

from __future__ import annotations

import math

import keras
from keras import ops

from qkv.core.typing import Array, Float, Shaped
from qkv.interop.keras.engine_call import EngineLayer
from qkv.masks import AllowedKeys, AllowedPairs, Causal, Mask, Window
from qkv.masks.base import and_masks
from qkv.scores import ScaledDot


@keras.saving.register_keras_serializable(package="qkv")
class MultiHeadAttention(EngineLayer, keras.layers.MultiHeadAttention):  # type: ignore[misc, name-defined, unused-ignore]
    """Replacement for `keras.layers.MultiHeadAttention` that computes attention with qkv.

    Causal masks and windows are not allocated as arrays. A masked query, or a query without any allowed key, gets the
    bias of the output projection as output.

    Args:
        args: arguments of `keras.layers.MultiHeadAttention`.
        normalizer: name of a normalizer in `qkv.normalizers`.
        kernel: name of the kernel to run; None lets the planner choose.
        memory: memory limit beyond inputs and output.
        kwargs: arguments of `keras.layers.MultiHeadAttention`.

    Example:
        >>> import numpy as np
        >>> from qkv.interop.keras import MultiHeadAttention
        >>> x = np.ones((1, 5, 8), "float32")
        >>> tuple(MultiHeadAttention(num_heads=2, key_dim=4)(x, x, use_causal_mask=True).shape)
        (1, 5, 8)
    """

    _sliding_window: int | None

    def _compute_attention_mask(
        self,
        query: Float[Array, "batch *q_axes width"],
        value: Float[Array, "batch *k_axes value_width"],
        query_mask: Shaped[Array, "*_"] | None = None,
        value_mask: Shaped[Array, "*_"] | None = None,
        key_mask: Shaped[Array, "*_"] | None = None,
        attention_mask: Shaped[Array, "*_"] | None = None,
        use_causal_mask: bool = False,
    ) -> Mask | None:
        """Return one mask of qkv that combines all masks of Keras, or None if there are none.

        `query` and `value` are not projected yet. Causal masks and windows count tokens along the axes of attention,
        several axes in row-major order; Keras counts along axis 1, whatever the axes of attention are.
        """
        rank = len(query.shape) + 1
        mask = self._pair_mask(attention_mask, rank)
        if query_mask is not None:
            mask = and_masks(mask, AllowedPairs(ops.expand_dims(self._token_mask(query_mask, rank), -1)))
        for key_or_value in (value_mask, key_mask):
            if key_or_value is not None:
                mask = and_masks(mask, AllowedKeys(self._token_mask(key_or_value, rank)))
        if use_causal_mask:
            mask = and_masks(mask, Causal("start"))
        window = getattr(self, "_sliding_window", None)  # Keras before 3.15 has no windows
        return mask if window is None else and_masks(mask, Window(window - 1, window - 1))

    def _token_mask(self, mask: Shaped[Array, "*_"], rank: int) -> Shaped[Array, "*_"]:
        """Return the boolean mask of Keras of the tokens of an input, for projected queries with `rank` axes."""
        if len(mask.shape) == rank - 2:
            mask = ops.transpose(mask, [n for n in self._order(rank) if n < rank - 2])
        return self._merged(mask, rank, 1)

    def _pair_mask(self, mask: Shaped[Array, "*_"] | None, rank: int) -> Mask | None:
        """Return the mask of pairs for a boolean mask of Keras and projected queries with `rank` axes."""
        return None if mask is None else AllowedPairs(self._merged(mask, rank, 2))

    def _merged(self, mask: Shaped[Array, "*_"], rank: int, sides: int) -> Shaped[Array, "*_"]:
        """Return a mask with all batch axes of the projected queries, and one axis for the axes of attention of a side.

        Its last axes are those of attention, once for the queries and once for the keys if `sides` is 2.
        """
        mask, count = ops.cast(mask, "bool"), len(self._attention_axes)
        own = sides * count
        while len(mask.shape) < rank - 1 - count + own:
            # Keras inserts missing axes before the axes of attention.
            mask = ops.expand_dims(mask, -own - 1) if len(mask.shape) >= own else mask[None]
        if count > 1:
            lengths = ops.shape(mask)
            lead, last = lengths[: len(lengths) - own], lengths[len(lengths) - own :]
            mask = ops.reshape(mask, (*lead, *(math.prod(last[n : n + count]) for n in range(0, own, count))))
        return mask

    def _compute_attention(
        self,
        query: Float[Array, "batch *q_axes heads width"],
        key: Float[Array, "batch *k_axes heads width"],
        value: Float[Array, "batch *k_axes heads value_width"],
        attention_mask: Shaped[Array, "*_"] | Mask | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> tuple[Float[Array, "batch *q_axes heads value_width"], Float[Array, "batch ..."] | None]:
        """Return the output and the weights, `(batch, …, heads, q, k)`, for projected query, key and value.

        The projected inputs have shape `(batch, *axes, heads, width)`. The weights are None if they are not requested.
        """
        if self._flash_attention and return_attention_scores:
            raise ValueError(
                "Returning attention scores is not supported when flash attention is enabled. Please disable "
                "flash attention to access attention scores."
            )
        query, key, value = (ops.convert_to_tensor(x) for x in (query, key, value))
        if attention_mask is not None and not isinstance(attention_mask, Mask):
            attention_mask = self._pair_mask(attention_mask, len(query.shape))
        if use_causal_mask:
            attention_mask = and_masks(attention_mask, Causal("start"))
        dropout = self._dropout if training else 0.0
        seed = self._dropout_layer.seed_generator.next() if dropout else None
        output, weights = self.attend(
            self._to_heads(query),
            self._to_heads(key),
            self._to_heads(value),
            ScaledDot(),
            attention_mask,
            dropout,
            seed,
            return_attention_scores,
        )
        if weights is not None and len(self._attention_axes) > 1:
            sides = [ops.shape(x)[n] for x in (query, key) for n in self._attention_axes]
            weights = ops.reshape(weights, (*ops.shape(weights)[:-2], *sides))
        return self._from_heads(output, query), weights

    def _to_heads(
        self, x: Float[Array, "batch *axes heads width"]
    ) -> Float[Array, "batch *other_axes heads length width"]:
        """Return an array `(batch, *axes, heads, width)` with its heads before the axes of attention.

        The result has shape `(batch, *other axes, heads, length, width)`, where the axes of attention are merged into
        `length`.
        """
        x = ops.transpose(x, self._order(len(x.shape)))
        lengths, count = ops.shape(x), len(self._attention_axes)
        if count > 1:
            x = ops.reshape(x, (*lengths[: -count - 1], math.prod(lengths[-count - 1 : -1]), lengths[-1]))
        return x

    def _from_heads(
        self,
        output: Float[Array, "batch *other_axes heads q value_width"],
        query: Float[Array, "batch *q_axes heads width"],
    ) -> Float[Array, "batch *q_axes heads value_width"]:
        """Return the output of attention with its axes in the order of the axes of `query`."""
        rank, lengths = len(query.shape), ops.shape(query)
        order = self._order(rank)
        if len(self._attention_axes) > 1:
            sides = [lengths[n] for n in self._attention_axes]
            output = ops.reshape(output, (*ops.shape(output)[:-2], *sides, ops.shape(output)[-1]))
        restored: Array = ops.transpose(output, [order.index(n) for n in range(rank)])
        return restored

    def _order(self, rank: int) -> list[int]:
        inner = list(self._attention_axes)
        return [n for n in range(rank - 1) if n not in inner] + [*inner, rank - 1]
