"""Encoder and decoder layers of a Transformer, whose sublayers have residual connections.

post-norm    x = norm(x + sublayer(x))          Vaswani et al. (2017), https://arxiv.org/abs/1706.03762
pre-norm     x = x + sublayer(norm(x))          Xiong et al. (2020), https://arxiv.org/abs/2002.04745: trains
                                                without learning-rate warm-up
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from qkv.core.checks import check_choice
from qkv.core.typing import Float
from qkv.masks import Causal, Mask
from qkv.nn.checks import check_width
from qkv.nn.feed_forward import Activation, FeedForward
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.protocols import Cache, KeyValue, Rotation
from qkv.nn.torch_arguments import explain_torch_arguments
from qkv.nn.torch_interop import convert_layer

__all__ = ["DecoderLayer", "EncoderLayer"]

Norm = Literal["pre", "post"]


@explain_torch_arguments
class _Layer(nn.Module):
    """Base class of encoder and decoder layers, with self-attention, feed-forward network and residual connections."""

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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **attention: Any,
    ) -> None:
        super().__init__()
        check_choice("norm", norm, ("pre", "post"))
        self.norm, self.width = norm, width
        factory_kwargs: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.feed_forward = FeedForward(width, hidden, activation=activation, dropout=dropout, **factory_kwargs)
        self.feed_forward_norm = nn.LayerNorm(width, epsilon, **factory_kwargs)
        self.dropout = nn.Dropout(dropout)
        weight_dropout = dropout if attention_dropout is None else attention_dropout
        self.attention = MultiHeadAttention(width, heads, dropout=weight_dropout, **factory_kwargs, **attention)
        self.attention_norm = nn.LayerNorm(width, epsilon, **factory_kwargs)

    def _residual(
        self,
        x: Float[Tensor, "*batch n width"],
        norm: nn.Module,
        sublayer: Callable[[Float[Tensor, "*batch n width"]], Float[Tensor, "*batch n width"]],
    ) -> Float[Tensor, "*batch n width"]:
        pre = self.norm == "pre"
        x = x + self.dropout(sublayer(norm(x) if pre else x))
        return x if pre else cast(Tensor, norm(x))

    def _self_attention(
        self, x: Float[Tensor, "*batch n width"], mask: Mask | None, cache: Cache | None
    ) -> Float[Tensor, "*batch n width"]:
        check_width("x", x, self.width)
        return self._residual(x, self.attention_norm, lambda y: self.attention(y, mask=mask, cache=cache))

    def extra_repr(self) -> str:
        """Return the option `norm` as text for `print`."""
        return f"norm={self.norm!r}"


@explain_torch_arguments
class EncoderLayer(_Layer):
    """Transformer encoder layer: self-attention followed by a feed-forward network.

    With `mask=masks.Causal()` and a cache this is the layer of a decoder-only language model.

    Args:
        width: width of a token.
        heads: number of attention heads.
        hidden: hidden units of the feed-forward network; None means 4 · width.
        norm: "pre" or "post".
        activation: activation of the feed-forward network, as in `FeedForward`.
        dropout: dropout probability of hidden units and of both sublayers' outputs during training.
        attention_dropout: dropout probability of attention weights; None means `dropout`.
        epsilon: epsilon of the layer norms.
        bias: whether linear layers and norms have a bias.
        device: device of the parameters.
        dtype: dtype of the parameters.
        attention: further options of `MultiHeadAttention`, such as `score`, `normalizer`, `mask`, `key_heads`
            or `positions`.

    Shapes:
        x `(*batch, n, width)` -> `(*batch, n, width)`

    Raises:
        OptionError: if an option is not allowed.

    Source: Vaswani et al. (2017), section 3.1, https://arxiv.org/abs/1706.03762.

    Example:
        >>> import torch
        >>> from qkv import nn, normalizers
        >>> layer = EncoderLayer(8, 2, score=nn.Additive, normalizer=normalizers.Sparsemax())
        >>> layer(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def forward(
        self, x: Float[Tensor, "*batch n width"], *, mask: Mask | None = None, cache: Cache | None = None
    ) -> Float[Tensor, "*batch n width"]:
        """Return the tokens after self-attention and the feed-forward network, `(*batch, n, width)`.

        Args:
            x: tokens.
            mask: further mask, combined with the mask of the attention module.
            cache: keys and values of earlier tokens; `x` continues that sequence and is appended.
        """
        x = self._self_attention(x, mask, cache)
        return self._residual(x, self.feed_forward_norm, self.feed_forward)

    @classmethod
    def from_torch(cls, layer: nn.TransformerEncoderLayer) -> EncoderLayer:
        """Return a layer with copies of the parameters of a `torch.nn.TransformerEncoderLayer`.

        `MultiHeadAttention.from_torch` lists the differences of layout and masks.

        Raises:
            KindError: if `layer` is of another class.
        """
        return convert_layer(cls, nn.TransformerEncoderLayer, layer, {"self_attn": "attention"})


@explain_torch_arguments
class DecoderLayer(_Layer):
    """Transformer decoder layer: self-attention, cross-attention to another sequence and a feed-forward network.

    Args:
        width: width of a token.
        heads: number of attention heads.
        hidden: hidden units of the feed-forward network; None means 4 · width.
        memory_width: width of the other sequence; None means `width`.
        causal: whether a token may not attend to later tokens.
        norm: "pre" or "post".
        activation: activation of the feed-forward network, as in `FeedForward`.
        dropout: dropout probability of hidden units and of the sublayers' outputs during training.
        attention_dropout: dropout probability of attention weights; None means `dropout`.
        epsilon: epsilon of the layer norms.
        bias: whether linear layers and norms have a bias.
        device: device of the parameters.
        dtype: dtype of the parameters.
        mask: mask of the self-attention.
        positions: rotation of the self-attention's queries and keys.
        attention: further options of both attention modules, as in `EncoderLayer`.

    Shapes:
        x `(*batch, n, width)`, memory `(*batch, m, memory_width)` -> `(*batch, n, width)`

    Raises:
        OptionError: if an option is not allowed.

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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        mask: Mask | None = None,
        positions: Rotation | None = None,
        **attention: Any,
    ) -> None:
        if causal:
            mask = Causal() if mask is None else Causal() & mask
        factory_kwargs: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        super().__init__(
            width, heads, hidden, norm=norm, activation=activation, dropout=dropout,
            attention_dropout=attention_dropout, epsilon=epsilon, mask=mask, positions=positions, **factory_kwargs,
            **attention,
        )  # fmt: skip
        attention = {"dropout": self.attention.dropout, **factory_kwargs, **attention}
        self.cross = MultiHeadAttention(width, heads, key_width=memory_width, **attention)
        self.cross_norm = nn.LayerNorm(width, epsilon, **factory_kwargs)

    def forward(
        self,
        x: Float[Tensor, "*batch n width"],
        memory: Float[Tensor, "*batch m memory_width"] | KeyValue,
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "*batch n width"]:
        """Return the tokens after self-attention, cross-attention and feed-forward network, `(*batch, n, width)`.

        Args:
            x: tokens.
            memory: the other sequence, or the result of `cross.key_value(memory)`, which projects it once for
                many decoding steps.
            mask: further mask of the self-attention, combined with the module's own.
            memory_mask: mask of the cross-attention.
            cache: keys and values of earlier tokens of the self-attention; `x` is appended.
        """
        x = self._self_attention(x, mask, cache)
        x = self._residual(x, self.cross_norm, lambda y: self.cross(y, memory, mask=memory_mask))
        return self._residual(x, self.feed_forward_norm, self.feed_forward)

    @classmethod
    def from_torch(cls, layer: nn.TransformerDecoderLayer, causal: bool = False) -> DecoderLayer:
        """Return a layer with copies of the parameters of a `torch.nn.TransformerDecoderLayer`.

        `MultiHeadAttention.from_torch` lists the differences of layout and masks.

        Args:
            layer: PyTorch's layer, which applies a causal mask only if the call passes such a mask.
            causal: whether the converted layer applies a causal mask in every call.

        Raises:
            KindError: if `layer` is of another class.
        """
        attentions = {"self_attn": "attention", "multihead_attn": "cross"}
        return convert_layer(cls, nn.TransformerDecoderLayer, layer, attentions, causal=causal)
