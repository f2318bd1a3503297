"""Hard attention: one key is drawn for each query, and its value is the answer (mission A9).

    j ~ softmax(score / T)          output = v_j

No gradient goes through a draw. Three ways to learn all the same:

    REINFORCE          ∇ E[L] = E[(L − b) ∇ log p_j + ∇L]          exact in expectation, for every b
    straight-through   forward v_j, backward as if it were Σ_i p_i v_i          biased, of little variance
    Gumbel-softmax     forward v_j, backward as Σ_i y_i v_i with y = softmax((score / T + g) / τ), g the noise
                       of the draw itself          biased; less as τ falls, of more variance

Sources: Xu et al. (2015), Show, attend and tell, section 4.1, https://arxiv.org/abs/1502.03044; Williams
(1992), Simple statistical gradient-following algorithms, https://doi.org/10.1007/BF00992696; Bengio, Léonard,
Courville (2013), https://arxiv.org/abs/1308.3432; Jang, Gu, Poole (2017), https://arxiv.org/abs/1611.01144.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from qkv.core import random
from qkv.core.arrays import Array
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.engine import attend, observe
from qkv.errors import OptionError, ShapeError
from qkv.masks import Mask
from qkv.nn.align_batch import align_batch
from qkv.nn.attention import and_masks
from qkv.nn.part_module import PartModule
from qkv.nn.scores.base import ScoreLike, build_score
from qkv.normalizers import Sample, Softmax
from qkv.readouts import Dense, LogProbability, SampledKey, TopWeights
from qkv.scores import Score
from qkv.scores.base import PointwiseScore

__all__ = ["HardAttentionOutput", "HardAttention"]

Gradient = Literal["reinforce", "straight-through", "gumbel"]
Baseline = Literal["moving", "exact"]


class HardAttentionOutput(NamedTuple):
    """What hard attention gives.

    Attributes:
        output: `(*batch, q, value_width)`, the value of the key; 0 where no key is left.
        keys: `(*batch, q)`, index of the key; −1 where none is left.
        log_probability: `(*batch, q)`, how likely it was, in nats, differentiable.
    """

    output: Tensor
    keys: Tensor
    log_probability: Tensor


class HardAttention(torch.nn.Module):
    """Draws one key for each query while training; takes the most likely one in evaluation.

    Args:
        score: a score, or a learned one, as in `nn.Attention`.
        mask: which pairs may meet.
        temperature: T, of the softmax that is drawn from.
        gradient: "reinforce", "straight-through" or "gumbel". The first wants its loss through `objective`.
        baseline: b, of REINFORCE: "moving", an average of past losses; "exact", the expected loss, which
            `objective` must be told; None: 0.
        decay: of the moving average.
        sharpness: τ, of the Gumbel-softmax.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)`, value `(*batch, k, value_width)` -> `HardAttentionOutput`

    Raises:
        OptionError: an option outside what is allowed.

    Source: as this module.

    Example:
        >>> attention = HardAttention()
        >>> drawn = attention(torch.zeros(1, 2), torch.zeros(4, 2), torch.eye(4), seed=1)
        >>> drawn.output[0, drawn.keys[0]], drawn.log_probability.exp()
        (tensor(1.), tensor([0.2500]))
    """

    average: Tensor
    seen: Tensor

    def __init__(
        self,
        score: ScoreLike = None,
        *,
        mask: Mask | None = None,
        temperature: float = 1.0,
        gradient: Gradient = "reinforce",
        baseline: Baseline | None = "moving",
        decay: float = 0.9,
        sharpness: float = 0.5,
    ) -> None:
        super().__init__()
        if gradient not in ("reinforce", "straight-through", "gumbel"):
            raise OptionError(f'gradient is {gradient!r}. Give "reinforce", "straight-through" or "gumbel".')
        if baseline not in ("moving", "exact", None):
            raise OptionError(f'baseline is {baseline!r}. Give "moving", "exact" or None.')
        if not 0 <= decay < 1:
            raise OptionError(f"decay is {decay!r}. It must be a number from 0 up to, not including, 1.")
        self.score = build_score(score, 1, 1, getattr(score, "heads", None))
        self.mask = PartModule(mask)
        self.draw, self.soft = Sample(temperature), Softmax(temperature)
        self.sharp = Softmax(sharpness)
        self.gradient, self.baseline, self.decay = gradient, baseline, decay
        # Of a moving average: Σ decay^i L and Σ decay^i, so that the first losses count as they should.
        self.register_buffer("average", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))

    def reset_parameters(self) -> None:
        """Forget past losses; the score fills its own."""
        self.average.zero_()
        self.seen.zero_()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        *,
        mask: Mask | None = None,
        positions: Positions | None = None,
        seed: int | None = None,
    ) -> HardAttentionOutput:
        """The value of one key for each query.

        Args:
            query, key: what is compared.
            value: what is chosen from; the key where None.
            mask: besides that of the module.
            positions: how query positions relate to key positions, where that matters.
            seed: of the draw; from PyTorch's generator where None.
        """
        value = key if value is None else value
        call = self._call(query, key, mask, positions)
        if not self.training:
            return self._most_likely(query, key, value, call)
        seed = int(torch.randint(2**62, ()).item()) if seed is None else seed
        read = (SampledKey(), LogProbability())
        seen = observe(query, key, value, normalizer=self.draw, readouts=read, seed=seed, **call)
        output, (keys, log_probability) = seen.output, seen.readouts
        if self.gradient == "straight-through":
            soft = attend(query, key, value, normalizer=self.soft, **call)
            output = output.detach() + (soft - soft.detach())
        elif self.gradient == "gumbel":
            call["score"] = _WithNoise(call["score"], 1.0 / float(self.draw.temperature))
            soft = attend(query, key, value, normalizer=self.sharp, seed=seed, **call)
            output = output.detach() + (soft - soft.detach())
        return HardAttentionOutput(output, keys, log_probability)

    def objective(self, drawn: HardAttentionOutput, losses: Tensor, expected: Tensor | None = None) -> Tensor:
        """The losses, with the gradient of REINFORCE: the mean of it is what to minimise.

            L + (L − b) · (log p − log p, held fixed)          its value is L

        Args:
            drawn: what the losses came of.
            losses: `(*batch)` or `(*batch, q)`, any number of leading axes of the draws. A loss of several
                draws gives its gradient to all of them.
            expected: the exact baseline, such as `self.expected(…)`, detached here.

        Raises:
            OptionError: the exact baseline is missing.
            ShapeError: the losses do not belong to the draws.
        """
        shape = tuple(drawn.log_probability.shape)
        if tuple(losses.shape) != shape[: losses.ndim]:
            raise ShapeError(
                f"losses have shape {tuple(losses.shape)}; they must be the first axes of the draws {shape}."
            )
        log_probability = drawn.log_probability
        if losses.ndim < len(shape):
            log_probability = log_probability.flatten(losses.ndim).sum(-1)
        fixed = losses.detach()
        score = log_probability - log_probability.detach()
        return losses + (fixed - self._baseline(fixed, expected)) * score

    def expected(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        loss: Callable[[Tensor], Tensor],
        *,
        mask: Mask | None = None,
        positions: Positions | None = None,
    ) -> Tensor:
        """Σ_j p_j L(v_j), `(*batch, q)`: every key is tried, in memory q · k. Its gradient is the exact one.

        Args:
            query, key, value, mask, positions: as in the call.
            loss: from the k values as answers of each query, `(*batch, q, k, value_width)`, to `(*batch, q,
                k)`.
        """
        call = self._call(query, key, mask, positions)
        seen = observe(query, key, value, normalizer=self.soft, readouts=[Dense()], **call)
        weights = seen.readouts[0]
        answers = value.unsqueeze(-3).expand(*weights.shape, value.shape[-1])
        total: Tensor = (weights * loss(answers)).sum(-1)
        return total

    def extra_repr(self) -> str:
        """How it learns."""
        told = f", baseline={self.baseline!r}" if self.gradient == "reinforce" else ""
        return f"{self.draw}, gradient={self.gradient!r}{told}"

    def _call(self, query: Tensor, key: Tensor, mask: Mask | None, positions: Positions | None) -> dict[str, Any]:
        axes = max(query.ndim, key.ndim) - 3
        score: Score = align_batch(self.score(), max(axes, 0), None, True)
        return {"score": score, "mask": and_masks(self.mask(), mask), "positions": positions}

    def _most_likely(self, query: Tensor, key: Tensor, value: Tensor, call: dict[str, Any]) -> HardAttentionOutput:
        seen = observe(query, key, value, normalizer=self.soft, readouts=[TopWeights(1)], **call)
        found = seen.readouts[0]
        keys, weight = found.keys[..., 0].long(), found.weights[..., 0]
        there = weight > 0
        rows = keys.clamp_min(0)[..., None].expand(*keys.shape, value.shape[-1])
        output = value.expand(*keys.shape[:-1], *value.shape[-2:]).gather(-2, rows)
        output = torch.where(there[..., None], output, 0.0)
        return HardAttentionOutput(
            output,
            torch.where(there, keys, -1),
            torch.where(there, weight, 1.0).log(),
        )

    def _baseline(self, losses: Tensor, expected: Tensor | None) -> Tensor | float:
        if self.baseline == "exact":
            if expected is None:
                raise OptionError('baseline="exact" wants the expected loss: objective(…, expected=…).')
            return expected.detach()
        if self.baseline is None:
            return 0.0
        before = self.average / self.seen.clamp_min(1e-30)
        if self.training:
            # After it was read: a baseline that has seen its own draw would bias the gradient.
            self.average = self.decay * self.average + (1 - self.decay) * losses.mean().to(self.average.dtype)
            self.seen = self.decay * self.seen + (1 - self.decay)
        return before.to(losses.dtype)


@dataclass(frozen=True, eq=False)
class _WithNoise(PointwiseScore):
    """score / T + g, with the noise g that `Sample` adds for the same seed: its largest is the key drawn."""

    score: Score
    inverse_temperature: float

    def transform(self, logits: Array, tile: Tile) -> Array:
        """The noisy logits; −inf stays."""
        return logits * self.inverse_temperature + tile.gumbel(logits, random.SAMPLE)
