"""Latent attention: a few learned queries read a long input, so the cost is linear in it (mission C10).

    z = latents + attend(norm(latents), norm(input))          z = z + feed_forward(norm(z))
    z = encoder(z)                                            among the latents alone

Pixels, sounds and words can be read alike: the input needs no order and may have another width. `read` asks
the latents in turn, with queries of another modality.

Source: Jaegle et al. (2021), Perceiver, section 3, https://arxiv.org/abs/2103.03206; `read`: Jaegle et al.
(2022), Perceiver IO, section 3, https://arxiv.org/abs/2107.14795.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import OptionError, ShapeError
from qkv.masks import Mask
from qkv.nn.feed_forward import Activation, FeedForward
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.transformer import Encoder

__all__ = ["LatentAttention"]


class LatentAttention(nn.Module):
    """So many latent vectors in place of an input of any length.

    Args:
        latents: how many; they start normal with deviation 0.02, as in the source.
        width: of a latent.
        heads: of attention.
        input_width: of the input; `width` where None.
        query_width: of what `read` is asked with; `width` where None.
        layers: encoder layers among the latents after reading; 0: none.
        hidden, activation, dropout: of the feed-forward networks, as in `EncoderLayer`.
        device, dtype: of the parameters.
        attention: options of all attentions, as in `EncoderLayer`.

    Shapes:
        input `(*batch, n, input_width)` -> `(*batch, latents, width)`

    Raises:
        OptionError: no latents, or an option outside what is allowed.
        ShapeError: an input of another width.

    Source: as this module.

    Example:
        >>> reader = LatentAttention(4, 16, 2, input_width=3, query_width=5)
        >>> pixels, words = torch.randn(2, 1000, 3), torch.randn(2, 6, 5)
        >>> latents = reader(pixels)
        >>> latents.shape, reader.read(words, latents).shape
        (torch.Size([2, 4, 16]), torch.Size([2, 6, 16]))
    """

    def __init__(
        self,
        latents: int,
        width: int,
        heads: int = 1,
        *,
        input_width: int | None = None,
        query_width: int | None = None,
        layers: int = 0,
        hidden: int | None = None,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        device: Any = None,
        dtype: Any = None,
        **attention: Any,
    ) -> None:
        super().__init__()
        if latents < 1 or layers < 0:
            raise OptionError(f"LatentAttention was given {latents} latents and {layers} layers.")
        factory_kwargs = {"device": device, "dtype": dtype}
        self.input_width = width if input_width is None else input_width
        self.query_width = width if query_width is None else query_width
        self.latents = nn.Parameter(torch.empty(latents, width, **factory_kwargs))
        self.latent_norm = nn.LayerNorm(width, **factory_kwargs)
        self.input_norm = nn.LayerNorm(self.input_width, **factory_kwargs)
        both = {"dropout": dropout, **factory_kwargs, **attention}
        self.attention = MultiHeadAttention(width, heads, key_width=self.input_width, **both)
        more = {"activation": activation, "dropout": dropout, **factory_kwargs}
        self.feed_forward_norm = nn.LayerNorm(width, **factory_kwargs)
        self.feed_forward = FeedForward(width, hidden, **more)
        self.encoder = Encoder(layers, width, heads, hidden, **more, **attention) if layers else None
        self.query_map = nn.Linear(self.query_width, width, **factory_kwargs)
        self.query_norm = nn.LayerNorm(width, **factory_kwargs)
        self.memory_norm = nn.LayerNorm(width, **factory_kwargs)
        self.reading = MultiHeadAttention(width, heads, **both)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fill the latents and the map of `read` with their initial values; the parts fill their own."""
        nn.init.normal_(self.latents, std=0.02)
        nn.init.xavier_uniform_(self.query_map.weight)
        nn.init.zeros_(self.query_map.bias)

    def forward(self, x: Tensor, *, mask: Mask | None = None) -> Tensor:
        """What the latents are after reading.

        Args:
            x: the input.
            mask: which of it may be read, such as `masks.Lengths`.
        """
        if x.ndim < 2 or x.shape[-1] != self.input_width:
            raise ShapeError(f"x has shape {tuple(x.shape)}; it must be (*batch, n, {self.input_width}).")
        latents = self.latents.expand(*x.shape[:-2], *self.latents.shape)
        z: Tensor = latents + self.attention(self.latent_norm(latents), self.input_norm(x), mask=mask)
        z = z + self.feed_forward(self.feed_forward_norm(z))
        return z if self.encoder is None else self.encoder(z)

    def read(self, query: Tensor, latents: Tensor) -> Tensor:
        """What the latents answer to queries `(*batch, q, query_width)`: `(*batch, q, width)`."""
        if query.ndim < 2 or query.shape[-1] != self.query_width:
            raise ShapeError(f"query has shape {tuple(query.shape)}; it must be (*batch, q, {self.query_width}).")
        asked = self.query_map(query)
        output: Tensor = asked + self.reading(self.query_norm(asked), self.memory_norm(latents))
        return output
