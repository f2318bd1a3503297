"""Measurement of the time of random PyTorch calls on every kernel that can run them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch

from qkv.core.arrays import namespace
from qkv.core.progress import Progress, report
from qkv.core.typing import Array, Num
from qkv.engine import attend, explain
from qkv.kernels import KERNELS
from qkv.kernels.runtime.context import with_torch_defaults
from qkv.masks import Causal
from qkv.normalizers import Entmax, Entmax15, Normalizer, Sigmoid, Softmax, Sparsemax, TopK
from qkv.plan.time_model import FEW_KEYS, table_key
from qkv.scores import Additive, Bilinear, Cosine, Gated, Gaussian, Laplace, RelativePosition, ScaledDot, Softcap
from qkv.scores.base import GeneralScore, Score

_LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_WIDTHS = (16, 32, 64, 128)
_MAX_ELEMENTS = {
    **dict.fromkeys(("product", "mapped product", "squared distance", "cosine"), 1e7),
    **dict.fromkeys(("changed product", "biased product", "gated"), 1e7),
    "narrow pairwise": 1e7,
    "tanh": 5e7,
    "distance": 3e8,
    "pairwise": 2e7,
}
"""Largest number of pairs times elements per logit, by the kind of score, so that most calls take less than 0.1 s."""
_NORMALIZERS: dict[str, Callable[[], Normalizer]] = {
    "top-k": lambda: TopK(8),
    "power 1 of few keys": Sparsemax,
    "power 1 of many keys": Sparsemax,
    "power 2 of few keys": Entmax15,
    "power 2 of many keys": Entmax15,
    "other power": lambda: Entmax(1.25),
    "sigmoid": Sigmoid,
}
"""Normalizers other than softmax that are measured, with a score drawn from `_MAX_ELEMENTS`."""
_MAX_PAIRS = 2.5e6
"""Largest number of pairs for these normalizers, whose slowest kernel takes up to 0.2 µs for each pair."""
MIN_CALLS = 8
"""Smallest number of measured calls of each kind, forward and with a gradient."""
_ROUNDS = 16
_SLOW_SECONDS = 0.05
"""Time above which a call is not repeated after its second run; calls that take less are repeated until it passed."""


@dataclass(frozen=True, eq=False)
class _Manhattan(GeneralScore):
    """Score −Σ |q − k|, as an example of a score that users write."""

    def compare(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"]
    ) -> Num[Array, "*#batch q k"]:
        """Return the negative sum of the absolute differences of each pair."""
        difference = query[..., :, None, :] - key[..., None, :, :]
        return -namespace(query).sum(abs(difference), axis=-1)


@dataclass(frozen=True, eq=False)
class _SquaredProduct(GeneralScore):
    """Score −(<q, k> / width − 1)², as an example of a score that users write with one array element per logit."""

    def compare(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"]
    ) -> Num[Array, "*#batch q k"]:
        """Return the negative squared distance of each inner product from the width, divided by the squared width."""
        xp = namespace(query)
        product = xp.matmul(query, xp.matrix_transpose(key)) / query.shape[-1]
        return -((product - 1) * (product - 1))

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        return 1


@dataclass(frozen=True)
class Measurement:
    """Measured times of one call.

    Attributes:
        kind: kind of the score, or of the normalizer if it is not softmax.
        shape: batch elements, length and width.
        gradient: whether gradients were computed.
        causal: whether the mask was causal.
        seconds: by table key, the shortest time of the call on a kernel.
        work: by table key, the amounts of work.
    """

    kind: str
    shape: tuple[int, int, int]
    gradient: bool
    causal: bool
    seconds: Mapping[str, float]
    work: Mapping[str, Mapping[str, float]]


@with_torch_defaults
def measure_kernels(seconds: float, seed: int = 0, progress: Progress | None = None) -> list[Measurement]:
    """Measure random calls on one thread until `seconds` of time have passed, and return the measurements.

    At least `MIN_CALLS` calls of each kind are measured.

    Times are CPU times of this process, which other processes on a shared machine affect least.

    Args:
        seconds: duration.
        seed: seed of the random calls.
        progress: callback for the progress.
    """
    draw, start = random.Random(seed), time.monotonic()
    results: list[Measurement] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        kinds = [(kind, gradient) for kind in (*_MAX_ELEMENTS, *_NORMALIZERS) for gradient in (False, True)]
        least = MIN_CALLS * len(kinds)
        while (passed := time.monotonic() - start) < seconds or len(results) < least:
            done = min(passed / seconds, len(results) / least)
            report(progress, "measuring kernels", int(100 * done), 100)
            kind, gradient = kinds[len(results) % len(kinds)]
            results.append(_measure(_draw_call(draw, kind, gradient)))
    finally:
        torch.set_num_threads(threads)
    return results


@dataclass(frozen=True)
class _DrawnCall:
    """Random call to measure.

    Attributes:
        kind: as in `Measurement`.
        score: kind of the score.
        shape: batch elements, length and width.
        gradient: whether gradients are computed.
        causal: whether the mask is causal.
        heads: whether the arrays have an axis of heads.
    """

    kind: str
    score: str
    shape: tuple[int, int, int]
    gradient: bool
    causal: bool
    heads: bool


def _draw_call(draw: random.Random, kind: str, gradient: bool) -> _DrawnCall:
    while True:
        score = draw.choice(tuple(_MAX_ELEMENTS)) if kind in _NORMALIZERS else kind
        batch, length, width = draw.choice(_BATCHES), draw.choice(_LENGTHS), draw.choice(_WIDTHS)
        pairs = batch * length * length
        if pairs * (width if score in ("tanh", "distance", "pairwise") else 1) > _MAX_ELEMENTS[score]:
            continue
        if kind in _NORMALIZERS and pairs > _MAX_PAIRS:
            continue
        if kind.endswith("keys") and (length <= FEW_KEYS) != ("few" in kind):
            continue
        shape = batch, length, width
        return _DrawnCall(kind, score, shape, gradient, draw.random() < 0.5, draw.random() < 0.5)


def _score(kind: str, width: int) -> Score:
    weight = torch.randn(width, width) / width**0.5
    return {
        "product": ScaledDot(),
        "mapped product": Bilinear(weight),
        "squared distance": Gaussian(4.0),
        "cosine": Cosine(0.5),
        "changed product": Softcap(ScaledDot(), 5.0),
        "biased product": RelativePosition(ScaledDot(), torch.randn(32)),
        "gated": Gated(torch.randn(width) * width**-0.5, torch.randn(width) * width**-0.5),
        "tanh": Additive(weight, weight, None, torch.randn(width)),
        "distance": Laplace(2.0),
        "pairwise": _Manhattan(),
        "narrow pairwise": _SquaredProduct(),
    }[kind]


def _measure(drawn: _DrawnCall) -> Measurement:
    # PyTorch's fused attention has axes of batch and heads, and rearranges arrays that have not.
    axes, gradient = (1, *drawn.shape) if drawn.heads else drawn.shape, drawn.gradient
    query, key, value = (torch.randn(axes, requires_grad=gradient) for _ in range(3))
    direction = torch.randn(axes)
    options = {
        "score": _score(drawn.score, drawn.shape[2]),
        "normalizer": _NORMALIZERS.get(drawn.kind, Softmax)(),
        "mask": Causal() if drawn.causal else None,
        "memory": "8 GiB",
    }
    plan = explain(query, key, value, **options, gradient=gradient)  # type: ignore[arg-type]
    names = [plan.kernel.name, *(name for name, _ in plan.slower)]
    times: dict[str, float] = {}
    for turn in range(_ROUNDS):
        for name in names:
            if turn > 1 and turn * times[name] > _SLOW_SECONDS:
                continue
            before = time.process_time()
            output = cast("torch.Tensor", attend(query, key, value, **options, kernel=name))  # type: ignore[arg-type]
            if gradient:
                torch.autograd.grad(output, (query, key, value), direction)
            passed = time.process_time() - before
            times[name] = passed if turn == 0 else min(times[name], passed)
    problem = plan.problem
    keys = {name: table_key(name, problem) for name in names}
    work = {kernel.name: kernel.work(problem) for kernel in KERNELS if kernel.name in names}
    return Measurement(
        drawn.kind,
        drawn.shape,
        gradient,
        drawn.causal,
        {key: times[name] for name, key in keys.items() if key is not None},
        {key: amounts for name, key in keys.items() if key is not None and (amounts := work[name]) is not None},
    )
