"""Latent attention: learned queries attend to a long input, at a cost linear in its length.

    z = latents + attend(norm(latents), norm(input))          z = z + feed_forward(norm(z))
    z = encoder(z)                                            self-attention among the latents

The input is a set of vectors of any width, such as pixels, audio samples or words. `read` attends to the latents
with other queries, which may be of another modality.

Source: Jaegle et al. (2021), Perceiver, section 3, https://arxiv.org/abs/2103.03206; `read`: Jaegle et al.
(2022), Perceiver IO, section 3, https://arxiv.org/abs/2107.14795.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qkv.core.checks import check_integers
from qkv.core.typing import Float
from qkv.masks import Mask
from qkv.nn.checks import check_width
from qkv.nn.feed_forward import Activation, FeedForward, init_linear
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.multihead_options import FactoryKwargs
from qkv.nn.torch_interop import explain_torch_arguments
from qkv.nn.transformer import Encoder


@explain_torch_arguments
class LatentAttention(nn.Module):
    """Module that summarizes an input of any length in a fixed number of latent vectors.

    Args:
        latents: number of latent vectors, initialized from a normal distribution with standard deviation 0.02.
        width: width of a latent vector.
        heads: number of attention heads.
        input_width: width of the input; None means `width`.
        query_width: width of the queries of `read`; None means `width`.
        layers: number of encoder layers among the latents.
        hidden: hidden units of the feed-forward networks, as in `EncoderLayer`.
        activation: activation of the feed-forward networks.
        dropout: dropout probability, as in `EncoderLayer`.
        device: device of the parameters.
        dtype: dtype of the parameters.
        attention: further options of all attention modules, as in `EncoderLayer`.

    Shapes:
        input `(*batch, n, input_width)` -> `(*batch, latents, width)`

    Raises:
        OptionError: if `latents` is below 1, `layers` below 0, or an option is not allowed.
        ShapeError: in a call with an input of another width.

    Source: see the module docstring.

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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **attention: Any,
    ) -> None:
        super().__init__()
        check_integers(latents=latents)
        check_integers(0, layers=layers)
        factory_kwargs: FactoryKwargs = {"device": device, "dtype": dtype}
        self.input_width = width if input_width is None else input_width
        self.query_width = width if query_width is None else query_width
        self.latents = nn.Parameter(torch.empty(latents, width, **factory_kwargs))
        self.latent_norm = nn.LayerNorm(width, **factory_kwargs)
        self.input_norm = nn.LayerNorm(self.input_width, **factory_kwargs)
        options: dict[str, Any] = {"dropout": dropout, **factory_kwargs, **attention}
        self.attention = MultiHeadAttention(width, heads, key_width=self.input_width, **options)
        layer_options: dict[str, Any] = {"activation": activation, "dropout": dropout, **factory_kwargs}
        self.feed_forward_norm = nn.LayerNorm(width, **factory_kwargs)
        self.feed_forward = FeedForward(width, hidden, **layer_options)
        self.encoder = Encoder(layers, width, heads, hidden, **layer_options, **attention) if layers else None
        self.query_map = nn.Linear(self.query_width, width, **factory_kwargs)
        self.query_norm = nn.LayerNorm(width, **factory_kwargs)
        self.memory_norm = nn.LayerNorm(width, **factory_kwargs)
        self.reading = MultiHeadAttention(width, heads, **options)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the latents and the query projection. Submodules initialize their own parameters."""
        nn.init.normal_(self.latents, std=0.02)
        init_linear(self.query_map)

    def forward(
        self, x: Float[Tensor, "*batch n input_width"], *, mask: Mask | None = None
    ) -> Float[Tensor, "*batch latents width"]:
        """Return the latent vectors, `(*batch, latents, width)`, after they have attended to the input.

        Args:
            x: the input.
            mask: mask of the input, such as `masks.Lengths`.
        """
        check_width("x", x, self.input_width)
        latents = self.latents.expand(*x.shape[:-2], *self.latents.shape)
        z: Tensor = latents + self.attention(self.latent_norm(latents), self.input_norm(x), mask=mask)
        z = z + self.feed_forward(self.feed_forward_norm(z))
        return z if self.encoder is None else self.encoder(z)

    def read(
        self, query: Float[Tensor, "*batch q query_width"], latents: Float[Tensor, "*batch latents width"]
    ) -> Float[Tensor, "*batch q width"]:
        """Return the output of attention from `query` to the latent vectors, `(*batch, q, width)`.

        Args:
            query: queries.
            latents: latents that `forward` returned.
        """
        projected = self.query_map(check_width("query", query, self.query_width))
        output: Tensor = projected + self.reading(self.query_norm(projected), self.memory_norm(latents))
        return output
