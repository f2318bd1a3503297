"""Claim: readouts of a short call take at most 1.2 times the time of the same attention with the readout by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks._calls import WrongError, apart
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._race import race

SHAPES = ((4, 4, 64, 16), (8, 8, 64, 32), (4, 8, 128, 32), (2, 4, 256, 32), (1, 8, 512, 64))
"""Batch elements, heads, tokens and width."""
LEAST = 5e-4
"""Seconds of the hand-written call from which the goal applies."""
SAMPLE = 0.01
"""Seconds of a sample."""


def _cases() -> dict[str, tuple[Any, Callable[[Any, Any], Any], float]]:
    """Return readouts, the same of logits and weights by hand, and the goal with a gradient."""
    from qkv import readouts

    return {
        "largest weights": (readouts.TopWeights(5), lambda z, w: w.topk(5).values, 1.2),
        "entropy": (readouts.Entropy(), lambda z, w: -torch.special.xlogy(w, w).sum(-1), 1.2),
        "column sums": (readouts.ColumnSum(), lambda z, w: w.sum(-2), 1.2),
        "log-sum-exp": (readouts.LogSumExp(), lambda z, w: z.logsumexp(-1), 1.2),
        "rows": (readouts.Rows((0, 5)), lambda z, w: w[..., [0, 5], :], 1.2),
        "all weights": (readouts.Dense(), lambda z, w: w, 1.15),
    }


def _contest(
    shape: tuple[int, ...], readout: Any, function: Callable[[Any, Any], Any], gradient: bool
) -> tuple[dict[str, Callable[[], Any]], float]:
    """Return both calls, and the largest distance of their results, which are checked."""
    import qkv

    torch.manual_seed(0)
    sides = [torch.randn(*shape, requires_grad=gradient) for _ in range(3)]
    query, key, value = sides

    def with_gradients(output: Any, read: Any) -> list[Any]:
        return [output, read, *(torch.autograd.grad(output.sum() + read.square().sum(), sides) if gradient else ())]

    def ours() -> list[Any]:
        seen = qkv.observe(query, key, value, readouts=[readout])
        read = seen.readouts[0]
        return with_gradients(seen.output, read.weights if isinstance(read, tuple) else read)

    def by_hand() -> list[Any]:
        logits = query / math.sqrt(shape[-1]) @ key.mT
        weights = logits.softmax(-1)
        return with_gradients(weights @ value, function(logits, weights))

    error = max(float(apart(one.detach(), other.detach())) for one, other in zip(ours(), by_hand(), strict=True))
    if not error <= 1e-4:
        raise WrongError(f"{readout} of {shape} is {error:.2g} from that by hand.")
    return {"qkv": ours, "by hand": by_hand}, error


def rows(setting: Setting) -> Iterator[Row]:
    """Measure every readout, forward and with the gradient of the sum of output and squared readout."""
    torch.set_num_threads(1)
    for shape in setting.some(SHAPES, 3):
        for name, (readout, function, limit) in _cases().items():
            for gradient in (False, True):
                calls, error = _contest(shape, readout, function, gradient)
                measured = race(calls, setting.rounds, SAMPLE)
                goal = AtMost(limit if gradient else 1.2) if min(measured.cpu["by hand"]) >= LEAST else None
                case = f"{name}, {'×'.join(map(str, shape))}, forward{' + backward' if gradient else ''}"
                yield measured.row(case, "by hand", goal, smallest=True, errors={"by hand": error})


CLAIM = Claim(
    "A short call that also returns its largest weights, entropy, column sums, log-sum-exp or weights takes at most "
    "1.2 × the time of the same written by hand, forward and with backward, from 500 µs on.",
    "at most 1.2 × the hand-written call; all weights in a training step at most 1.15 ×",
    ("the same attention and readout by hand in PyTorch",),
    rows,
)
