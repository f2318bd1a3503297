"""Transformer encoder, decoder, and encoder-decoder model.

    memory = encoder(source)          output = decoder(target, memory)

Inputs and outputs are token vectors: embeddings, position encodings (`nn.positions`) and the output projection
to a vocabulary belong to the model around these modules. To read the weights of any layer, use
`nn.observe(model, {"encoder.layers.0.attention": […]}, …)`. The sublayers of a layer have residual connections:

post-norm    x = norm(x + sublayer(x))          as in the source
pre-norm     x = x + sublayer(norm(x))          Xiong et al. (2020), https://arxiv.org/abs/2002.04745: trains
                                                without learning-rate warm-up

Source: Vaswani et al. (2017), Attention is all you need, https://arxiv.org/abs/1706.03762.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from qkv.core.checks import check_choice, check_integers
from qkv.core.typing import Float
from qkv.errors import ShapeError
from qkv.masks import Causal, Mask
from qkv.nn.cache import KeyValueCache
from qkv.nn.checks import check_width
from qkv.nn.feed_forward import Activation, FeedForward
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.protocols import Cache, KeyValue, Rotation
from qkv.nn.torch_interop import convert_layer, copy_stack, explain_torch_arguments, require_module

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


T = TypeVar("T")


@explain_torch_arguments
class _Stack(nn.Module):
    """Base class of `Encoder` and `Decoder`: a sequence of layers and an optional final norm."""

    layer: ClassVar[type[EncoderLayer] | type[DecoderLayer]]

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int = 1,
        hidden: int | None = None,
        *,
        final_norm: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_integers(layers=layers)
        self.layers = nn.ModuleList([self.layer(width, heads, hidden, **options) for _ in range(layers)])
        if final_norm is None:
            final_norm = options.get("norm", "pre") == "pre"
        norm_options = {name: options[name] for name in ("bias", "device", "dtype") if name in options}
        self.final_norm = nn.LayerNorm(width, options.get("epsilon", 1e-5), **norm_options) if final_norm else None

    def caches(self, **options: Any) -> list[KeyValueCache]:
        """Return a list of one empty `KeyValueCache` per layer, each built with `options`."""
        return [KeyValueCache(**options) for _ in self.layers]


@explain_torch_arguments
class Encoder(_Stack):
    """Stack of encoder layers, which with a causal mask and caches serves as a decoder-only model.

    It is unrelated to `qkv.encoders.Encoder`, the base class of encoders that map texts or table rows to vectors.

    Args:
        layers: number of layers.
        width: width of a token.
        heads: number of attention heads.
        hidden: hidden units of the feed-forward networks.
        final_norm: whether a norm follows the last layer; None means only for pre-norm layers.
        options: further options of every layer, as in `EncoderLayer`.

    Shapes:
        x `(*batch, n, width)` -> `(*batch, n, width)`

    Example:
        >>> import torch
        >>> from qkv import masks, nn
        >>> model = Encoder(2, 8, 2, mask=masks.Causal(), positions=nn.positions.Rotary(4))
        >>> caches, x = model.caches(), torch.randn(1, 6, 8)
        >>> with torch.no_grad():
        ...     steps = [model(x[:, t : t + 2], cache=caches) for t in (0, 2, 4)]
        ...     torch.allclose(torch.cat(steps, dim=1), model(x), atol=1e-5)
        True
    """

    layer = EncoderLayer

    def forward(
        self, x: Float[Tensor, "*batch n width"], *, mask: Mask | None = None, cache: Sequence[Cache] | None = None
    ) -> Float[Tensor, "*batch n width"]:
        """Return the output of the last layer, after the final norm if there is one.

        Args:
            x: tokens.
            mask: mask of every layer, combined with the mask of the layer itself.
            cache: one cache per layer.
        """
        for n, layer in enumerate(self.layers):
            x = layer(x, mask=mask, cache=_item_of_layer("cache", cache, n, len(self.layers)))
        return x if self.final_norm is None else self.final_norm(x)

    @classmethod
    def from_torch(cls, encoder: nn.TransformerEncoder) -> Encoder:
        """Return an encoder with copies of the parameters of a `torch.nn.TransformerEncoder`.

        The layers are converted by `EncoderLayer.from_torch`.

        Raises:
            KindError: if `encoder` is of another class.
        """
        require_module(encoder, nn.TransformerEncoder)
        return copy_stack(cls(1, 1), [EncoderLayer.from_torch(layer) for layer in encoder.layers], encoder)


@explain_torch_arguments
class Decoder(_Stack):
    """Stack of decoder layers, which attend to the target tokens and to the output of an encoder.

    Args:
        layers: number of layers.
        width: width of a token.
        heads: number of attention heads.
        hidden: hidden units of the feed-forward networks.
        final_norm: as in `Encoder`.
        options: further options of every layer, as in `DecoderLayer`.

    Shapes:
        x `(*batch, n, width)`, memory `(*batch, m, memory_width)` -> `(*batch, n, width)`

    Example:
        >>> import torch
        >>> model, memory, x = Decoder(2, 8, 2), torch.randn(1, 5, 8), torch.randn(1, 3, 8)
        >>> with torch.no_grad():
        ...     caches, projected = model.caches(), model.project_memory(memory)
        ...     steps = [model(x[:, t : t + 1], projected, cache=caches) for t in range(3)]
        ...     torch.allclose(torch.cat(steps, dim=1), model(x, memory), atol=1e-5)
        True
    """

    layer = DecoderLayer

    def forward(
        self,
        x: Float[Tensor, "*batch n width"],
        memory: Float[Tensor, "*batch m memory_width"] | Sequence[KeyValue],
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        cache: Sequence[Cache] | None = None,
    ) -> Float[Tensor, "*batch n width"]:
        """Return the output of the last layer, after the final norm if there is one.

        Args:
            x: tokens.
            memory: the other sequence, or the result of `project_memory`.
            mask: mask of every self-attention, combined with the mask of the layer itself.
            memory_mask: mask of every cross-attention.
            cache: one cache per layer.
        """
        count = len(self.layers)
        projected = None if isinstance(memory, Tensor) else memory
        for n, layer in enumerate(self.layers):
            source = memory if projected is None else _item_of_layer("memory", projected, n, count)
            layer_cache = _item_of_layer("cache", cache, n, count)
            x = layer(x, source, mask=mask, memory_mask=memory_mask, cache=layer_cache)
        return x if self.final_norm is None else self.final_norm(x)

    def project_memory(self, memory: Float[Tensor, "*batch m memory_width"]) -> list[KeyValue]:
        """Return the projected keys and values of `memory` for each layer, which many decoding steps can reuse."""
        return [cast(DecoderLayer, layer).cross.key_value(memory) for layer in self.layers]

    @classmethod
    def from_torch(cls, decoder: nn.TransformerDecoder, causal: bool = False) -> Decoder:
        """Return a decoder with copies of the parameters of a `torch.nn.TransformerDecoder`.

        The layers are converted by `DecoderLayer.from_torch`, which describes `causal`.

        Raises:
            KindError: if `decoder` is of another class.
        """
        require_module(decoder, nn.TransformerDecoder)
        return copy_stack(cls(1, 1), [DecoderLayer.from_torch(layer, causal) for layer in decoder.layers], decoder)


@explain_torch_arguments
class Transformer(nn.Module):
    """Encoder-decoder Transformer: the decoder attends to the output of the encoder.

    Args:
        width: width of a token.
        heads: number of attention heads.
        hidden: hidden units of the feed-forward networks.
        encoder_layers: number of encoder layers.
        decoder_layers: number of decoder layers.
        causal: whether a target token may not attend to later target tokens.
        options: further options of every layer, as in `EncoderLayer`, such as `norm`, `dropout`, `score` or
            `normalizer`; and `final_norm`.

    Shapes:
        source `(*batch, m, width)`, target `(*batch, n, width)` -> `(*batch, n, width)`

    Source: Vaswani et al. (2017), https://arxiv.org/abs/1706.03762.

    Example:
        >>> import torch
        >>> from qkv import masks
        >>> model = Transformer(8, 2, encoder_layers=1, decoder_layers=1)
        >>> source, target = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
        >>> model(source, target, source_mask=masks.Lengths(torch.tensor([5, 2]))).shape
        torch.Size([2, 3, 8])
    """

    def __init__(
        self,
        width: int = 512,
        heads: int = 8,
        hidden: int | None = None,
        *,
        encoder_layers: int = 6,
        decoder_layers: int = 6,
        causal: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(encoder_layers, width, heads, hidden, **options)
        self.decoder = Decoder(decoder_layers, width, heads, hidden, causal=causal, **options)

    def forward(
        self,
        source: Float[Tensor, "*batch m width"],
        target: Float[Tensor, "*batch n width"],
        *,
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
        memory_mask: Mask | None = None,
    ) -> Float[Tensor, "*batch n width"]:
        """Return the output of the decoder for the target tokens, `(*batch, n, width)`.

        Args:
            source: input tokens of the encoder.
            target: input tokens of the decoder.
            source_mask: mask of the encoder's self-attention. A mask of keys alone (`Lengths`, `AllowedKeys`) also
                applies to the cross-attention.
            target_mask: mask of the decoder's self-attention, combined with the causal mask.
            memory_mask: mask of the cross-attention, used instead of `source_mask`.
        """
        if memory_mask is None and source_mask is not None and source_mask.key_only:
            memory_mask = source_mask
        memory = self.encoder(source, mask=source_mask)
        output: Tensor = self.decoder(target, memory, mask=target_mask, memory_mask=memory_mask)
        return output

    @classmethod
    def from_torch(cls, model: nn.Transformer, causal: bool = False) -> Transformer:
        """Return a model with copies of the parameters of a `torch.nn.Transformer`.

        The decoder layers are converted by `DecoderLayer.from_torch`, which describes `causal`.

        Raises:
            KindError: if `model` is of another class.
        """
        require_module(model, nn.Transformer)
        ours = cls(1, 1, encoder_layers=1, decoder_layers=1)
        ours.encoder = Encoder.from_torch(model.encoder)
        ours.decoder = Decoder.from_torch(model.decoder, causal)
        return ours.train(model.training)


def _item_of_layer(name: str, items: Sequence[T] | None, n: int, count: int) -> T | None:
    if items is None:
        return None
    if len(items) != count:
        method = {"cache": "caches", "memory": "project_memory"}[name]
        raise ShapeError(
            f"{name} must have one item for each of the {count} layers, got {len(items)} items. "
            f"Pass the result of the method {method}."
        )
    return items[n]
