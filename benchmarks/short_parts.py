"""Claim: with other normalizers, masks and lengths too, short calls are as fast as the same written by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from benchmarks._by_hand import FAMILIES, entmax15, make_score, sparsemax, top_weights
from benchmarks._calls import Call, WrongError, apart
from benchmarks._claim import AtLeast, AtMost, Claim, Row, Setting
from benchmarks._race import alternate
from qkv import masks, normalizers
from qkv.masks import Mask
from qkv.normalizers import Normalizer

Weights: TypeAlias = Callable[[Tensor], Tensor]

NORMALIZERS: dict[str, tuple[Normalizer, Weights]] = {
    "softmax": (normalizers.Softmax(), lambda z: z.softmax(-1)),
    "top 8": (normalizers.TopK(8), top_weights(8)),
    "sparsemax": (normalizers.Sparsemax(), sparsemax),
    "1.5-entmax": (normalizers.Entmax15(), entmax15),
    "sigmoid": (normalizers.Sigmoid(), torch.sigmoid),
}
MASKS = ("no mask", "causal", "lengths", "key mask", "window", "pairs")
FIXED = ("ALiBi", "bias table", "bias")
"""Families whose logits depend on positions, so that there are as many queries as keys."""
LENGTHS = (1, 2, 5, 16, 24, 32, 50, 64, 96, 100, 128, 192, 256, 384, 512, 768, 1024)
KEYS = (1, 3, 8, 16, 33, 64, 100, 128, 256, 500, 1024, 2048)
ELEMENTS = 3e7
"""Largest number of array elements of the hand-written call."""
LEAST, LONGEST = 5e-4, 0.05
"""Seconds of the hand-written call of measured calls."""
ALTERNATIONS, DRAWN = 25, 150
SAME, PLAN = 1.1, 1.15
"""Largest factors of a call to the best hand-written version, and to the fastest kernel of qkv."""


@dataclass(frozen=True)
class _Drawn:
    """A random call, and the same written by hand in one or more ways by name."""

    case: str
    call: Call
    by_hand: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]


def _mask(name: str, lead: tuple[int, ...], n: int, m: int) -> tuple[Mask | None, Tensor | None]:
    """Return a mask, and the pairs that it excludes."""
    ones = (lead[0], *[1] * (len(lead) - 1))
    position, key = torch.arange(n)[:, None], torch.arange(m)
    if name == "causal":
        return masks.Causal(), key > position
    if name == "window":
        return masks.Window(32, 32), (key - position).abs() > 32
    if name == "lengths":
        lengths = torch.randint(1, m + 1, ones)
        return masks.Lengths(lengths), key >= lengths[..., None, None]
    if name == "key mask":
        kept = torch.rand(*ones, m) > 0.3
        kept[..., 0] = True
        return masks.AllowedKeys(kept), ~kept[..., None, :]
    if name == "pairs":
        kept = torch.rand(n, m) > 0.3
        kept[:, 0] = True
        return masks.AllowedPairs(kept), ~kept
    return None, None


def _draw(draw: random.Random) -> _Drawn | None:
    """Return a random call, or None if it would be too large or the drawn parts do not fit each other."""
    family, normalizer, mask = draw.choice(FAMILIES), draw.choice(tuple(NORMALIZERS)), draw.choice(MASKS)
    gradient, batch, heads = draw.random() < 0.5, draw.choice((1, 2, 4, 8, 16, 32, 64)), draw.choice((0, 0, 1, 4, 8))
    width, n = draw.choice((8, 16, 24, 32, 64, 128)), draw.choice(LENGTHS)
    m = n if draw.random() < 0.5 else draw.choice(KEYS)
    value_width = width if draw.random() < 0.7 else draw.choice((1, 8, 16, 64, 96))
    features = width if family in ("additive", "custom L1") else 4
    if batch * (heads or 1) * n * m * features > ELEMENTS:
        return None
    if (n != m and (family in FIXED or mask in ("causal", "window"))) or (family, normalizer) == (
        "Gaussian",
        "sigmoid",
    ):
        return None  # by hand the Gaussian lacks the part that softmax cancels
    lead = (batch, heads) if heads else (batch,)
    query, key, value = (
        torch.randn(*lead, *shape, requires_grad=gradient) for shape in ((n, width), (m, width), (m, value_width))
    )
    score, trained, logits = make_score(family, n, width, gradient)
    part, excluded = _mask(mask, lead, n, m)
    parts, weigh = NORMALIZERS[normalizer]
    options: dict[str, Any] = {"score": score, "normalizer": parts, "mask": part}
    towards = torch.randn(*lead, n, value_width) if gradient else None

    def by_hand(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            z = function(q, k)
            return weigh(z if excluded is None else z.masked_fill(excluded, -math.inf)) @ v

        return forward

    shape = f"{'×'.join(map(str, lead))} × {n} × {width} to {m} keys, values {value_width} wide"
    case = f"{family}, {normalizer}, {mask}, {shape}, {'forward + backward' if gradient else 'forward'}"
    call = Call(family, query, key, value, options, trained, towards)
    return _Drawn(case, call, {name: by_hand(function) for name, function in logits.items()})


def _runs(drawn: _Drawn) -> dict[str, Callable[[], object]]:
    """Return the call, the hand-written versions and the other kernels, after checking that they agree."""
    call = drawn.call
    ours = call.run()
    for name, forward in drawn.by_hand.items():
        if not (distance := apart(ours[0], call.run_with(forward)[0])) <= 1e-3:
            raise WrongError(f"{drawn.case}: the output is {distance:.2g} from that of {name}.")
    runs: dict[str, Callable[[], object]] = {"qkv": call.run}
    runs |= {name: (lambda forward=forward: call.run_with(forward)) for name, forward in drawn.by_hand.items()}  # type: ignore[misc]
    plan = call.plan
    for name in (name for name, cost in plan.slower if cost.seconds < 4 * plan.cost.seconds):
        runs[f"kernel {name}"] = lambda name=name: call.run(name)  # type: ignore[misc]
    return runs


def rows(setting: Setting) -> Iterator[Row]:
    """Count how often random calls are as fast as the best hand-written version, and as the fastest kernel."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    draw, wanted = random.Random(0), 4 if setting.quick else DRAWN
    ratios: list[float] = []
    losses: list[float] = []
    above: list[Row] = []
    while len(ratios) < wanted:
        drawn = _draw(draw)
        if drawn is None:
            continue
        runs = _runs(drawn)
        once = alternate({name: runs[name] for name in drawn.by_hand}, 1)
        if not LEAST <= min(once.values()) <= LONGEST:
            continue
        found = alternate(runs, ALTERNATIONS)
        by_hand = min(drawn.by_hand, key=found.__getitem__)
        if found[by_hand] < LEAST:
            continue
        kernels = {name: seconds for name, seconds in found.items() if name not in drawn.by_hand}
        fastest = min(kernels, key=kernels.__getitem__)
        ratios.append(found["qkv"] / found[by_hand])
        losses.append(found["qkv"] / kernels[fastest])
        for peer, ratio, limit in ((by_hand, ratios[-1], SAME), (fastest, losses[-1], PLAN)):
            if ratio > limit:
                measure = f"qkv / {peer}, CPU time, lowest fifth of {ALTERNATIONS} alternating calls"
                seconds = {name: found[name] for name in ("qkv", peer)}
                kernel = drawn.call.plan.kernel.name
                above.append(Row(drawn.case, measure, ratio, goal=AtMost(limit), seconds=seconds, kernel=kernel))
        if len(ratios) % 20 == 0:
            setting.say(f"{len(ratios)} of {wanted} random calls")
    case = f"{wanted} random calls of at least 500 µs"
    for peer, numbers, limit in (("best by hand", ratios, SAME), ("fastest kernel of qkv", losses, PLAN)):
        share = sum(number <= limit for number in numbers) / wanted
        note = "each call above a limit has a row below"
        yield Row(case, f"share with qkv ≤ {limit} × {peer}", share, "", AtLeast(1.0), note=note)
        yield Row(case, f"qkv / {peer}, median", sorted(numbers)[wanted // 2])
        yield Row(case, f"qkv / {peer}, largest", max(numbers), goal=AtMost(limit))
    yield from sorted(above, key=lambda row: -row.number)


CLAIM = Claim(
    "With top-k, sparsemax, entmax and sigmoid, with masks of padding, windows and pairs, and with more or fewer keys "
    "than queries, no call is slower than the same attention written by hand in PyTorch.",
    "of 150 random calls that take 500 µs or more by hand, all at most 1.1 × the best hand-written version and at most "
    "1.15 × the fastest kernel of qkv",
    ("the same attention by hand in PyTorch, in one or two versions",),
    rows,
)
