"""Key-value cache for Hugging Face models that appends tokens in place, instead of copying all earlier ones."""

from __future__ import annotations

import torch
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

from qkv.core.typing import Float, Tensor


class GrowingCache(DynamicCache):
    """Cache like transformers' `DynamicCache`, whose steps copy no earlier tokens: pass it as `past_key_values`.

    `DynamicCache` concatenates all keys and values at every step. This cache has memory for more tokens, at most
    max(128 tokens, 1/16 of the cache), and copies the earlier tokens only when it is full. Layers with a sliding window
    are those of `DynamicCache`. It serves any attention implementation. Tensors of earlier steps stay unchanged, except
    for the tokens that `crop` removes.

    Args:
        config: configuration of the model; None means that every layer attends to all tokens.

    Example:
        >>> from qkv.interop import huggingface
        >>> cache = huggingface.GrowingCache()
        >>> for _ in range(3):
        ...     keys, values = cache.update(torch.zeros(1, 2, 5, 4), torch.ones(1, 2, 5, 4), 0)
        >>> keys.shape, cache.get_seq_length()
        (torch.Size([1, 2, 15, 4]), 15)
    """

    def __init__(self, config: PreTrainedConfig | None = None) -> None:
        super().__init__(config=config)
        self.layers = [_GrowingLayer() if type(layer) is DynamicLayer else layer for layer in self.layers]
        if self.layer_class_to_replicate is DynamicLayer:
            self.layer_class_to_replicate = _GrowingLayer


class _Rows:
    """Memory for keys or values, of which a tensor holds the first rows."""

    def __init__(self) -> None:
        self.buffer: Float[Tensor, "batch heads capacity width"] | None = None
        self.filled: Float[Tensor, "batch heads n width"] | None = None

    def append(
        self, old: Float[Tensor, "*_"], new: Float[Tensor, "batch heads new width"]
    ) -> Float[Tensor, "batch heads n width"]:
        """Return the rows of `old`, the result of the last call unless other code replaced it, and `new`."""
        if old.numel() == 0:
            self.buffer, self.filled = None, new
            return new
        n, after = old.shape[-2], old.shape[-2] + new.shape[-2]
        buffer = self.buffer
        if buffer is None or old is not self.filled or after > buffer.shape[-2]:
            with torch.inference_mode(False):  # tensors of inference mode could not be written outside of it
                buffer = new.new_empty((*old.shape[:-2], after + max(128, after // 16), old.shape[-1]))
            buffer[..., :n, :] = old
        buffer[..., n:after, :] = new
        self.buffer, self.filled = buffer, buffer.narrow(-2, 0, after)
        return self.filled


class _GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]
        self._sides = _Rows(), _Rows()

    def update(
        self,
        key_states: Float[Tensor, "batch heads new width"],
        value_states: Float[Tensor, "batch heads new value_width"],
        *args: object,
        **kwargs: object,
    ) -> tuple[Float[Tensor, "batch heads n width"], Float[Tensor, "batch heads n value_width"]]:
        """Append keys and values, and return all of them."""
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            return super().update(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self._sides
        assert self.keys is not None  # an empty tensor at first
        assert self.values is not None
        self.keys, self.values = keys.append(self.keys, key_states), values.append(self.values, value_states)
        return self.keys, self.values

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last `-tokens_to_remove` tokens; later tokens reuse their memory."""
        before = self.keys, self.values
        super().crop(tokens_to_remove)
        for rows, old, new in zip(self._sides, before, (self.keys, self.values), strict=True):
            if rows.filled is old:
                rows.filled = new

    def reset(self) -> None:
        """Remove all tokens."""
        super().reset()
        self._sides = _Rows(), _Rows()
