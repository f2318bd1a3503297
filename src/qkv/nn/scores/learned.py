"""Modules that hold the learned parameters of scores of `qkv.scores`.

Each class declares the fields of its score, and for each parameter the shape, the initial values, and whether the
logarithm is stored. All classes take the arguments of `LearnedScore`; their `Args` list further keyword arguments.
`Boxcar` is absent: its logits are 0 or −inf, so its bandwidth would get no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.init import constant_, normal_, uniform_, zeros_

from qkv import scores
from qkv.core.typing import Float
from qkv.errors import OptionError
from qkv.nn.part_module import PartModule
from qkv.nn.scores.base import Initial, LearnedScore, ScoreLike, build_score

__all__ = ["Additive", "Bilinear", "Gated", "SeparableGate", "Cosine", "Custom", "Features", "SumOf"]
__all__ += ["Gaussian", "Laplace", "Epanechnikov", "Triangular"]


def glorot_(x: Float[Tensor, "*heads hidden width"], hidden: int) -> Float[Tensor, "*heads hidden width"]:
    """Initialize weights `(*heads, hidden, width)` in place, uniformly as in Glorot and Bengio (2010)."""
    bound = math.sqrt(6 / (x.shape[-1] + hidden))
    return uniform_(x, -bound, bound)


def positive(name: str, number: float | None, default: float) -> Initial:
    """Declare a positive parameter of a score, stored as its logarithm, that starts at `number`, else at `default`.

    Raises:
        OptionError: if the number is not positive.
    """
    number = default if number is None else number
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not number > 0:
        raise OptionError(f"{name} must be a positive number, got {number!r}. Pass, for example, 1.0.")
    return Initial((), partial(constant_, val=math.log(number)), log=True)


class Additive(LearnedScore):
    """`scores.Additive` with learned W₁, W₂, b and v: logit(q, k) = vᵀ tanh(W₁ q + W₂ k + b).

    W₁ and W₂ are initialized uniformly as in Glorot and Bengio (2010),
    https://proceedings.mlr.press/v9/glorot10a.html, b with 0, and v uniformly with variance 1/hidden, so that initial
    logits have variance at most 1. Bahdanau et al. (2015), https://arxiv.org/abs/1409.0473, initialize v with 0, which
    leaves W₁ and W₂ without a gradient in the first step.

    Args:
        hidden: number of hidden units; None means the larger width.
        bias: whether the score has the bias b.

    Example:
        >>> import torch, qkv
        >>> score = Additive(4, 6, hidden=8)
        >>> qkv.attend(torch.randn(3, 4), torch.randn(5, 6), torch.randn(5, 2), score=score()).shape
        torch.Size([3, 2])
    """

    core = scores.Additive

    def fields(self, *, hidden: int | None = None, bias: bool = True) -> dict[str, object]:
        """Return the fields of `scores.Additive`: W₁, W₂, v and b as learned parameters; b is None without bias."""
        self.hidden = hidden = max(self.query_width, self.key_width) if hidden is None else hidden
        bound = math.sqrt(3 / hidden)
        return {
            "query_weight": Initial((hidden, self.query_width), partial(glorot_, hidden=hidden)),
            "key_weight": Initial((hidden, self.key_width), partial(glorot_, hidden=hidden)),
            "vector": Initial((hidden,), partial(uniform_, a=-bound, b=bound)),
            "bias": Initial((hidden,), zeros_) if bias else None,
        }


class Bilinear(LearnedScore):
    """`scores.Bilinear` with a learned W, or U and V: logit(q, k) = qᵀ W k or qᵀ U Vᵀ k.

    This is the "general" score of Luong et al. (2015). Parameters are initialized from a normal distribution whose
    standard deviation gives the logits of unit-variance inputs variance 1, as in `ScaledDot` (Vaswani et al. (2017),
    https://arxiv.org/abs/1706.03762, footnote 4).

    Args:
        rank: rank of U and V; None means a full W.

    Example:
        >>> Bilinear(4, 6)().weight.shape
        torch.Size([4, 6])
    """

    core = scores.Bilinear

    def fields(self, *, rank: int | None = None) -> dict[str, object]:
        """Return the fields of `scores.Bilinear`: W, or its factors U and V, as learned parameters."""
        q, k = self.query_width, self.key_width
        self.rank = rank
        if rank is None:
            return {"weight": Initial((q, k), partial(normal_, std=(q * k) ** -0.5)), "key_factor": None}
        return {
            "weight": Initial((q, rank), partial(normal_, std=q**-0.5 * rank**-0.25)),
            "key_factor": Initial((k, rank), partial(normal_, std=k**-0.5 * rank**-0.25)),
        }


class Gated(LearnedScore):
    """`scores.Gated` with a learned gate: logit(q, k) = σ(<w_q, q> + <w_k, k> + b) · <q, k>.

    Initially w is 0 and every gate is 1/√width, so that the score equals `ScaledDot`. Query and key must have the
    same width.

    Example:
        >>> x, y = torch.randn(3, 4), torch.randn(5, 4)
        >>> torch.allclose(Gated(4)()(x, y), scores.ScaledDot()(x, y), atol=1e-6)
        True
    """

    core = scores.Gated

    def fields(self) -> dict[str, object]:
        """Return the fields of `scores.Gated`: the gate's weights w_q and w_k and bias b as learned parameters."""
        return {
            "query_weight": Initial((self.query_width,), zeros_),
            "key_weight": Initial((self.key_width,), zeros_),
            "bias": Initial((), partial(constant_, val=_bias_of_gate(self.query_width**-0.5))),
        }


class SeparableGate(LearnedScore):
    """`scores.SeparableGate` with learned gates of query and key: σ(<w_q, q> + b_q) · σ(<w_k, k> + b_k) · <q, k>.

    Initially w is 0 and the product of both gates is 1/√width, so that the score equals `ScaledDot`. Query and key
    must have the same width.

    Example:
        >>> x, y = torch.randn(3, 4), torch.randn(5, 4)
        >>> torch.allclose(SeparableGate(4)()(x, y), scores.ScaledDot()(x, y), atol=1e-6)
        True
    """

    core = scores.SeparableGate

    def fields(self) -> dict[str, object]:
        """Return the fields of `scores.SeparableGate`: weights and biases of both gates as learned parameters."""
        bias = Initial((), partial(constant_, val=_bias_of_gate(self.query_width**-0.25)))
        return {
            "query_weight": Initial((self.query_width,), zeros_),
            "key_weight": Initial((self.key_width,), zeros_),
            "query_bias": bias,
            "key_bias": bias,
        }


def _bias_of_gate(gate: float) -> float:
    """Return the bias whose sigmoid is `gate`, or 0.9 if `gate` is larger."""
    gate = min(gate, 0.9)  # closer to 1 the sigmoid has almost no gradient
    return math.log(gate / (1 - gate))


class Cosine(LearnedScore):
    """`scores.Cosine` with a learned temperature T: logit(q, k) = <q, k> / (‖q‖ ‖k‖ T).

    The initial T is 1/√width, the standard deviation of the cosine of random vectors, so that initial logits have
    variance 1. Liu et al. (2022), Swin transformer V2, https://arxiv.org/abs/2111.09883, section 3.2, also
    learn T for each head. Query and key must have the same width.

    Args:
        temperature: initial temperature; None means 1/√width.

    Example:
        >>> Cosine(16)().temperature.item()
        0.25
    """

    core = scores.Cosine

    def fields(self, *, temperature: float | None = None) -> dict[str, object]:
        """Return the field of `scores.Cosine`: a positive learned temperature."""
        return {"temperature": positive("temperature", temperature, self.query_width**-0.5)}


class _DistanceScore(LearnedScore):
    default_bandwidth: ClassVar[staticmethod[[int], float]]

    def fields(self, *, bandwidth: float | None = None) -> dict[str, object]:
        """Return the field of a distance kernel: a positive learned bandwidth."""
        return {"bandwidth": positive("bandwidth", bandwidth, type(self).default_bandwidth(self.query_width))}


class Gaussian(_DistanceScore):
    """`scores.Gaussian` with a learned bandwidth h: logit(q, k) = −‖q − k‖² / 2h².

    The initial h is width^(1/4), for which the logits equal those of `ScaledDot` plus a term of the query alone and a
    term of the key alone.

    Args:
        bandwidth: initial bandwidth; None means width^(1/4).

    Example:
        >>> Gaussian(16)().bandwidth.item()
        2.0
    """

    core = scores.Gaussian
    default_bandwidth = staticmethod(lambda width: width**0.25)


class Laplace(_DistanceScore):
    """`scores.Laplace` with a learned bandwidth h: logit(q, k) = −‖q − k‖ / h.

    The initial h is 1, because distances of unit-variance vectors have a standard deviation of about 1 at every width.

    Example:
        >>> Laplace(16)().bandwidth.item()
        1.0
    """

    core = scores.Laplace
    default_bandwidth = staticmethod(lambda width: 1.0)


class _CompactDistanceScore(_DistanceScore):
    default_bandwidth = staticmethod(lambda width: 2 * math.sqrt(2 * width))


class Epanechnikov(_CompactDistanceScore):
    """`scores.Epanechnikov` with a learned bandwidth h: logit(q, k) = log(1 − ‖q − k‖² / h²), or −inf beyond h.

    The initial h is 2 √(2 width), twice the typical distance of unit-variance vectors, because a kernel that is 0
    beyond h only gets gradients from keys within h.

    Example:
        >>> Epanechnikov(2)().bandwidth.item()
        4.0
    """

    core = scores.Epanechnikov


class Triangular(_CompactDistanceScore):
    """`scores.Triangular` with a learned bandwidth h: logit(q, k) = log(1 − ‖q − k‖ / h), or −inf beyond h.

    The initial h is that of `Epanechnikov`.

    Example:
        >>> Triangular(2)().bandwidth.item()
        4.0
    """

    core = scores.Triangular


class _GivenParameters(LearnedScore):
    """Base class of scores with a function and learned parameters whose initial values are given by the caller."""

    def learn(self, parameters: tuple[Float[Tensor, "*_"], ...]) -> None:
        """Create learned parameters from copies of the arrays `parameters`."""
        self.initial_values = tuple(x.detach().clone() for x in parameters)
        self.parameters_given = torch.nn.ParameterList(
            [torch.nn.Parameter(x.clone().to(**self.factory_kwargs)) for x in self.initial_values]
        )

    def reset_parameters(self) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters_given, self.initial_values, strict=True):
                parameter.copy_(value)


class Custom(_GivenParameters):
    """`scores.Custom` with learned parameters: logit(q, k) = function(query, key, *parameters).

    Initial values are given by the caller. The leading axes of a parameter may be the heads, as in `scores.Custom`.

    Args:
        function: maps `(query (*batch, q, query_width), key (*batch, k, key_width), *parameters)` to logits
            `(*batch, q, k)`; each logit must depend on its own query and key alone.
        parameters: initial values, passed to the function after the key.
        elements: as in `scores.Custom`.
        batch_axes: as in `scores.Custom`.

    Example:
        >>> far = Custom(1, function=lambda q, k, s: -s * (q - k.mT) ** 2, parameters=(torch.ones(()),))
        >>> far()(torch.tensor([[1.0]]), torch.tensor([[3.0]])).item(), [n for n, _ in far.named_parameters()]
        (-4.0, ['parameters_given.0'])
    """

    def build(
        self,
        *,
        function: Callable[..., Float[Tensor, "*batch q k"]],
        parameters: tuple[Float[Tensor, "*_"], ...] = (),
        elements: int | None = None,
        batch_axes: tuple[int, ...] | None = None,
    ) -> None:
        """Store the function, and create learned parameters from copies of the arrays `parameters`."""
        self.function, self.elements, self.batch_axes = function, elements, batch_axes
        self.learn(parameters)

    def forward(self) -> scores.Score:
        return scores.Custom(self.function, (*self.parameters_given,), self.elements, batch_axes=self.batch_axes)


class Features(_GivenParameters):
    """`scores.Features` with learned parameters: logit(q, k) = <φ(q), φ(k)>, φ(x) = function(x, *parameters).

    Initial values are given by the caller. The leading axes of a parameter may be the heads, as in `scores.Custom`.

    Args:
        function: as in `scores.Features`.
        parameters: initial values, passed to the function after its argument.
        width: number of features that the function returns; None: the width of the queries.

    Example:
        >>> squares = Features(1, function=lambda x, s: s * x**2, parameters=(torch.ones(()),))
        >>> squares()(torch.tensor([[2.0]]), torch.tensor([[3.0]])).item(), [n for n, _ in squares.named_parameters()]
        (36.0, ['parameters_given.0'])
    """

    def build(
        self,
        *,
        function: str | Callable[..., Float[Tensor, "*batch n features"]] = "elu",
        parameters: tuple[Float[Tensor, "*_"], ...] = (),
        width: int | None = None,
    ) -> None:
        """Store the function, and create learned parameters from copies of the arrays `parameters`."""
        self.function, self.width = function, width
        self.learn(parameters)

    def forward(self) -> scores.Score:
        return scores.Features(self.function, (*self.parameters_given,), self.width)


class SumOf(LearnedScore):
    """`scores.SumOf` with inner scores that may be learned: logit(q, k) = Σ_s score_s(q, k).

    Args:
        score: scores, learned scores, or callables that build them; at least one.

    Raises:
        OptionError: if no score is given.

    Example:
        >>> score = SumOf(4, score=(scores.ScaledDot, scores.Gaussian(2.0)))()
        >>> score(torch.randn(2, 4), torch.randn(5, 4)).shape
        torch.Size([2, 5])
    """

    def build(self, *, score: tuple[ScoreLike, ...]) -> None:
        if not isinstance(score, (tuple, list)) or not score:
            raise OptionError(
                f"score must be a non-empty tuple of scores, got {score!r}. "
                "Pass, for example, (scores.Dot(), scores.Gaussian())."
            )
        self.score = torch.nn.ModuleList(
            [build_score(one, self.query_width, self.key_width, self.heads, **self.factory_kwargs) for one in score]
        )

    def reset_parameters(self) -> None:
        for one in self.score:
            assert isinstance(one, (LearnedScore, PartModule))
            one.reset_parameters()

    def forward(self) -> scores.Score:
        return scores.SumOf(tuple([one() for one in self.score]))
