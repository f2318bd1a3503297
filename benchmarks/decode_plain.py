"""Claim: a decoding step without a cache of qkv takes at most 40 µs more than PyTorch's fused call."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks._calls import WrongError, apart
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._race import race

HEADS, WIDTH, CAPACITY, STEPS = 8, 64, 768, 200
"""Heads, width, rows of the static buffer, and timed steps, each one key longer than the last."""
FIRST = 512

Step = Callable[[int], Any]


def _cases() -> dict[str, tuple[Step, Step]]:
    """Return steps over the first t keys, and the same with PyTorch's fused attention."""
    import qkv
    from qkv import masks

    query, index = torch.randn(1, HEADS, 1, WIDTH), torch.arange(CAPACITY)
    key, value = torch.randn(2, 1, HEADS, CAPACITY, WIDTH)

    def step(**options: Callable[[int], Any]) -> Step:
        return lambda t: qkv.attend(query, key, value, **{name: make(t) for name, make in options.items()})

    def masked(t: int) -> Any:
        return scaled_dot_product_attention(query, key, value, attn_mask=(index < t)[None])

    def starts_at(start: Any) -> Any:
        return qkv.Positions(query_start=start)

    causal = masks.Causal()
    return {
        "pairs": (step(mask=lambda t: masks.AllowedPairs((index < t)[None])), masked),
        "lengths": (step(mask=lambda t: masks.Lengths(torch.tensor([[t]]))), masked),
        "one length": (step(mask=masks.Lengths), masked),
        "causal, position in a tensor": (
            step(mask=lambda t: causal, positions=lambda t: starts_at(torch.tensor(t - 1))),
            masked,
        ),
        "causal, integer position": (step(mask=lambda t: causal, positions=lambda t: starts_at(t - 1)), masked),
        "growing keys": (
            lambda t: qkv.attend(query, key[:, :, :t], value[:, :, :t]),
            lambda t: scaled_dot_product_attention(query, key[:, :, :t], value[:, :, :t]),
        ),
    }


def _whole_calls() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Return single steps, and the same with PyTorch's fused attention."""
    import qkv
    from qkv import masks

    query, (key, value) = torch.randn(4, HEADS, 1, WIDTH), torch.randn(2, 4, HEADS, 4096, WIDTH)
    lengths = torch.tensor([[500], [480], [460], [440]])
    allowed = (torch.arange(4096) < lengths)[:, None, None]
    grouped, (shared, values) = torch.randn(1, 32, 1, WIDTH), torch.randn(2, 1, 8, 2048, WIDTH)
    return {
        "4 sequences, 440 to 500 of 4,096 keys": (
            lambda: qkv.attend(query, key, value, mask=masks.Lengths(lengths)),
            lambda: scaled_dot_product_attention(query, key, value, attn_mask=allowed),
        ),
        "32 heads that share 8 key heads, 2,048 keys": (
            lambda: qkv.attend(grouped, shared, values, enable_gqa=True),
            lambda: scaled_dot_product_attention(grouped, shared, values, enable_gqa=True),
        ),
    }


def _seconds(steps: dict[str, Step]) -> dict[str, float]:
    """Return the CPU seconds of a step: the lowest fifth of alternating steps, of which the first two are not timed."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    gc.disable()
    try:
        for t in range(FIRST, FIRST + STEPS):
            for name, step in steps.items():
                start = time.process_time()
                step(t)
                found[name].append(time.process_time() - start)
    finally:
        gc.enable()
    return {name: sorted(times[2:])[STEPS // 5] for name, times in found.items()}


def rows(setting: Setting) -> Iterator[Row]:
    """Check each kind of step against PyTorch's, and measure the difference in time."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, (ours, theirs) in _cases().items():
        if not (distance := apart(ours(FIRST), theirs(FIRST))) <= 1e-4:
            raise WrongError(f"a step with {name} is {distance:.2g} from PyTorch's.")
        seconds = [_seconds({"qkv": ours, "SDPA": theirs}) for _ in range(setting.rounds)]
        best = min(seconds, key=lambda each: each["qkv"] - each["SDPA"])
        spread = sorted(1e6 * (each["qkv"] - each["SDPA"]) for each in seconds)
        yield Row(
            f"one query, {FIRST} to {FIRST + STEPS} keys, {name}",
            "qkv − SDPA, CPU time",
            spread[len(spread) // 2],
            "µs",
            AtMost(40),
            (spread[0], spread[-1]),
            seconds=best,
            errors={"SDPA": float(distance)},
        )
    for name, (mine, other) in _whole_calls().items():
        if not (distance := apart(mine(), other())) <= 1e-4:
            raise WrongError(f"a step with {name} is {distance:.2g} from PyTorch's.")
        both = race({"qkv": mine, "SDPA": other}, setting.rounds)
        yield both.row(f"one query, {name}", "SDPA", AtMost(1.1), errors={"SDPA": float(distance)})


CLAIM = Claim(
    "A decoding step over a growing or static buffer, without a cache of qkv, takes at most 40 µs more than PyTorch's "
    "fused attention from the third step on, whatever states which keys exist, and a long step at most 1.1 × its time.",
    "at most 40 µs more than SDPA on the same keys, with the same mask; at most 1.1 × from 500 µs on",
    ("torch SDPA",),
    rows,
)
