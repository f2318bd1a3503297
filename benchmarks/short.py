"""Claim: between 16 and 1,024 tokens, attention written by hand in PyTorch is never faster."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch

from benchmarks import _calls, _peers
from benchmarks._by_hand import FAMILIES, Short, make_short
from benchmarks._calls import WrongError, apart
from benchmarks._claim import AtLeast, AtMost, Claim, Goal, Row, Setting
from benchmarks._race import alternate

Shape: TypeAlias = tuple[int, int, int]
Run: TypeAlias = Callable[[], object]

SHAPES: tuple[Shape, ...] = ((16, 64, 32), (4, 256, 64))
"""Batch elements, tokens and width, for every family."""
MORE_SHAPES: tuple[Shape, ...] = ((64, 16, 16), (8, 32, 32), (48, 96, 24), (2, 512, 64), (1, 1024, 64))
"""Further shapes, for the families whose hand-written form has an array of the features of all pairs."""
BROADCAST = ("additive", "custom L1")
LEAST = 5e-4
"""Seconds of the hand-written call from which a goal applies; below it, the claim `overhead` does."""
SAMPLE = 0.01
"""Seconds of a sample."""
ALTERNATIONS = 40
"""Rounds of a random call, in each of which every implementation runs once."""
SAME, PLAN = 1.1, 1.15
"""Largest factors of a random call to the best hand-written version, and to the fastest kernel of qkv."""
DRAWN = 200
LONGEST = 0.03
"""Seconds above which a random call is not measured, so that 200 take a few minutes."""


def rows(setting: Setting) -> Iterator[Row]:
    """Measure every family, then bfloat16, two threads, peers that fuse, and random calls."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = [(family, shape) for family in FAMILIES for shape in SHAPES]
    table += [(family, shape) for family in BROADCAST for shape in MORE_SHAPES]
    for family, shape in setting.some(table, 9):
        for gradient in (False, True):
            yield from _compare(family, shape, gradient, setting)
    for family in setting.some(FAMILIES, 8):
        yield from _compare(family, SHAPES[1], True, setting, dtype=torch.bfloat16)
    for family in setting.some(FAMILIES, 8):
        yield from _compare(family, SHAPES[1], True, setting, threads=2)
    for name in setting.some(("softcap", "alibi"), 2):
        call = _calls.make(name, ((1, 8, 256, 64),) * 3)
        errors = call.check()
        measured = _measure({"qkv": call.run, "flex": _peers.flex(call)}, setting.rounds)
        yield _row(f"{name}, 1×8×256×64, forward", "flex", measured, AtMost(1.0), errors, call.plan.kernel.name)
    yield from _random(setting)


def _compare(
    family: str, shape: Shape, gradient: bool, setting: Setting, dtype: torch.dtype = torch.float32, threads: int = 1
) -> Iterator[Row]:
    short = make_short(family, *shape, gradient=gradient, causal=True, dtype=dtype)
    errors = short.call.check(1e-4 if dtype == torch.float32 else 0.02)
    runs = _runs(short, errors, 1e-3 if dtype == torch.float32 else 0.1)
    torch.set_num_threads(threads)
    try:
        measured = _measure(runs, setting.rounds, threads)
    finally:
        torch.set_num_threads(1)
    by_hand = [name for name in short.by_hand if name in runs]
    if not by_hand:
        return
    best = min(by_hand, key=lambda name: measured.seconds[name])
    limit = (0.55 if gradient else 0.35) if family == "additive" else 1.0
    goal = AtMost(limit) if measured.seconds[best] >= LEAST and threads == 1 else None
    case = f"{family}, {'×'.join(map(str, shape))}, forward{' + backward' if gradient else ''}"
    case += ("" if dtype == torch.float32 else ", bfloat16") + ("" if threads == 1 else f", {threads} threads")
    kernel = short.call.plan.kernel.name
    yield _row(case, best, measured, goal, errors, kernel)
    if short.fused is not None:
        yield _row(case, "SDPA", measured, None, errors, kernel)


def _runs(short: Short, errors: dict[str, float], tolerance: float) -> dict[str, Run]:
    """Return qkv's call and the peers that can run it by name, after checking that they agree."""
    call = short.call
    peers = short.by_hand | ({} if short.fused is None else {"SDPA": short.fused})
    ours = call.run()
    for name, forward in list(peers.items()):
        try:
            theirs = call.run_with(forward)
        except NotImplementedError:  # `cdist` in bfloat16
            del peers[name]
            continue
        for n, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if not (distance := apart(one, other)) <= tolerance:
                raise WrongError(f"{call.name}: result {n} is {distance:.2g} from that of {name}.")
            errors[name] = max(errors.get(name, 0.0), distance)
    return {"qkv": call.run, **{name: (lambda f=f: call.run_with(f)) for name, f in peers.items()}}  # type: ignore[misc]


@dataclass(frozen=True)
class _Measured:
    """The smallest time of each implementation, which other load affects least, and the clock."""

    seconds: dict[str, float]
    clock: str


def _measure(runs: dict[str, Run], rounds: int, threads: int = 1, sample: float = SAMPLE) -> _Measured:
    """Time each implementation in every round, in samples of `sample` seconds, without collecting garbage between."""
    clock = time.process_time if threads == 1 else time.perf_counter
    loops = dict.fromkeys(runs, 1)
    seconds = dict.fromkeys(runs, math.inf)
    gc.disable()
    try:
        for _ in range(rounds + 1):
            for name, run in runs.items():
                start = clock()
                for _ in range(loops[name]):
                    run()
                seconds[name] = min(seconds[name], (clock() - start) / loops[name])
                loops[name] = max(1, round(sample / max(seconds[name], 1e-6)))
    finally:
        gc.enable()
    return _Measured(seconds, "CPU time" if threads == 1 else "wall time")


def _row(case: str, peer: str, measured: _Measured, goal: Goal | None, errors: dict[str, float], kernel: str) -> Row:
    seconds = {name: measured.seconds[name] for name in ("qkv", peer)}
    return Row(
        case,
        f"qkv / {peer}, {measured.clock}, minima",
        seconds["qkv"] / seconds[peer],
        goal=goal,
        **{"seconds" if measured.clock == "CPU time" else "wall": seconds},  # type: ignore[arg-type]
        errors=errors,
        kernel=kernel,
        note="rows without a goal: the hand-written call takes less than 500 µs, or the time is wall time of a shared "
        "machine",
    )


def _random(setting: Setting) -> Iterator[Row]:
    """Count how often random calls are as fast as the best hand-written version, and as the fastest kernel."""
    draw, ratios, losses, above = random.Random(0), [], [], []
    wanted = 6 if setting.quick else DRAWN
    while len(ratios) < wanted:
        family, gradient, causal = draw.choice(FAMILIES), draw.random() < 0.5, draw.random() < 0.5
        batch, width = draw.choice((1, 2, 4, 8, 16, 32, 64)), draw.choice((16, 32, 64, 128))
        n = draw.choice((16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024))
        features = width if family in ("additive", "custom L1") else 4
        if batch * n * n * features > 1.5e7:
            continue
        short = make_short(family, batch, n, width, gradient=gradient, causal=causal)
        call = short.call
        once = {name: (lambda f=f, call=call: call.run_with(f)) for name, f in short.by_hand.items()}  # type: ignore[misc]
        first = _measure(once, 0).seconds
        if not LEAST / 2 <= min(first.values()) <= LONGEST:
            continue
        plan = call.plan
        runs = _runs(short, {}, 1e-3)
        runs.pop("SDPA", None)
        for name in (name for name, cost in plan.slower if cost.seconds < 4 * plan.cost.seconds):
            runs[f"kernel {name}"] = lambda name=name, call=call: call.run(name)  # type: ignore[misc]
        found = alternate(runs, ALTERNATIONS)
        by_hand = min(found[name] for name in short.by_hand)
        if by_hand < LEAST:
            continue
        kernels = {name: seconds for name, seconds in found.items() if name not in short.by_hand}
        ratios.append(found["qkv"] / by_hand)
        losses.append(found["qkv"] / min(kernels.values()))
        direction = "forward + backward" if gradient else "forward"
        case = f"{family}, {batch}×{n}×{width}{', causal' if causal else ''}, {direction}, drawn at random"
        kernel = plan.kernel.name
        if ratios[-1] > SAME:
            above.append(_ratio(case, min(short.by_hand, key=found.__getitem__), found, SAME, kernel))
        if losses[-1] > PLAN:
            above.append(_ratio(case, min(kernels, key=kernels.__getitem__), found, PLAN, kernel))
        if len(ratios) % 20 == 0:
            setting.say(f"{len(ratios)} of {wanted} random calls")
    case = f"{wanted} random calls of at least 500 µs"
    for measure, numbers, limit in (("best by hand", ratios, SAME), ("fastest kernel of qkv", losses, PLAN)):
        share = sum(number <= limit for number in numbers) / wanted
        text = f"share with qkv ≤ {limit} × {measure}"
        yield Row(case, text, share, "", AtLeast(1.0), note="each random call above a limit has a row below")
        yield Row(case, f"qkv / {measure}, median", sorted(numbers)[wanted // 2])
        yield Row(case, f"qkv / {measure}, largest", max(numbers), goal=AtMost(limit))
    yield from sorted(above, key=lambda row: -row.number)


def _ratio(case: str, peer: str, found: dict[str, float], limit: float, kernel: str) -> Row:
    """Return the row of a random call that exceeds a limit."""
    seconds = {name: found[name] for name in ("qkv", peer)}
    measure = f"qkv / {peer}, CPU time, lowest fifth of {ALTERNATIONS} alternating calls"
    return Row(case, measure, seconds["qkv"] / seconds[peer], goal=AtMost(limit), seconds=seconds, kernel=kernel)


CLAIM = Claim(
    "Between 16 and 1,024 tokens no score is slower than the same attention written by hand in PyTorch, forward and "
    "with backward, wherever that takes 500 µs or more; additive scores take about a third of its time.",
    "additive at most 0.35 × (with backward 0.55 ×) of the best hand-written version, other scores at most 1.0 ×; of "
    "200 random calls, all at most 1.1 × the best hand-written version and at most 1.15 × the fastest kernel of qkv",
    (
        "the same attention by hand in PyTorch, in one or two versions",
        "PyTorch's fused attention",
        "PyTorch's flex attention, compiled",
    ),
    rows,
)
