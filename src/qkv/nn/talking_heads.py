"""Talking heads: mix the logits over heads before the normalizer, and the weights after it.

    logits'_h = Σ_g L_hg logits_g          weights'_h = Σ_g W_hg weights_g

Source: Shazeer, Lan, Cheng, Ding, Hou (2020), Talking-heads attention, https://arxiv.org/abs/2003.02436.
A tile of one head needs the logits of all heads, so only the dense kernel supports it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.core.parts import array_field, delegates
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Float, PairArray
from qkv.errors import OptionError
from qkv.normalizers import Normalizer
from qkv.normalizers.base import excluded
from qkv.scores import PointwiseScore, Score


@dataclass(frozen=True, eq=False)
class MixedLogits(PointwiseScore):
    """Score that mixes the logits of an inner score across heads, which are the last batch axis.

    Args:
        score: the inner score.
        mix: matrix L `(heads, heads)`; column g is the contribution of head g.

    Example:
        >>> from qkv.scores import Dot
        >>> one = torch.ones(2, 1, 1)
        >>> MixedLogits(Dot(), torch.tensor([[1.0, 2.0], [0.0, 5.0]]))(one, one).flatten()
        tensor([3., 5.])
    """

    score: Score
    mix: Tensor | None = array_field("heads", "other_heads", default=None)

    def transform(self, logits: PairArray, tile: Tile) -> PairArray:
        """Return the logits mixed by L across heads. Logits of −inf contribute nothing and stay −inf."""
        return _mix_heads(self.mix, logits, excluded(logits), -torch.inf)


@delegates("normalizer", "stochastic")
@dataclass(frozen=True, eq=False)
class MixedWeights(Normalizer):
    """Normalizer that mixes the weights of an inner normalizer across heads, which are the last batch axis."""

    normalizer: Normalizer
    mix: Tensor | None = array_field("heads", "other_heads", default=None)
    online = False
    sums_to_one = False

    def weights(self, logits: PairArray, tile: Tile | None = None) -> PairArray:
        """Return the weights mixed by W across heads. A pair with logit −inf in a head has weight 0 in that head."""
        return _mix_heads(self.mix, self.normalizer.weights(logits, tile), excluded(logits), 0.0)


def _mix_heads(
    mix: Float[Tensor, "*_ heads heads"] | None,
    x: Float[Array, "*batch heads q k"],
    out: Bool[Array, "*batch heads q k"],
    fill: float,
) -> Float[Array, "*batch heads q k"]:
    assert isinstance(x, Tensor)
    assert isinstance(out, Tensor)
    assert mix is not None
    if mix.ndim > 2:  # the last batch axis is that of the heads, which have one matrix together
        mix = mix.squeeze(-3)
    clean = torch.where(out, torch.zeros_like(x), x)
    # A product, because onnxruntime crashes at an einsum whose ellipsis stands for no axis.
    product = mix @ clean.flatten(-2)
    mixed = product.reshape(*product.shape[:-1], *clean.shape[-2:])
    return torch.where(out, torch.full_like(mixed, fill), mixed)


def check_kernel(kernel: str | None, talking_heads: bool) -> str | None:
    """Check the requested kernel, and return it, or "dense" if the module has talking heads.

    Raises:
        OptionError: if another kernel is requested together with talking heads.
    """
    if talking_heads and kernel not in (None, "dense"):
        raise OptionError(f'kernel must be None or "dense" with talking_heads, got {kernel!r}. Omit kernel.')
    return "dense" if talking_heads else kernel
