"""Runs random calls in a library and compares their results with those of `oracle.py`."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.core.arrays import namespace
from qkv.core.random import dropout_rate
from qkv.core.tile import Tile
from qkv.errors import RefusedError
from qkv.kernels import KERNELS
from tests.random_calls import oracle
from tests.random_calls.covering import NORMALIZER_KINDS, Row
from tests.random_calls.draw import RandomCall, draw_call, draw_shape, repeated
from tests.random_calls.oracle import Drawn

__all__ = [
    *("EPSILON", "Counts", "acceptance", "arguments_of", "bounds_of", "check_directions", "check_output"),
    *("chosen_length", "cotangents_of", "expected", "inputs_of", "observe", "rows_of", "trained"),
]

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
LARGEST = {"float64": 1e308, "float32": 3e38, "float16": 6e4, "bfloat16": 3e38}
TINIEST = {"float64": 1e-300, "float32": 1e-37, "float16": 2.0**-24, "bfloat16": 1e-37}
"""Below these numbers a dtype has fewer digits."""


@dataclass
class Counts:
    """What a test ran: calls, those with gradients, directions at a kink, and rows and those that were compared."""

    calls: int = 0
    gradients: int = 0
    kinks: int = 0
    rows: int = 0
    compared: int = 0
    kernels: Counter[str] = field(default_factory=Counter)

    def add(self, bounds: Bounds, kernel: str) -> None:
        """Count a call that a kernel ran."""
        self.calls += 1
        self.kernels[kernel] += 1
        self.rows += bounds.comparable.size
        self.compared += int(bounds.comparable.sum())


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
        "dropout": call.dropout,
        "seed": call.seed,
    }


Build = Callable[[RandomCall, Row], tuple[Sequence[Any], dict[str, Any]]]
"""Function that returns the arrays of a call in a library, and its other arguments."""
BY_NAME = {kernel.name: kernel for kernel in KERNELS}
LENGTHS = (48, 256, 512, 768)
"""Lengths at which the planner is asked whether it chooses a kernel."""


def planned(call: RandomCall, row: Row, build: Build, kernel: Any) -> str | None:
    """Return the name of the kernel that would run a call, or None if it is refused."""
    arrays, arguments = build(call, row)
    read = [] if row["readout"] is None else [getattr(readouts, row["readout"])()]
    arguments.pop("seed")
    try:
        return qkv.explain(*arrays, **arguments, readouts=read, kernel=kernel).kernel.name
    except RefusedError:
        return None


def acceptance(build: Build) -> Callable[[Row], bool]:
    """Return a function that tells whether the kernel of a row accepts its call."""

    @functools.cache
    def of(items: tuple[tuple[str, Any], ...]) -> bool:
        row, rng = dict(items), np.random.default_rng(0)
        call = draw_call(rng, row, draw_shape(rng, row), np.asarray)
        return planned(call, row, build, BY_NAME[row["kernel"]]) is not None

    def accepts(row: Row) -> bool:
        # It does not depend on these features.
        plain = {"layout": "contiguous", "magnitude": "ordinary", "dtype": "float32"}
        plain["gradient"] = "none" if row["gradient"] == "none" else "all"
        plain["length"] = "empty" if row["length"] == "empty" else "short"
        return of(tuple((row | plain).items()))

    return accepts


def chosen_length(row: Row, rng: np.random.Generator, build: Build) -> int | None:
    """Return a length at which the planner chooses the kernel of a row, or None if it is none of `LENGTHS`."""
    state = rng.bit_generator.state
    try:
        for length in LENGTHS if row["length"] == "chosen" else ():
            rng.bit_generator.state = state
            call = draw_call(rng, row, draw_shape(rng, row, length), np.asarray)
            if planned(call, row, build, None) == row["kernel"]:
                return length
        return None
    finally:
        rng.bit_generator.state = state


def observe(call: RandomCall, arrays: Sequence[Any], arguments: dict[str, Any], kernel: Any) -> tuple[Any, Any]:
    """Return the output of a call and its readout, or None."""
    if call.readout is None:
        return qkv.attend(*arrays, **arguments, kernel=kernel), None
    seen = qkv.observe(*arrays, **arguments, readouts=[getattr(readouts, call.readout)()], kernel=kernel)
    return seen.output, seen.readouts[0]


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


@dataclass(frozen=True)
class Expected:
    """What the oracle computes of some rows of a call in float64.

    Attributes:
        output: the output, `(*batch, rows, value_width)`.
        readout: the readout, `(*batch, rows)`, or None.
        weights: the weights before dropout, `(*batch, rows, k)`.
        logits: the logits, −inf where the mask excludes a key.
    """

    output: Any
    readout: Any
    weights: Any
    logits: Any


def rows_of(call: RandomCall, rng: np.random.Generator) -> Any:
    """Return all rows of a short call, or 24 of a long one, among them the first and the last."""
    q = call.shape.q
    return np.arange(q) if q <= 150 else np.unique([0, q - 1, *rng.integers(0, q, size=22)])


@np.errstate(all="ignore")
def expected(call: RandomCall, rows: Any, **changes: Any) -> Expected:
    """Return what the oracle computes of the queries `rows`, with some arrays or parts of the call changed."""
    x = {"query": call.query, "key": call.key, "value": call.value, "score": call.score, "normalizer": call.normalizer}
    x |= changes
    key, value, shape = repeated(call, x["key"]), repeated(call, x["value"]), call.shape
    at = oracle.positions(call.start, rows, shape.k)
    logits = oracle.logits_of(oracle.select_rows(x["score"], rows), x["query"][..., rows, :], key, at)
    batch = (*shape.batch, len(rows), shape.k)
    allowed = np.broadcast_to(call.allowed, (*shape.batch, shape.q, shape.k))[..., rows, :]
    logits = np.broadcast_to(np.where(allowed, logits, -np.inf), batch)
    weights = np.broadcast_to(oracle.weights_of(x["normalizer"], logits), batch)
    readout = None
    if call.readout is not None:
        readout = oracle.readout_of(call.readout, logits, weights, x["normalizer"], at)
    kept = weights
    if call.dropout:  # which weights are dropped is no result, but the same in every kernel
        tile = Tile.whole(shape.q, shape.k, shape.batch, seed=call.seed)
        mask = np.asarray(tile.dropout_mask(np.zeros(()), call.dropout))[..., rows, :]
        kept = np.where(mask, weights / (1 - dropout_rate(call.dropout)), 0)
    return Expected(kept @ value, readout, weights, logits)


@dataclass(frozen=True)
class Bounds:
    """Bounds of errors of some rows of a call, from the sums of magnitudes in its logits.

    Attributes:
        logits: largest bound of the errors of the logits of each row, `(*batch, rows)`.
        comparable: whether a row is compared: the bound is below 0.1, and no key is selected within it of a tie.
        output: of each element of the output, before it is rounded to the dtype of the call.
        readout: of the readout of each row, or None.
    """

    logits: Any
    comparable: Any
    output: Any
    readout: Any


@np.errstate(all="ignore")
def bounds_of(call: RandomCall, wanted: Expected, rows: Any, dtype: str, rounded: bool = False) -> Bounds:
    """Return the bounds of the errors of a call that is computed in float32, or in float64 if that is the dtype.

    If `rounded`, the weights are rounded to `dtype` before they are multiplied with the values.
    """
    unit = EPSILON["float64" if dtype == "float64" else "float32"]
    key, value = repeated(call, call.key), repeated(call, call.value)
    at = oracle.positions(call.start, rows, call.shape.k)
    score = oracle.select_rows(call.score, rows)
    logits, weights = wanted.logits, wanted.weights
    with np.errstate(all="ignore"):
        limit = 2.0**24 if dtype == "float64" else 2.0**8
        found = oracle.logit_errors(score, call.query[..., rows, :], key, at, limit)
        errors = unit * np.broadcast_to(found, logits.shape)
        errors = np.where(logits == -np.inf, np.where(np.isfinite(errors), 0.0, errors), errors)
        # Keys far below the largest have no weight, whatever the errors of their logits are.
        reach = (logits - errors).max(-1, keepdims=True, initial=-np.inf) - 40 * reach_of(call.normalizer)
        errors = np.where(logits + errors < reach, 0.0, errors)
        worst = errors.max(-1, keepdims=True, initial=0.0)
        gaps = oracle.gaps(call.normalizer, logits)
        comparable = ((worst < 0.1) & ((gaps > 4 * worst) | ((gaps == 0) & (worst == 0))))[..., 0]
        worst = np.where(comparable[..., None], worst, 0.0)
        errors = np.where(comparable[..., None], errors, 0.0)
        # An error of the threshold τ changes a weight w of entmax by up to a multiple of √w.
        inner = call.normalizer.inner[0] if call.normalizer.name == "TopK" else call.normalizer
        size = np.sqrt(abs(weights)) if inner.name in NORMALIZER_KINDS["sparse"] else abs(weights)
        of_weights = oracle.weight_errors(call.normalizer, logits, weights, errors) + 16 * unit * size
    scale = 1 / (1 - dropout_rate(call.dropout)) if call.dropout else 1.0
    of_sums = 8 * unit + (EPSILON[dtype] / 2 if rounded else 0)
    output = scale * (of_weights @ abs(value) + of_sums * (abs(weights) @ abs(value)))
    readout = None
    if call.readout == "LogSumExp":
        temperature = oracle.per_pair(call.normalizer.arguments.get("temperature", 1.0))[..., 0]
        readout = 2 * worst[..., 0] / temperature + 8 * unit * (
            1 + abs(np.where(np.isfinite(wanted.readout), wanted.readout, 0))
        )
    elif call.readout == "Entropy":
        readout = (of_weights * (2 + abs(np.log(np.maximum(weights, 1e-40))))).sum(-1) + 8 * unit
    elif call.readout == "MeanDistance":
        readout = (of_weights * abs(at[0] - at[1])).sum(-1) + 8 * unit * abs(wanted.readout)
    return Bounds(worst[..., 0], comparable, output, readout)


def reach_of(normalizer: Drawn) -> Any:
    """Return how far below the largest logit a key has a weight of e^-1, or at least infinity."""
    if normalizer.name == "TopK":
        return reach_of(normalizer.inner[0])
    if normalizer.name in ("Hard", "Sparsemax", "Entmax15", "Entmax"):
        return 1.0
    return oracle.per_pair(normalizer.arguments.get("temperature", 1.0)) if normalizer.name == "Softmax" else np.inf


@np.errstate(all="ignore")
def check_output(
    call: RandomCall, got: Any, readout: Any, dtype: str, rows: Any, wanted: Expected, bounds: Bounds
) -> None:
    """Assert that the output and the readout agree with those of the oracle within their bounds."""
    shape = call.shape
    assert got.shape == (*shape.batch, shape.q, shape.value_width), f"wrong shape {got.shape}"
    rounding = EPSILON[dtype] if dtype in ("float16", "bfloat16") else 0.0
    pairs = [("output", got[..., rows, :], wanted.output, bounds.output, bounds.comparable[..., None])]
    if wanted.readout is not None:
        pairs.append(("readout", readout[..., rows], wanted.readout, bounds.readout, bounds.comparable))
    for name, x, y, bound, compared in pairs:
        compared = compared & np.isfinite(y) & (abs(y) + bound < LARGEST[dtype])
        assert np.isfinite(np.where(compared, x, 0)).all(), f"every element of the {name} must be finite"
        with np.errstate(invalid="ignore"):
            excess = np.where(compared, abs(x - y) - bound - rounding * abs(y) - TINIEST[dtype], 0.0)
        assert (excess <= 0).all(), (
            f"the {name} is off by {abs(np.where(compared, x - y, 0)).max():.3g}, {excess.max():.3g} more than allowed"
        )


def cotangents_of(
    call: RandomCall, wanted: Expected, rows: Any, bounds: Bounds, rng: np.random.Generator, round_to: Any
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return random gradients of output and readout, first of `rows`, then of all rows.

    They are 0 for rows that are not compared. Those of the readout are None without one.
    """
    found: list[tuple[Any, Any]] = []
    for x, compared in ((wanted.output, bounds.comparable[..., None]), (wanted.readout, bounds.comparable)):
        if x is None:
            found.append((None, None))
            continue
        part = round_to(rng.normal(size=x.shape)) * (compared & np.isfinite(x))
        whole = np.zeros((*call.shape.batch, call.shape.q, *x.shape[len(call.shape.batch) + 1 :]))
        whole[(*(slice(None),) * len(call.shape.batch), rows)] = part
        found.append((part, whole))
    return (found[0][0], found[1][0]), (found[0][1], found[1][1])


def inputs_of(call: RandomCall) -> list[tuple[str, Any, Any]]:
    """Return the name, the path in its part and the elements of each array of numbers, in the order of `build`."""
    targets = [(name, None, getattr(call, name)) for name in ("query", "key", "value")]
    targets += [("score", path, x) for path, x in part_arrays(call.score)]
    return targets + [("normalizer", path, x) for path, x in part_arrays(call.normalizer)]


def trained(call: RandomCall, which: str, rng: np.random.Generator) -> list[bool]:
    """Return which of the inputs of a call need a gradient; `which` is a value of the feature "gradient"."""
    names = [name for name, _, _ in inputs_of(call)]
    if which in ("none", "all"):
        return [which == "all"] * len(names)
    if which == "any":
        return [bool(rng.random() < 0.5) for _ in names]
    return [(name == which.removeprefix("not ")) != which.startswith("not ") for name in names]


@np.errstate(all="ignore")
def check_directions(
    call: RandomCall,
    gradients: Sequence[Any],
    cotangents: tuple[Any, Any],
    rng: np.random.Generator,
    dtype: str,
    counts: Counts,
    rows: Any,
    bounds: Bounds,
) -> None:
    """Assert that gradients agree with derivatives of the oracle in one random direction for each array.

    `gradients` are those of `inputs_of`, None where none is needed; `cotangents` those of output and readout on `rows`.
    """
    targets = inputs_of(call)
    assert len(targets) == len(gradients), "one gradient for each array"
    unit = EPSILON["float64" if dtype == "float64" else "float32"] + bounds.logits.max(initial=0.0)
    here = expected(call, rows)
    mass = max(1.0, abs(here.weights).sum(-1).max(initial=0.0)) * (2 if call.dropout else 1)
    size = float(abs(cotangents[0]).sum() * abs(call.value).max(initial=0.0)) * mass
    if here.readout is not None:
        span = (
            call.shape.k + np.abs(call.start).max(initial=0) + call.shape.q if call.readout == "MeanDistance" else 20.0
        )
        size += float(abs(cotangents[1]).sum() * span)
    divisor = oracle.smallest_divisor(call.score, call.normalizer, call.query, call.key, here.logits)
    with np.errstate(all="ignore"):
        top = here.logits.max(-1, keepdims=True, initial=-np.inf)
        close = ~(here.logits < top - 40 * reach_of(call.normalizer)) & bounds.comparable[..., None]
        spread = 1 + abs(np.where(close & np.isfinite(here.logits), here.logits, 0)).max(initial=0.0)

    def derivative(name: str, path: Any, x: Any, direction: Any, at: Any = 0.0) -> tuple[float, float]:
        """Return the derivative of the loss, and the largest derivative of a logit."""
        moved = x + at * direction + 1e-200j * direction
        found = expected(call, rows, **{name: moved if path is None else replaced(getattr(call, name), path, moved)})
        loss = (found.output.imag * cotangents[0]).sum()
        if found.readout is not None:
            loss += (np.where(cotangents[1] == 0, 0, found.readout.imag) * cotangents[1]).sum()
        slopes = np.where(close, np.nan_to_num(abs(found.logits.imag)), 0)
        return float(loss) * 1e200, float(slopes.max(initial=0.0) * 1e200)

    for (name, path, x), gradient in zip(targets, gradients, strict=True):
        if gradient is None or not x.size:
            continue
        gradient = np.asarray(gradient)
        assert gradient.shape == x.shape, f"the gradient of {name} {path or ''} must have shape {x.shape}"
        scale = np.std(x) or abs(x).max() or 1.0
        for index in map(tuple, np.argwhere(~np.isfinite(gradient))[:9]):
            along = np.zeros(x.shape)
            along[index] = 1.0
            large = abs(derivative(name, path, x, along)[0]) > 0.99 * LARGEST[dtype]
            assert large, f"the gradient of {name} {path or ''} must be finite"
        direction = rng.normal(size=x.shape) * scale * np.isfinite(gradient)
        gradient = np.where(np.isfinite(gradient), gradient, 0.0)
        wanted, slope = derivative(name, path, x, direction)
        mine = float((gradient * direction).sum())
        norm = float(np.linalg.norm(gradient) * np.linalg.norm(direction))
        slope = {
            "value": abs(direction).max(),
            "normalizer": spread * abs(direction / np.where(x == 0, 1, x)).max(),
        }.get(name, 1 + slope)
        allowed = EPSILON[dtype] * norm + 32 * unit * size * slope * max(1.0, 1 / divisor) + TINIEST[dtype] * norm
        error = abs(mine - wanted)
        if error > allowed:
            ends = [derivative(name, path, x, direction, at)[0] for at in (-1e-5, 1e-5)]
            if abs(ends[1] - ends[0]) > error / 2:
                counts.kinks += 1
                continue
        assert error <= allowed, (
            f"the gradient of {name} {path or ''} is off by {error:.3g}, {allowed:.3g} allowed: {mine} {wanted}"
        )
