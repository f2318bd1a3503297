"""The whole Transformer, from these parts (mission C11): an encoder reads, a decoder writes.

    memory = encoder(source)          output = decoder(target, memory)

Tokens come in and go out as vectors: embeddings, positions (`nn.positions`) and the map to a vocabulary are
the model's. To see weights of any layer: `nn.observe(model, {"encoder.layers.0.attention": […]}, …)`.

Source: Vaswani et al. (2017), Attention is all you need, https://arxiv.org/abs/1706.03762.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from qkv.errors import OptionError, ShapeError
from qkv.masks import Mask
from qkv.nn.cache import KeyValueCache
from qkv.nn.layers import DecoderLayer, EncoderLayer
from qkv.nn.protocols import Cache, KeyValue

__all__ = ["Decoder", "Encoder", "Transformer"]


class _Stack(nn.Module):
    """Layers of one kind, one after another, and perhaps a norm."""

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
        made = (self.layer(width, heads, hidden, **options) for _ in range(_count(layers)))
        self.layers = nn.ModuleList(made)
        self.final_norm = _final(width, final_norm, options)

    def caches(self, **options: Any) -> list[KeyValueCache]:
        """An empty cache for each layer; options are those of `KeyValueCache`."""
        return [KeyValueCache(**options) for _ in self.layers]


class Encoder(_Stack):
    """Encoder layers, one after another. With a causal mask and caches it is a language model.

    Args:
        layers: how many.
        width, heads, hidden, options: of each, as in `EncoderLayer`.
        final_norm: a norm after the last; None: where layers are pre-norm.

    Shapes:
        x `(*batch, n, width)` -> the same

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

    def forward(self, x: Tensor, *, mask: Mask | None = None, cache: Sequence[Cache] | None = None) -> Tensor:
        """The sequence after all layers; `mask` is that of every layer, `cache` has one for each."""
        for n, layer in enumerate(self.layers):
            x = layer(x, mask=mask, cache=_nth(cache, n, len(self.layers)))
        return x if self.final_norm is None else self.final_norm(x)

    @classmethod
    def from_torch(cls, encoder: nn.TransformerEncoder) -> Encoder:
        """The same encoder, of PyTorch's, as `EncoderLayer.from_torch`."""
        from qkv.nn.torch_layers import encoder_of

        return encoder_of(encoder)


class Decoder(_Stack):
    """Decoder layers, one after another.

    Args:
        layers: how many.
        width, heads, hidden, options: of each, as in `DecoderLayer`.
        final_norm: as in `Encoder`.

    Shapes:
        x `(*batch, n, width)`, memory `(*batch, m, memory_width)` -> `(*batch, n, width)`

    Example:
        >>> import torch
        >>> model, memory, x = Decoder(2, 8, 2), torch.randn(1, 5, 8), torch.randn(1, 3, 8)
        >>> with torch.no_grad():
        ...     caches, mapped = model.caches(), model.remember(memory)  # the memory is mapped once
        ...     steps = [model(x[:, t : t + 1], mapped, cache=caches) for t in range(3)]
        ...     torch.allclose(torch.cat(steps, dim=1), model(x, memory), atol=1e-5)
        True
    """

    layer = DecoderLayer

    def forward(
        self,
        x: Tensor,
        memory: Tensor | Sequence[KeyValue],
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        cache: Sequence[Cache] | None = None,
    ) -> Tensor:
        """The sequence after all layers.

        Args:
            x: tokens.
            memory: the other sequence, or what `remember` gave of it.
            mask, memory_mask: those of every layer, as in `DecoderLayer`.
            cache: one for each layer.
        """
        mapped = None if isinstance(memory, Tensor) else memory
        for n, layer in enumerate(self.layers):
            seen = memory if mapped is None else _nth(mapped, n, len(self.layers))
            x = layer(x, seen, mask=mask, memory_mask=memory_mask, cache=_nth(cache, n, len(self.layers)))
        return x if self.final_norm is None else self.final_norm(x)

    def remember(self, memory: Tensor) -> list[KeyValue]:
        """Keys and values of the memory for each layer, mapped once for many steps of decoding."""
        layers: Any = self.layers
        return [layer.cross.key_value(memory) for layer in layers]

    @classmethod
    def from_torch(cls, decoder: nn.TransformerDecoder, causal: bool = False) -> Decoder:
        """The same decoder, of PyTorch's, as `DecoderLayer.from_torch`."""
        from qkv.nn.torch_layers import decoder_of

        return decoder_of(decoder, causal)


class Transformer(nn.Module):
    """An encoder and a decoder.

    Args:
        width, heads, hidden: of every layer, as in `EncoderLayer`.
        encoder_layers, decoder_layers: how many.
        causal: a token of the target does not see those after it.
        options: of every layer, as in `EncoderLayer`, such as norm, dropout, score, normalizer; and
            `final_norm`.

    Shapes:
        source `(*batch, m, width)`, target `(*batch, n, width)` -> `(*batch, n, width)`

    Source: as this module.

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
        source: Tensor,
        target: Tensor,
        *,
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
        memory_mask: Mask | None = None,
    ) -> Tensor:
        """The target after the decoder.

        Args:
            source, target: tokens.
            source_mask: of the source with itself. One that names keys alone (`Lengths`, `Keys`) is also that
                of the target with the source.
            target_mask: of the target with itself, besides the causal one.
            memory_mask: of the target with the source, in place of `source_mask`.
        """
        if memory_mask is None and source_mask is not None and source_mask.key_only:
            memory_mask = source_mask
        memory = self.encoder(source, mask=source_mask)
        output: Tensor = self.decoder(target, memory, mask=target_mask, memory_mask=memory_mask)
        return output

    @classmethod
    def from_torch(cls, model: nn.Transformer, causal: bool = False) -> Transformer:
        """The same model, of PyTorch's, as `DecoderLayer.from_torch`."""
        from qkv.nn.torch_layers import transformer

        return transformer(model, causal)


def _count(layers: int) -> int:
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
        raise OptionError(f"layers is {layers!r}. It must be a whole number from 1.")
    return layers


def _final(width: int, wanted: bool | None, options: dict[str, Any]) -> nn.LayerNorm | None:
    if wanted is None:
        wanted = options.get("norm", "pre") == "pre"
    made_as = {name: options[name] for name in ("bias", "device", "dtype") if name in options}
    return nn.LayerNorm(width, options.get("epsilon", 1e-5), **made_as) if wanted else None


def _nth(each: Sequence[Any] | None, n: int, count: int) -> Any:
    if each is None:
        return None
    if len(each) != count:
        raise ShapeError(f"there are {count} layers and {len(each)} caches or memories. Give one for each.")
    return each[n]
