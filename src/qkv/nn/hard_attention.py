"""Hard attention: sample one key per query and return its value.

    j ~ softmax(score / T)          output = v_j

Sampling has no gradient. Three estimators replace it:

    REINFORCE          ∇ E[L] = E[(L − b) ∇ log p_j + ∇L]          unbiased for every baseline b
    straight-through   forward v_j, backward as if it were Σ_i p_i v_i          biased, low variance
    Gumbel-softmax     forward v_j, backward as Σ_i y_i v_i with y = softmax((score / T + g) / τ), where g is the
                       noise of the sample          biased; less as τ falls, with more variance

For each of them, the gradient of the values is that of v_j, as of `gumbel_softmax(logits, hard=True) @ value` in
PyTorch: the value of a key that was not drawn has none.

Sources: Xu et al. (2015), Show, attend and tell, section 4.1, https://arxiv.org/abs/1502.03044; Williams
(1992), Simple statistical gradient-following algorithms, https://doi.org/10.1007/BF00992696; Bengio, Léonard,
Courville (2013), https://arxiv.org/abs/1308.3432; Jang, Gu, Poole (2017), https://arxiv.org/abs/1611.01144.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypedDict, cast

import torch
from torch import Tensor

from qkv.core import random
from qkv.core.checks import check_choice
from qkv.core.map_batch import align_batch
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.core.typing import Float, Int, PairArray
from qkv.engine import attend, observe
from qkv.errors import OptionError, ShapeError
from qkv.masks import Mask
from qkv.masks.base import and_masks, require_mask
from qkv.nn.part_module import PartModule
from qkv.nn.scores.base import ScoreLike, wrap_score
from qkv.normalizers import Sample, Softmax
from qkv.readouts import Dense, LogProbability, SampledKey, TopWeights
from qkv.scores import Score
from qkv.scores.wrapper import PointwiseScore

Gradient = Literal["reinforce", "straight-through", "gumbel"]
Baseline = Literal["moving", "exact"]


class HardAttentionOutput(NamedTuple):
    """Values, indices and log probabilities of the chosen keys, as returned by `HardAttention`.

    Attributes:
        output: value of the chosen key, `(*batch, q, value_width)`; 0 where no key is allowed.
        keys: index of the chosen key, `(*batch, q)`; −1 where no key is allowed.
        log_probability: differentiable log probability of the choice in nats, `(*batch, q)`.

    Example:
        >>> import torch
        >>> from qkv import nn
        >>> chosen = nn.HardAttention()(torch.zeros(1, 2), torch.zeros(3, 2), torch.eye(3), seed=0)
        >>> chosen.output.shape, chosen.keys.shape, chosen.log_probability.exp()
        (torch.Size([1, 3]), torch.Size([1]), tensor([0.3333]))
    """

    output: Float[Tensor, "*batch q value_width"]
    keys: Int[Tensor, "*batch q"]
    log_probability: Float[Tensor, "*batch q"]


class _CallOptions(TypedDict):
    score: Score
    mask: Mask | None
    positions: Positions | None


class HardAttention(torch.nn.Module):
    """Attention that samples one key per query during training and takes the most likely one in evaluation.

    Args:
        score: a score, or a learned one, as in `nn.Attention`.
        mask: as in `qkv.attend`.
        temperature: temperature T of the sampled softmax.
        gradient: gradient estimator: "reinforce", which needs `objective`, "straight-through" or "gumbel".
        baseline: baseline b of REINFORCE: "moving", a moving average of earlier losses; "exact", the expected
            loss, passed to `objective`; None means 0.
        decay: decay of the moving average.
        sharpness: temperature τ of the Gumbel-softmax.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)`, value `(*batch, k, value_width)` ->
        `HardAttentionOutput`

    Raises:
        OptionError: if an option is not allowed.

    Source: see the module docstring.

    Example:
        >>> attention = HardAttention()
        >>> drawn = attention(torch.zeros(1, 2), torch.zeros(4, 2), torch.eye(4), seed=1)
        >>> drawn.output[0, drawn.keys[0]], drawn.log_probability.exp()
        (tensor(1.), tensor([0.2500]))
    """

    average: Float[Tensor, ""]
    seen: Float[Tensor, ""]

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
        check_choice("gradient", gradient, ("reinforce", "straight-through", "gumbel"))
        check_choice("baseline", baseline, (None, "moving", "exact"))
        if not 0 <= decay < 1:
            raise OptionError(f"decay must be a number in [0, 1), got {decay!r}. Pass, for example, 0.9.")
        self.score = wrap_score(score)
        self.mask = PartModule(None if mask is None else require_mask(mask))
        self.sampler, self.soft = Sample(temperature), Softmax(temperature)
        self.sharpened_softmax = Softmax(sharpness)
        self.gradient, self.baseline, self.decay = gradient, baseline, decay
        # Σ decay^i L and Σ decay^i, whose ratio is a moving average without bias towards its initial value.
        self.register_buffer("average", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))

    def reset_parameters(self) -> None:
        """Reset the moving average of losses, the baseline of REINFORCE, to 0."""
        self.average.zero_()
        self.seen.zero_()

    def forward(
        self,
        query: Float[Tensor, "*#batch q width"],
        key: Float[Tensor, "*#batch k key_width"],
        value: Float[Tensor, "*#batch k value_width"] | None = None,
        *,
        mask: Mask | None = None,
        positions: Positions | None = None,
        seed: int | None = None,
    ) -> HardAttentionOutput:
        """Return one key per query with its value and log probability: a sampled key, or the likeliest in evaluation.

        Args:
            query: queries.
            key: keys.
            value: values; None means the key.
            mask: further mask, combined with the module's own.
            positions: positions of the queries among the keys, as in `qkv.attend`.
            seed: seed of the sample; None means PyTorch's global generator.
        """
        value = key if value is None else value
        options = self._options(query, key, mask, positions)
        if not self.training:
            return self._most_likely(query, key, value, options)
        seed = int(torch.randint(2**62, ()).item()) if seed is None else seed
        readouts = (SampledKey(), LogProbability())
        sampled = observe(query, key, value, normalizer=self.sampler, readouts=readouts, seed=seed, **options)
        output, (keys, log_probability) = cast(Tensor, sampled.output), sampled.readouts
        if self.gradient != "reinforce":
            normalizer = self.soft
            if self.gradient == "gumbel":
                options["score"] = _NoisyScore(options["score"], 1.0 / float(self.sampler.temperature))
                normalizer = self.sharpened_softmax
            soft = cast(Tensor, attend(query, key, value.detach(), normalizer=normalizer, seed=seed, **options))
            output = output + (soft - soft.detach())
        return HardAttentionOutput(output, keys, log_probability)

    def objective(
        self,
        drawn: HardAttentionOutput,
        losses: Float[Tensor, "*batch"],
        expected: Float[Tensor, "*batch"] | None = None,
    ) -> Float[Tensor, "*batch"]:
        """Return the losses with the REINFORCE gradient. Training minimizes their mean.

            L + (L − b) · (log p − detach(log p))          equal to L in value

        Args:
            drawn: the result of `forward`.
            losses: losses `(*batch)`, `(*batch, q)`, or any other leading axes of `drawn.keys`. A loss of several
                sampled keys passes its gradient to all of them.
            expected: the exact baseline, such as `self.expected(…)`; it is detached.

        Raises:
            OptionError: if the baseline is "exact" and `expected` is None.
            ShapeError: the shape of the losses does not consist of leading axes of `drawn.keys`.
        """
        shape = tuple(drawn.log_probability.shape)
        if tuple(losses.shape) != shape[: losses.ndim]:
            raise ShapeError(
                f"losses must have the shape of the leading axes of drawn.keys, such as {shape[:1]} or {shape}, got "
                f"{tuple(losses.shape)}. Pass one loss per batch element, or one per sampled key."
            )
        log_probability = drawn.log_probability
        if losses.ndim < len(shape):
            log_probability = log_probability.flatten(losses.ndim).sum(-1)
        fixed = losses.detach()
        score_function = log_probability - log_probability.detach()
        return losses + (fixed - self._baseline(fixed, expected)) * score_function

    def expected(
        self,
        query: Float[Tensor, "*#batch q width"],
        key: Float[Tensor, "*#batch k key_width"],
        value: Float[Tensor, "*#batch k value_width"],
        loss: Callable[[Float[Tensor, "*batch q k value_width"]], Float[Tensor, "*batch q k"]],
        *,
        mask: Mask | None = None,
        positions: Positions | None = None,
    ) -> Float[Tensor, "*batch q"]:
        """Return the expected loss Σ_j p_j L(v_j) of each query with its exact gradient, from the losses of all keys.

        Args:
            query: as in `forward`.
            key: as in `forward`.
            value: as in `forward`.
            loss: function from the k values for each query, `(*batch, q, k, value_width)`, to losses
                `(*batch, q, k)`.
            mask: as in `forward`.
            positions: as in `forward`.
        """
        options = self._options(query, key, mask, positions)
        observed = observe(query, key, value, normalizer=self.soft, readouts=[Dense()], **options)
        weights: Tensor = observed.readouts[0]
        candidates = value.unsqueeze(-3).expand(*weights.shape, value.shape[-1])
        return (weights * loss(candidates)).sum(-1)

    def extra_repr(self) -> str:
        """Return the sampled softmax, the gradient estimator and the baseline as text for `print`."""
        baseline = f", baseline={self.baseline!r}" if self.gradient == "reinforce" else ""
        return f"{self.sampler}, gradient={self.gradient!r}{baseline}"

    def _options(
        self,
        query: Float[Tensor, "*#batch q width"],
        key: Float[Tensor, "*#batch k key_width"],
        mask: Mask | None,
        positions: Positions | None,
    ) -> _CallOptions:
        axes = max(query.ndim, key.ndim) - 3
        score: Score = align_batch(self.score(), max(axes, 0), None, True)
        return {"score": score, "mask": and_masks(self.mask(), mask), "positions": positions}

    def _most_likely(
        self,
        query: Float[Tensor, "*#batch q width"],
        key: Float[Tensor, "*#batch k key_width"],
        value: Float[Tensor, "*#batch k value_width"],
        options: _CallOptions,
    ) -> HardAttentionOutput:
        observed = observe(query, key, value, normalizer=self.soft, readouts=[TopWeights(1)], **options)
        top = observed.readouts[0]
        keys, weight = top.keys[..., 0].long(), top.weights[..., 0]
        allowed = weight > 0
        rows = keys.clamp_min(0)[..., None].expand(*keys.shape, value.shape[-1])
        output = value.expand(*keys.shape[:-1], *value.shape[-2:]).gather(-2, rows)
        output = torch.where(allowed[..., None], output, 0.0)
        return HardAttentionOutput(output, torch.where(allowed, keys, -1), torch.where(allowed, weight, 1.0).log())

    def _baseline(
        self, losses: Float[Tensor, "*batch"], expected: Float[Tensor, "*batch"] | None
    ) -> Float[Tensor, "*batch"] | Float[Tensor, ""] | float:
        if self.baseline == "exact":
            if expected is None:
                raise OptionError(
                    'expected must be a tensor with baseline="exact", got None. '
                    "Pass expected=module.expected(query, key, value, loss)."
                )
            return expected.detach()
        if self.baseline is None:
            return 0.0
        before = self.average / self.seen.clamp_min(1e-30)
        if self.training:
            # The average is updated after `before` is computed: a baseline that depends on its own sample would bias
            # the gradient.
            self.average = self.decay * self.average + (1 - self.decay) * losses.mean().to(self.average.dtype)
            self.seen = self.decay * self.seen + (1 - self.decay)
        return before.to(losses.dtype)


@dataclass(frozen=True, eq=False)
class _NoisyScore(PointwiseScore):
    """Score that divides an inner score by T and adds the Gumbel noise of `Sample` for the same seed."""

    score: Score
    inverse_temperature: float

    def transform(self, logits: PairArray, tile: Tile) -> PairArray:
        return logits * self.inverse_temperature + tile.gumbel(logits, random.SAMPLE)
