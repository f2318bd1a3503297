"""Modules that hold the learned parameters of scores of `qkv.scores` that modify another score.

All classes take the arguments of `LearnedWrapper`; their `Args` list further keyword arguments.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn.init import normal_, trunc_normal_, zeros_

from qkv import scores
from qkv.core.checks import check_integers
from qkv.core.typing import Float, Int
from qkv.nn.scores.base import Initial, LearnedWrapper, ScoreLike, build_score
from qkv.nn.scores.learned import glorot_, positive

__all__ = ["Softcap", "Biased", "ALiBi", "Decay", "QuadraticPosition", "RelativePosition", "ClassTable", "Projected"]


class Softcap(LearnedWrapper):
    """`scores.Softcap` with a learned cap: logit = cap · tanh(score(q, k) / cap).

    Gemma Team (2024), Gemma 2, https://arxiv.org/abs/2408.00118, section 2, use a fixed cap of 50.

    Args:
        cap: initial cap.

    Example:
        >>> score = Softcap(4, cap=2.0)
        >>> bool((score()(9 * torch.ones(1, 4), 9 * torch.ones(1, 4)) <= 2).all())
        True
    """

    core = scores.Softcap

    def fields(self, *, cap: float = 50.0) -> dict[str, object]:
        """Return the field of `scores.Softcap`: a positive learned cap."""
        return {"cap": positive("cap", cap, 50.0)}


class Biased(LearnedWrapper):
    """`scores.Biased` with a learned bias for each pair or each key, for sequences of a fixed length.

    The bias is initialized from a normal distribution with standard deviation 0.02, truncated at ±0.04, as in the code
    of Liu et al. (2021), Swin transformer, https://arxiv.org/abs/2103.14030.

    Args:
        k: number of keys.
        q: number of queries; None means one bias per key, the same for all queries.

    Example:
        >>> Biased(4, k=3)().per_key.shape, Biased(4, k=3, q=2, heads=8)().bias.shape
        (torch.Size([3]), torch.Size([8, 2, 3]))
    """

    bias: Float[Tensor, "*heads k"] | Float[Tensor, "*heads q k"]

    def fields(self, *, k: int, q: int | None = None) -> dict[str, object]:
        """Return the field of `scores.Biased`: a learned bias per key or, if `q` is not None, per pair."""
        self.per_key = q is None
        shape = (k,) if q is None else (q, k)
        return {"bias": Initial(shape, partial(trunc_normal_, std=0.02, a=-0.04, b=0.04))}

    def forward(self) -> scores.Score:
        if self.per_key:
            return scores.Biased(self.score(), per_key=self.bias)
        return scores.Biased(self.score(), self.bias)


class ALiBi(LearnedWrapper):
    """`scores.ALiBi` with a learned slope per head: logit = score(q_i, k_j) − slope · |i − j|.

    The initial slopes are 2^(−8/heads), 2^(−16/heads), … as in Press et al. (2022), https://arxiv.org/abs/2108.12409,
    section 3, which uses fixed slopes (`learned=False`). For a single head or a shared slope it is 2^(−4).

    Args:
        learned: whether the slopes are trained.

    Example:
        >>> ALiBi(4, heads=4)().slope
        tensor([0.2500, 0.0625, 0.0156, 0.0039], grad_fn=<ExpBackward0>)
    """

    core = scores.ALiBi

    def fields(self, *, learned: bool = True) -> dict[str, object]:
        """Return the field of `scores.ALiBi`: a positive slope, which is trained if `learned` is True."""
        return {"slope": Initial((), _fill_log_slopes, learned, log=True)}


class Decay(LearnedWrapper):
    """`scores.Decay` with a decay per head: logit = score(q_i, k_j) · e^(−rate · |i − j|).

    The initial decays e^(−rate) are 1 − 2^(−5), 1 − 2^(−6), … as in Sun et al. (2023), Retentive Network,
    https://arxiv.org/abs/2307.08621, section 2.2, which keeps them fixed (`learned=False`).

    Args:
        learned: whether the decays are trained.

    Example:
        >>> Decay(4, heads=3, score=scores.Dot(0.5))().log_decay.exp()
        tensor([0.9688, 0.9844, 0.9922], grad_fn=<ExpBackward0>)
    """

    log_rate: Float[Tensor, "*heads"]

    def fields(self, *, learned: bool = True) -> dict[str, object]:
        """Return a positive rate, which is trained if `learned` is True."""
        return {"rate": Initial((), _fill_log_rates, learned, log=True)}

    def forward(self) -> scores.Score:
        return scores.Decay(self.score(), -self.log_rate.exp())


class QuadraticPosition(LearnedWrapper):
    """`scores.QuadraticPosition` with a learned coefficient per head: logit = score(q_i, k_j) − c · (i − j)².

    The initial c is s²/2 with the initial slopes s of `ALiBi`, which gives Gaussian windows with standard deviations
    2^(8/heads), 2^(16/heads), …

    Example:
        >>> (QuadraticPosition(4, heads=4)().coefficient.rsqrt() / 2**0.5).round().tolist()
        [4.0, 16.0, 64.0, 256.0]
    """

    core = scores.QuadraticPosition

    def fields(self) -> dict[str, object]:
        """Return the field of `scores.QuadraticPosition`: a positive learned coefficient."""
        return {"coefficient": Initial((), _fill_log_coefficients, log=True)}


def _slopes(x: Float[Tensor, "*heads"]) -> Float[Tensor, "*heads"]:
    heads = x.numel()  # also 1 for a slope that all heads share
    slopes = [2.0**-4] if heads == 1 else [math.pow(2.0, -8.0 * (n + 1) / heads) for n in range(heads)]
    return torch.tensor(slopes).reshape(x.shape)


def _fill_log_slopes(x: Float[Tensor, "*heads"]) -> None:
    x.copy_(_slopes(x).log())


def _fill_log_rates(x: Float[Tensor, "*heads"]) -> None:
    decays = 1 - 2.0 ** (-5 - torch.arange(x.numel(), dtype=torch.float64))
    x.copy_((-decays.log()).log().reshape(x.shape))


def _fill_log_coefficients(x: Float[Tensor, "*heads"]) -> None:
    x.copy_((_slopes(x) ** 2 / 2).log())


class RelativePosition(LearnedWrapper):
    """`scores.RelativePosition` with a learned bias per bucket and head: score(q_i, k_j) + table[bucket(j − i)].

    The table is initialized from a normal distribution with variance 1/query_width, as in the published code of T5
    (Raffel et al. (2020), https://arxiv.org/abs/1910.10683), which uses the width of the model.

    Args:
        buckets: number of buckets.
        bidirectional: as in `scores.RelativePosition`.
        max_distance: as in `scores.RelativePosition`.

    Example:
        >>> RelativePosition(4, heads=2)().table.shape
        torch.Size([2, 32])
    """

    core = scores.RelativePosition

    def fields(self, *, buckets: int = 32, bidirectional: bool = True, max_distance: int = 128) -> dict[str, object]:
        """Return the fields of `scores.RelativePosition`: a learned table, `bidirectional` and `max_distance`."""
        table = Initial((buckets,), partial(normal_, std=self.query_width**-0.5))
        return {"table": table, "bidirectional": bidirectional, "max_distance": max_distance}


class ClassTable(LearnedWrapper):
    """`scores.ClassTable` with a learned table, for classes that are the same in every call.

    logit = score(q_i, k_j) + T[a_i, b_j]. The initial table is 0, so that the score initially equals the inner score.

    Args:
        query_classes: class of each query, integers `(q,)`, such as the column of each pixel.
        key_classes: class of each key, integers `(k,)`; None means `query_classes`.
        classes: number of query classes and number of key classes; None means the largest class plus 1.

    Example:
        >>> ClassTable(4, query_classes=torch.tensor([0, 1, 2, 0]), heads=2)().table.shape
        torch.Size([2, 3, 3])
    """

    core = scores.ClassTable

    def fields(
        self,
        *,
        query_classes: Int[Tensor, " q"],
        key_classes: Int[Tensor, " k"] | None = None,
        classes: tuple[int, int] | None = None,
    ) -> dict[str, object]:
        """Return the fields of `scores.ClassTable`: a learned table, and the classes of queries and keys."""
        key_classes = query_classes if key_classes is None else key_classes
        if classes is None:
            classes = (int(query_classes.max()) + 1, int(key_classes.max()) + 1)
        return {"table": Initial(classes, zeros_), "query_classes": query_classes, "key_classes": key_classes}


class Projected(LearnedWrapper):
    """`scores.Projected` with learned projections to a common width: logit(q, k) = score(W_Q q, W_K k).

    Projections are initialized uniformly as in Glorot and Bengio (2010), https://proceedings.mlr.press/v9/glorot10a.html.

    Args:
        hidden: width of both projections' outputs; None means the smaller of query_width and key_width.
        score: the inner score, built for width `hidden`.

    Example:
        >>> import torch
        >>> from qkv import nn, scores
        >>> score = nn.Projected(4, 6, hidden=3, score=scores.Gaussian(1.0))  # queries of width 4, keys of width 6
        >>> nn.Attention(score=score)(torch.randn(2, 4), torch.randn(5, 6), torch.randn(5, 1)).shape
        torch.Size([2, 1])
    """

    core = scores.Projected

    def build(self, *, score: ScoreLike = None, hidden: int | None = None, **options: object) -> None:
        self.hidden = hidden = min(self.query_width, self.key_width) if hidden is None else hidden
        check_integers(hidden=hidden)
        self.score = build_score(score, hidden, hidden, self.heads, **self.factory_kwargs)
        self.declare(**self.fields(**options))

    def fields(self) -> dict[str, object]:
        """Return the fields of `scores.Projected`: the weights of both projections as learned parameters."""
        fill = partial(glorot_, hidden=self.hidden)
        return {
            "query_weight": Initial((self.hidden, self.query_width), fill),
            "key_weight": Initial((self.hidden, self.key_width), fill),
        }
