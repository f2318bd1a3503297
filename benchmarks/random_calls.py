"""Claim: of 450 random calls on four libraries nine in ten take at most 1.15 times the best other way."""

from __future__ import annotations

import math
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeAlias

import numpy as np

from benchmarks._by_library import (
    FAMILIES,
    LIBRARIES,
    MASKS,
    NORMALIZERS,
    READOUTS,
    WINDOW,
    Drawn,
    Library,
    by_hand,
    ours,
)
from benchmarks._claim import AtLeast, AtMost, Claim, Row, Setting, WrongError
from benchmarks._race import alternate

LEAST, LONGEST = 5e-4, 0.05
"""Seconds of the fastest other way within which a call is measured."""
LIMIT = 1.15
ALTERNATIONS = 10
"""Rounds, in each of which every implementation runs once."""
PART, PROCESSES = 25, 4
"""Calls that a process measures, and processes at once; the ratio of CPU times changes little with them."""
Way: TypeAlias = Callable[[], Any]
ENTRIES = 1.2e7
"""Largest array of the formula by hand."""


def _draw(draw: random.Random, library: str, readout: bool, normal: np.random.Generator) -> Drawn | None:
    """Return a random call, or None if its arrays are too large."""
    family = draw.choice(FAMILIES)
    normalizer = draw.choices(NORMALIZERS, (6, 1, 1, 1))[0]
    mask, read = draw.choices(MASKS, (3, 2, 1, 1, 1))[0], draw.choice(READOUTS) if readout else ""
    if read == "log-sum-exp" or (read == "entropy" and normalizer == "sigmoid"):
        normalizer = "softmax"  # without which there is none
    batch, heads = draw.choice((1, 2, 4, 8)), draw.choice((1, 2, 4, 8))
    n, width = draw.choice((32, 64, 96, 128, 200, 256, 384, 512, 768, 1024)), draw.choice((16, 32, 64, 128))
    same = mask in ("causal", "window") or family == "ALiBi"
    m = n if same or draw.random() < 0.7 else draw.choice((32, 100, 256, 512, 2048))
    value = width if draw.random() < 0.8 else draw.choice((8, 48, 96))
    dtype = np.float64 if draw.random() < 0.1 and library != "jax" else np.float32
    if batch * heads * n * m * (width if family == "additive" else 1) > ENTRIES:
        return None

    def array(*shape: int, size: float = 1.0) -> np.ndarray:
        return (normal.standard_normal(shape) * size).astype(dtype)

    root = width**-0.5
    parameters = {
        "bilinear": lambda: (array(width, width, size=1 / width),),
        "bias": lambda: (array(n, m),),
        "gated": lambda: (array(width, size=root), array(width, size=root)),
        "additive": lambda: (array(width, width, size=root), array(width, width, size=root), array(width)),
    }.get(family, tuple)()
    lengths = normal.integers(m // 2, m + 1, batch) if mask == "lengths" else None
    allowed = {
        "none": lambda: None,
        "causal": lambda: np.tri(n, m, dtype=bool),
        "lengths": lambda: (np.arange(m) < lengths[:, None])[:, None, None, :],
        "pairs": lambda: (normal.random((n, m)) > 0.3) | (np.arange(m) < 8),
        "window": lambda: abs(np.arange(n)[:, None] - np.arange(m)) <= WINDOW,
    }[mask]()
    size = 1 / math.sqrt(math.sqrt(width)) if family in ("dot", "gated") else 1.0
    sides = (
        array(batch, heads, n, width, size=size),
        array(batch, heads, m, width, size=size),
        array(batch, heads, m, value),
    )
    return Drawn(family, normalizer, mask, read, (*sides, *parameters), allowed, lengths)


def _ways(library: Library, call: Drawn, gradient: bool) -> dict[str, Way]:
    """Return every way to compute the call as a function without arguments."""
    arrays = tuple(library.array(x) for x in call.arrays)
    wrap = library.gradient if gradient else (lambda function: function)
    compiled = library.compiled and library.name != "torch"
    functions = {"qkv": ours(library, call), "eager": by_hand(library, call)}
    if call.fusible and (fused := library.fused(call)) is not None:
        functions["fused"] = fused
    ways = {}
    for name, function in functions.items():
        one = wrap(function)
        # In JAX and TensorFlow calls stand in compiled functions, qkv's as well; in PyTorch and NumPy they rarely do.
        ways[name] = library.compile(one) if compiled and name != "eager" else one
    if library.compiled:
        ways["compiled"] = library.compile(wrap(by_hand(library, call)))
    return {name: (lambda way=way: library.done(way(*arrays))) for name, way in ways.items()}


def _check(library: Library, call: Drawn, ways: dict[str, Way], gradient: bool) -> float:
    """Return the largest distance of two results.

    Raises:
        WrongError: a result of qkv differs from that of another way.
    """
    results = {name: [np.asarray(library.constant(x)) for x in way()] for name, way in ways.items()}
    # Gradients with respect to keys of Gaussian scores and to weights are sums of large terms.
    limit, worst = 2e-3 if gradient else 2e-4, 0.0
    for name, theirs in results.items():
        for one, other in zip(results["qkv"], theirs, strict=True):
            distance = float(abs(one - other).max() / max(abs(other).max(), 1e-300))
            if not distance <= limit:
                raise WrongError(f"{call.family}, {call.normalizer}, {call.mask}: {distance:.2g} from {name}.")
            worst = max(worst, distance)
    return worst


def rows(setting: Setting) -> Iterator[Row]:
    """Measure 300 calls without and 150 with a readout: a fourth of them in each library."""
    wanted = {False: 8 if setting.quick else 300, True: 4 if setting.quick else 150}
    found: dict[tuple[str, bool], list[Row]] = {}
    # Processes of their own: PyTorch and TensorFlow bring two versions of one library of matrix products.
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        tasks = [(task, pool.submit(measured_part, *task)) for task in parts(wanted)]
        for (name, readout, *_), done in tasks:
            found.setdefault((name, readout), []).extend(done.result())
            for row in done.result():
                setting.say(f"{row.case}: {row.measure} {row.number:.3f}")
    yield from summarized(found)


def parts(wanted: dict[bool, int]) -> list[tuple[str, bool, int, int]]:
    """Return library, whether with a readout, number and calls of each part of the calls without and with readouts."""
    found = []
    for name in LIBRARIES:
        for readout, count in wanted.items():
            each = count // len(LIBRARIES) + (name in list(LIBRARIES)[: count % len(LIBRARIES)])
            found += [(name, readout, n, min(PART, each - n)) for n in range(0, each, PART)]
    return found


def summarized(found: dict[tuple[str, bool], list[Row]]) -> Iterator[Row]:
    """Yield the shares of each library and of all, without and with readouts, and then the calls, slowest first."""
    for readout in (False, True):
        of_library = {name: found[name, readout] for name in LIBRARIES}
        everything = [row for own in of_library.values() for row in own]
        for name, own in (*of_library.items(), ("all libraries", everything)):
            share = sum(row.number <= LIMIT for row in own) / len(own)
            case = f"{name}, {len(own)} random calls {'with a readout' if readout else 'without readouts'}"
            goal = AtLeast(0.9) if own is everything else None
            yield Row(case, f"share with qkv ≤ {LIMIT} × the best other way", share, "", goal)
            yield Row(case, "qkv / best other way, median", statistics.median(row.number for row in own))
        yield from sorted(everything, key=lambda row: -row.number)


def measured_part(name: str, readout: bool, part: int, count: int) -> list[Row]:
    """Return the rows of some random calls of a library."""
    library, draw, normal = LIBRARIES[name](), random.Random(f"{name} {readout} {part}"), np.random.default_rng(part)
    found: list[Row] = []
    while len(found) < count:
        gradient = name != "numpy" and draw.random() < 0.4
        call = _draw(draw, name, readout, normal)
        if call is None:
            continue
        with library.measured(gradient):
            row = _measure(library, call, gradient)
        if row is not None:
            found.append(row)
    return found


def _measure(library: Library, call: Drawn, gradient: bool) -> Row | None:
    """Return the row of a call, or None if it is too short or too long."""
    ways = _ways(library, call, gradient)
    compiled = ways.pop("compiled", None)
    ways["eager"]()
    start = time.process_time()
    ways["eager"]()
    if not LEAST <= time.process_time() - start <= LONGEST:
        return None
    if compiled is not None:
        ways["compiled"] = compiled
    error = _check(library, call, ways, gradient)
    seconds = alternate(ways, ALTERNATIONS)
    best = min((name for name in seconds if name != "qkv"), key=seconds.__getitem__)
    if seconds[best] < LEAST:
        return None
    (batch, heads, n, width), m, value = call.arrays[0].shape, call.arrays[1].shape[-2], call.arrays[2].shape[-1]
    parts = [library.name, call.family, call.normalizer, call.mask, call.readout]
    parts.append(f"{batch}×{heads}×{n}×{m}×{width}" + (f"→{value}" if value != width else ""))
    parts += [str(call.arrays[0].dtype)] * (call.arrays[0].dtype != np.float32)
    parts.append(f"forward{' + backward' if gradient else ''}")
    case = ", ".join(part for part in parts if part not in ("", "none", "softmax"))
    named = {"compiled": library.compiled}.get(best, best)
    measure = f"qkv / {named}, CPU time, lowest fifth of {ALTERNATIONS} alternating calls"
    return Row(
        case,
        measure,
        seconds["qkv"] / seconds[best],
        goal=AtMost(LIMIT),
        seconds={name: seconds[name] for name in seconds},
        errors={named: error},
    )


CLAIM = Claim(
    "Nine in ten random calls on NumPy, PyTorch, JAX and TensorFlow, with and without readouts, forward and with "
    "backward, take at most 1.15 × the best of the same by hand, compiled, or by the library's fused operator.",
    "90 % at most 1.15 × the best other way, from 500 µs on",
    ("the same by hand", "torch.compile", "jax.jit", "tf.function", "torch SDPA", "jax.nn.dot_product_attention"),
    rows,
)
