"""Runs random calls in a library and compares their results with those of `oracle.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import qkv
from qkv import masks, normalizers, scores
from qkv.core.arrays import namespace
from qkv.errors import RefusedError
from qkv.plan import Plan
from tests.random_calls import oracle
from tests.random_calls.draw import RandomCall, repeated
from tests.random_calls.oracle import Drawn

__all__ = ["EPSILON", "Counts", "arguments_of", "check_directions", "check_output", "part_arrays", "wanted_output"]

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass
class Counts:
    """What a test ran: calls by kernel and dtype, calls with gradients, and refusals of named kernels."""

    calls: int = 0
    gradients: int = 0
    kinks: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)

    def add(self, plan: Plan, used: Any, dtype: str) -> None:
        """Count a call that the kernel `used` ran, or with None the kernel of the plan."""
        self.calls += 1
        self.kernels[plan.kernel.name if used is None else str(getattr(used, "name", used))] += 1
        self.dtypes[dtype] += 1


def l1(query: Any, key: Any, scale: Any) -> Any:
    xp = namespace(query)
    return -xp.sum(abs(query[..., :, None, :] - key[..., None, :, :]), axis=-1) / scale


def squared_shares(logits: Any, scale: Any) -> Any:
    xp = namespace(logits)
    squares = xp.maximum(logits, xp.zeros_like(logits)) ** 2
    return scale * squares / (1 + xp.sum(squares, axis=-1, keepdims=True))


def holes(query: Any, key: Any) -> Any:
    return (key <= query) & ((query - key) % 3 != 1)


def build(part: Drawn, module: Any, convert: Callable[[Any], Any]) -> Any:
    """Return the part of qkv that `part` names, with every array converted to the library of the call."""
    inner = [build(x, module, convert) for x in part.inner]
    if part.name in ("and", "or", "not"):
        return ~inner[0] if part.name == "not" else inner[0] & inner[1] if part.name == "and" else inner[0] | inner[1]
    given = {name: convert(x) if isinstance(x, np.ndarray) else x for name, x in part.arguments.items()}
    if part.name == "Custom":
        function = {scores: l1, normalizers: squared_shares, masks: holes}[module]
        return module.Custom(function, tuple(given.values())) if given else module.Custom(function)
    if part.name == "TopK":
        return normalizers.TopK(given["k"], normalizer=inner[0])
    if part.name == "SumOf":
        return scores.SumOf(tuple(inner))
    return getattr(module, part.name)(*inner, **given)


def arguments_of(call: RandomCall, convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the keyword arguments of `qkv.attend`."""
    position = call.position
    if position is not None and isinstance(position.get("query_start"), np.ndarray):
        position = {"query_start": convert(position["query_start"])}
    return {
        "score": build(call.score, scores, convert),
        "normalizer": build(call.normalizer, normalizers, convert),
        "mask": None if call.mask is None else build(call.mask, masks, convert),
        "positions": None if position is None else qkv.core.positions.Positions(**position),
        "enable_gqa": call.shape.grouped,
    }


def run_or_plan(run: Callable[[Any], Any], kernel: Any, counts: Counts) -> tuple[Any, Any]:
    """Return the result of the named kernel, or of a kernel that the planner chooses if the named one refuses."""
    try:
        return run(kernel), kernel
    except RefusedError:
        if kernel is None:
            raise
        counts.refused[str(getattr(kernel, "name", kernel))] += 1
        return run(None), None


def part_arrays(part: Drawn, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the paths and elements of the arrays of numbers of a part, in the order in which `build` makes them."""
    found = [(*path, name) for name, x in part.arguments.items() if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
    own = [(p, part.arguments[p[-1]]) for p in found]
    return [pair for n, x in enumerate(part.inner) for pair in part_arrays(x, (*path, n))] + own


def replaced(part: Drawn, path: tuple[Any, ...], x: Any) -> Drawn:
    if len(path) == 1:
        return Drawn(part.name, {**part.arguments, path[0]: x}, part.inner)
    inner = list(part.inner)
    inner[path[0]] = replaced(inner[path[0]], path[1:], x)
    return Drawn(part.name, part.arguments, tuple(inner))


def wanted_output(call: RandomCall, **changes: Any) -> Any:
    """Return the output that the oracle computes in float64, with some arrays or parts of the call changed."""
    x = {"query": call.query, "key": call.key, "value": call.value, "score": call.score, "normalizer": call.normalizer}
    x |= changes
    allowed = call.allowed
    key, value = repeated(call, x["key"]), repeated(call, x["value"])
    out = oracle.attend(x["query"], key, value, x["score"], x["normalizer"], allowed, call.start)
    return np.broadcast_to(out, (*call.shape.batch, call.shape.q, call.shape.value_width))


def magnitude(call: RandomCall) -> float:
    """Return 1 + the largest number from which logits are computed, by which rounding errors of weights grow."""
    key = repeated(call, call.key)
    logits = oracle.logits_of(call.score, call.query, key, oracle.positions(call.start, call.query, key))
    sizes = [abs(logits[np.isfinite(logits)]).max(initial=0.0)]
    widest = max(abs(call.query).max(initial=0.0), abs(call.key).max(initial=0.0))
    return float(1 + max(sizes) + call.shape.width * widest**2)


def sensitivity(call: RandomCall) -> float:
    """Return 1, or the largest factor by which derivatives increase rounding errors where they divide by less."""
    key = repeated(call, call.key)
    logits = oracle.logits_of(call.score, call.query, key, oracle.positions(call.start, call.query, key))
    masked = np.where(call.allowed, logits, -np.inf)
    return max(1.0, 1 / oracle.smallest_divisor(call.score, call.normalizer, call.query, key, masked))


def check_output(call: RandomCall, got: Any, wanted: Any, dtype: str, limit: float = 2.0) -> float:
    """Assert that the output agrees with that of the oracle, and return the error relative to the allowed error."""
    assert got.shape == wanted.shape, f"the shape must be {wanted.shape}, got {got.shape}"
    assert np.isfinite(got).all(), "every element must be finite"
    computed = EPSILON["float64" if dtype == "float64" else "float32"] * magnitude(call)
    key = repeated(call, call.key)
    weights = oracle.weights(call.query, key, call.score, call.normalizer, call.allowed, call.start)
    # Rounding errors of a sum of many values that cancel are those of the values.
    mass = max(1.0, abs(weights).sum(-1).max(initial=0.0))
    largest = max(abs(wanted).max(initial=0.0), mass * abs(call.value).max(initial=0.0))
    allowed = limit * computed * largest + (
        EPSILON[dtype] * abs(wanted).max(initial=0.0) if dtype in ("float16", "bfloat16") else 0.0
    )
    error = abs(got - wanted).max(initial=0.0)
    assert error <= allowed or not got.size, f"the output is off by {error:.3g}, {allowed:.3g} allowed"
    return float(error / allowed) if allowed else 0.0


def check_directions(
    call: RandomCall, gradients: Sequence[Any], cotangent: Any, rng: np.random.Generator, dtype: str, counts: Counts
) -> float:
    """Assert that gradients agree with finite differences of the oracle in one random direction for each array.

    `gradients` are those of query, key, value, and of the arrays of the score and of the normalizer.
    """

    def loss(**changes: Any) -> float:
        return float((wanted_output(call, **changes) * cotangent).sum())

    targets = [(name, None, getattr(call, name)) for name in ("query", "key", "value")]
    targets += [("score", path, x) for path, x in part_arrays(call.score)]
    targets += [("normalizer", path, x) for path, x in part_arrays(call.normalizer)]
    assert len(targets) == len(gradients), "one gradient for each array"
    here, step = loss(), 1e-6
    size = float(abs(cotangent).sum() * abs(call.value).max(initial=0.0))
    worst = 0.0
    for (name, path, x), gradient in zip(targets, gradients, strict=True):
        gradient = np.zeros_like(x) if gradient is None else gradient
        assert gradient.shape == x.shape, f"the gradient of {name} {path or ''} must have shape {x.shape}"
        assert np.isfinite(gradient).all(), f"the gradient of {name} {path or ''} must be finite"
        if not x.size:
            continue
        direction = rng.normal(size=x.shape)
        ends = []
        for sign in (1, -1):
            moved = x + sign * step * direction
            ends.append(loss(**{name: moved if path is None else replaced(getattr(call, name), path, moved)}))
        central, kink = (ends[0] - ends[1]) / (2 * step), abs(ends[0] + ends[1] - 2 * here) / step
        if kink > 1e-3 * (abs(central) + 1e-2 * size):
            counts.kinks += 1
            continue
        mine = float((gradient * direction).sum())
        norm = float(np.linalg.norm(gradient) * np.linalg.norm(direction))
        unit = EPSILON["float64" if dtype == "float64" else "float32"]
        allowed = (1e-6 + EPSILON[dtype]) * norm + (2e-8 + unit * magnitude(call)) * size * sensitivity(call)
        error = abs(mine - central)
        assert error <= allowed, (
            f"the gradient of {name} {path or ''} is off by {error:.3g}, {allowed:.3g} allowed: {mine} {central}"
        )
        worst = max(worst, error / allowed if allowed else 0.0)
    return worst
