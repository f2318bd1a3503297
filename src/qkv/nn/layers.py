"""Layers of a Transformer: attention, then feed-forward, each added to what came in.

post-norm    x = norm(x + part(x))          Vaswani et al. (2017), https://arxiv.org/abs/1706.03762
pre-norm     x = x + part(norm(x))          Xiong et al. (2020), https://arxiv.org/abs/2002.04745: trains
                                            without warm-up
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn

from qkv.errors import OptionError, ShapeError
from qkv.masks import Causal, Mask
from qkv.nn.feed_forward import Activation, FeedForward
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.protocols import Cache, KeyValue

__all__ = ["DecoderLayer", "EncoderLayer", "Norm"]

Norm = Literal["pre", "post"]


class _Layer(nn.Module):
    """What both kinds of layer share: how a part is added."""

    def __init__(
        self,
        width: int,
        hidden: int | None,
        norm: Norm,
        activation: Activation,
        dropout: float,
        epsilon: float,
        made_as: dict[str, Any],
    ) -> None:
        super().__init__()
        if norm not in ("pre", "post"):
            raise OptionError(f'norm is {norm!r}. Give "pre" or "post".')
        self.norm, self.width = norm, width
        self.feed_forward = FeedForward(width, hidden, activation=activation, dropout=dropout, **made_as)
        self.feed_forward_norm = nn.LayerNorm(width, epsilon, **made_as)
        self.dropout = nn.Dropout(dropout)

    def added(self, x: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        """x + part(norm(x)), or norm(x + part(x))."""
        if self.norm == "pre":
            pre: Tensor = x + self.dropout(part(norm(x)))
            return pre
        post: Tensor = norm(x + self.dropout(part(x)))
        return post

    def fitting(self, x: Tensor) -> Tensor:
        """`x`, if it is that wide."""
        if x.ndim < 2 or x.shape[-1] != self.width:
            raise ShapeError(f"x has shape {tuple(x.shape)}; it must be (*batch, n, {self.width}).")
        return x

    def extra_repr(self) -> str:
        """Where the norm stands."""
        return f"norm={self.norm!r}"


class EncoderLayer(_Layer):
    """A sequence attends to itself, then each token goes through a feed-forward network.

    With `mask=masks.Causal()` and a cache this is the layer of a language model.

    Args:
        width: of a token.
        heads: of attention.
        hidden: units of the feed-forward network; 4 · width where None.
        norm: "pre" or "post".
        activation: of the feed-forward network, as in `FeedForward`.
        dropout: while training, of hidden units and of what is added.
        attention_dropout: of weights; as `dropout` where None.
        epsilon: of the norms.
        bias: whether maps and norms have one.
        device, dtype: of the parameters.
        attention: options of `MultiHeadAttention`, such as score, normalizer, mask, key_heads, positions.

    Shapes:
        x `(*batch, n, width)` -> the same

    Raises:
        OptionError: an option outside what is allowed.

    Source: Vaswani et al. (2017), section 3.1, https://arxiv.org/abs/1706.03762.

    Example:
        >>> import torch
        >>> from qkv import nn, normalizers
        >>> layer = EncoderLayer(8, 2, score=nn.Additive, normalizer=normalizers.Sparsemax())
        >>> layer(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        width: int,
        heads: int = 1,
        hidden: int | None = None,
        *,
        norm: Norm = "pre",
        activation: Activation = "relu",
        dropout: float = 0.0,
        attention_dropout: float | None = None,
        epsilon: float = 1e-5,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        **attention: Any,
    ) -> None:
        made_as = {"bias": bias, "device": device, "dtype": dtype}
        super().__init__(width, hidden, norm, activation, dropout, epsilon, made_as)
        dropped = dropout if attention_dropout is None else attention_dropout
        self.attention = MultiHeadAttention(width, heads, dropout=dropped, **made_as, **attention)
        self.attention_norm = nn.LayerNorm(width, epsilon, **made_as)

    def forward(self, x: Tensor, *, mask: Mask | None = None, cache: Cache | None = None) -> Tensor:
        """The sequence, one layer further.

        Args:
            x: tokens.
            mask: besides that of the attention, as there.
            cache: of this layer's attention: x goes on where it ends.
        """
        x = self.added(self.fitting(x), self.attention_norm, lambda y: self.attention(y, mask=mask, cache=cache))
        return self.added(x, self.feed_forward_norm, self.feed_forward)

    @classmethod
    def from_torch(cls, layer: nn.TransformerEncoderLayer) -> EncoderLayer:
        """The same layer, of PyTorch's; its numbers are copied. As `MultiHeadAttention.from_torch`."""
        from qkv.nn.torch_layers import encoder_layer

        return encoder_layer(layer)


class DecoderLayer(_Layer):
    """A sequence attends to what came before in it, then to another sequence, then feed-forward.

    Args:
        width, heads, hidden, norm, activation, dropout, attention_dropout, epsilon, bias, device, dtype: as
            in `EncoderLayer`.
        memory_width: of the other sequence; `width` where None.
        causal: a token does not see those after it.
        attention: options of both attentions, as in `EncoderLayer`; `mask` and `positions` are of the first
            alone.

    Shapes:
        x `(*batch, n, width)`, memory `(*batch, m, memory_width)` -> `(*batch, n, width)`

    Raises:
        OptionError: an option outside what is allowed.

    Source: Vaswani et al. (2017), section 3.1, https://arxiv.org/abs/1706.03762.

    Example:
        >>> import torch
        >>> DecoderLayer(8, 2)(torch.randn(2, 3, 8), torch.randn(2, 5, 8)).shape
        torch.Size([2, 3, 8])
    """

    def __init__(
        self,
        width: int,
        heads: int = 1,
        hidden: int | None = None,
        *,
        memory_width: int | None = None,
        causal: bool = True,
        norm: Norm = "pre",
        activation: Activation = "relu",
        dropout: float = 0.0,
        attention_dropout: float | None = None,
        epsilon: float = 1e-5,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        mask: Mask | None = None,
        positions: Any = None,
        **attention: Any,
    ) -> None:
        made_as = {"bias": bias, "device": device, "dtype": dtype}
        super().__init__(width, hidden, norm, activation, dropout, epsilon, made_as)
        if causal:
            mask = Causal() if mask is None else Causal() & mask
        dropped = dropout if attention_dropout is None else attention_dropout
        both = {"dropout": dropped, **made_as, **attention}
        self.attention = MultiHeadAttention(width, heads, mask=mask, positions=positions, **both)
        self.attention_norm = nn.LayerNorm(width, epsilon, **made_as)
        self.cross = MultiHeadAttention(width, heads, key_width=memory_width, **both)
        self.cross_norm = nn.LayerNorm(width, epsilon, **made_as)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | KeyValue,
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """The sequence, one layer further.

        Args:
            x: tokens.
            memory: the other sequence; or what `cross.key_value` gave of it, mapped once for many steps.
            mask: of x with itself, besides that of the attention.
            memory_mask: of x with the memory.
            cache: of this layer's attention of x with itself: x goes on where it ends.
        """
        x = self.added(self.fitting(x), self.attention_norm, lambda y: self.attention(y, mask=mask, cache=cache))
        x = self.added(x, self.cross_norm, lambda y: self.cross(y, memory, mask=memory_mask))
        return self.added(x, self.feed_forward_norm, self.feed_forward)

    @classmethod
    def from_torch(cls, layer: nn.TransformerDecoderLayer, causal: bool = False) -> DecoderLayer:
        """The same layer, of PyTorch's, which sees all of x unless a call says otherwise: `causal` says so
        for every call.
        """
        from qkv.nn.torch_layers import decoder_layer

        return decoder_layer(layer, causal)
