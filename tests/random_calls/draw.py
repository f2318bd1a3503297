"""Draws the calls of the rows of a covering design as plain float64 NumPy arrays and names of parts.

`oracle.py` computes their results.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.random_calls.covering import FEATURES, WRAPPERS, Row, fits
from tests.random_calls.oracle import Drawn, allowed_pairs

__all__ = ["RandomCall", "Shape", "draw_call", "draw_shape", "random_row", "redraw", "repeated"]


@dataclass(frozen=True)
class Shape:
    q: int
    k: int
    width: int
    value_width: int
    batch: tuple[int, ...] = ()
    key_batch: tuple[int, ...] = ()
    value_batch: tuple[int, ...] = ()
    grouped: bool = False  # fewer heads of keys and values than of queries
    query_batch: tuple[int, ...] | None = None  # None: that of the call

    @property
    def queries(self) -> tuple[int, ...]:
        return self.batch if self.query_batch is None else self.query_batch

    def __str__(self) -> str:
        axes = f"{self.batch}/{self.key_batch}/{self.value_batch}"
        return f"{axes} {self.q}×{self.k}×{self.width}→{self.value_width}{' grouped' if self.grouped else ''}"


LENGTHS = {
    "empty": ((0, 4), (3, 0)),
    "one query": ((1, 1), (1, 9), (1, 40)),
    "short": ((2, 3), (5, 5), (8, 3), (3, 17), (17, 17)),
    "medium": ((40, 40), (67, 40), (30, 131)),
}
"""Numbers of queries and keys. At a chosen length they are equal."""


def draw_shape(rng: np.random.Generator, row: Row, chosen: int | None = None) -> Shape:
    """Return a shape of the lengths and batch axes of a row; `chosen` is the length in place of that of the row."""
    of_row = LENGTHS.get(row["length"], ((40, 40),))
    q, k = (chosen, chosen) if chosen else of_row[rng.integers(len(of_row))]
    width, value_width = int(rng.choice([1, 2, 3, 4, 8, 16])), int(rng.choice([1, 2, 3, 5, 8]))
    axes: dict[str, tuple[tuple[int, ...], ...]] = {  # of the call, the keys, the values and the queries
        "none": ((), (), ()),
        "heads": ((2,), (2,), (2,)),
        "broadcast": ((2, 3), (2, 1), (1, 3)),
        "grouped": ((2, 4), (2, 2), (2, 2)),
        "values": ((2,), (), (2,), ()),
        "two axes": ((2, 1, 2), (1, 2), (2, 1, 1)),
        "no elements": ((0, 2), (0, 2), (0, 1)),
    }
    batch, key_batch, value_batch, *query_batch = axes[row["batch"]]
    return Shape(q, k, width, value_width, batch, key_batch, value_batch, row["batch"] == "grouped", *query_batch)


def random_row(rng: np.random.Generator, row: Row) -> Row:
    """Return a row with random values of all features that `row` does not have."""
    while True:
        found = {name: values[rng.integers(len(values))] for name, values in FEATURES.items()} | row
        if fits(found):
            return found


@dataclass(frozen=True)
class RandomCall:
    """A call in float64. In `poisoned`, entries that no pair of the mask reaches are NaN or infinite."""

    shape: Shape
    query: Any
    key: Any
    value: Any
    score: Drawn
    normalizer: Drawn
    mask: Drawn | None
    start: Any
    position: dict[str, Any] | None
    poisoned: tuple[Any, Any, Any]
    readout: str | None = None
    dropout: float = 0.0
    seed: int | None = None

    def __str__(self) -> str:
        more = f"positions={self.position} readout={self.readout} dropout={self.dropout}"
        return f"{self.shape} {self.score} {self.normalizer} mask={self.mask} {more}"

    @property
    def repeats(self) -> int:
        return self.shape.batch[-1] // self.shape.key_batch[-1] if self.shape.grouped else 1

    @property
    def allowed(self) -> Any:
        return allowed_pairs(self.mask, self.shape.q, self.shape.k, self.start)


class Draw:
    """Random arrays and parts for one shape, with numbers that the dtype `round_to` can hold."""

    def __init__(self, rng: np.random.Generator, shape: Shape, round_to: Any) -> None:
        self.rng, self.shape, self.round = rng, shape, round_to
        self.heads = (1,) * (len(shape.batch) - 1) + shape.batch[-1:]

    def normal(self, *shape: int, scale: float = 1.0) -> Any:
        return self.round(self.rng.normal(size=shape) * scale)

    def positive(self, *, low: float = 0.5, high: float = 2.0) -> Any:
        """Return a number, or an array with one number for the call or for each head."""
        kind = self.rng.integers(3)
        if kind == 0:
            return float(np.round(self.rng.uniform(low, high), 3))
        return self.round(self.rng.uniform(low, high, size=() if kind == 1 else self.heads))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def one_of(self, *options: Any) -> Any:
        return options[self.rng.integers(len(options))]

    def integers(self, high: int, *shape: int) -> Any:
        return self.rng.integers(0, high, size=shape)

    def lead(self) -> tuple[int, ...]:
        return self.heads if self.chance(0.3) else ()

    def score(self, name: str, within: str = "ScaledDot", width: int | None = None) -> Drawn:
        """Return a score; `within` is the one inside of it, where it has one."""
        shape, width = self.shape, self.shape.width if width is None else width
        lead, hidden = self.lead(), self.one_of(1, 6, 16, 24)
        wrapped = (self.score(within, width=width),) if name in WRAPPERS and name not in ("Projected", "SumOf") else ()
        arguments: dict[str, Any] = {}
        if name == "Dot":
            arguments = {"scale": self.one_of(1.0, 0.5, -0.3)}
        elif name == "Bilinear":
            arguments = {"weight": self.normal(*lead, width, width, scale=0.5)}
            if self.chance(0.5):
                arguments = {key: self.normal(*lead, width, 2, scale=0.6) for key in ("weight", "key_factor")}
        elif name == "Additive":
            arguments = {key: self.normal(*lead, hidden, width) for key in ("query_weight", "key_weight")}
            arguments["vector"] = self.normal(*lead, hidden)
            if self.chance(0.5):
                arguments["bias"] = self.normal(hidden)
        elif name == "Gated":
            arguments = {key: self.normal(width) for key in ("query_weight", "key_weight")}
            arguments["bias"] = self.positive()
        elif name == "SeparableGate":
            arguments = {key: self.normal(width) for key in ("query_weight", "key_weight")}
            arguments |= {"query_bias": self.positive(), "key_bias": self.positive()}
        elif name == "Cosine":
            arguments = {"temperature": self.positive(low=0.1)}
        elif name == "Features":
            arguments = {"function": self.one_of("elu", "relu")}
        elif name == "Projected":
            arguments = {key: self.normal(3, width, scale=0.7) for key in ("query_weight", "key_weight")}
            wrapped = (self.score(within, width=3),)
        elif name == "SumOf":
            others = [self.score(self.one_of("Dot", "Additive", "Gaussian"), width=width)] * self.one_of(1, 2)
            wrapped = (self.score(within, width=width), *others)
        elif name in ("Gaussian", "Laplace"):
            arguments = {"bandwidth": self.positive()}
        elif name in ("Boxcar", "Epanechnikov", "Triangular"):
            arguments = {"bandwidth": self.positive(low=1.0, high=1.0 + 2 * width**0.5)}
        elif name == "Softcap":
            arguments = {"cap": self.positive(low=0.5, high=4.0)}
        elif name == "Biased" and self.chance(0.5):
            arguments = {"per_key": self.normal(*lead, shape.k)}
        elif name == "Biased":
            arguments = {"bias": self.normal(*self.one_of((), self.heads, shape.batch), shape.q, shape.k)}
        elif name == "ALiBi":
            arguments = {"slope": self.positive(low=0.05)}
        elif name == "QuadraticPosition":
            arguments = {"coefficient": self.positive(low=0.01, high=0.3)}
        elif name == "RelativePosition":
            arguments = {"table": self.normal(*lead, 8), "bidirectional": self.chance(0.5), "max_distance": 20}
        elif name == "ClassTable":
            arguments = {"table": self.normal(*lead, 2, 3)}
            arguments |= {"query_classes": self.integers(2, shape.q), "key_classes": self.integers(3, shape.k)}
        elif name == "Custom":
            arguments = {"scale": self.round(self.rng.uniform(0.5, 2.0))}
        return Drawn(name, arguments, wrapped)

    def normalizer(self, name: str) -> Drawn:
        arguments: dict[str, Any] = {}
        if name == "Softmax" and self.chance(0.5):
            arguments["temperature"] = self.positive()
        if name == "Softmax" and self.chance(0.2):
            arguments["sink"] = self.one_of(0.0, self.normal(*self.heads))
        if name == "Sigmoid":
            arguments["bias"] = self.positive()
        if name == "Entmax":
            arguments["alpha"] = self.positive(low=1.1, high=2.5)
        if name == "Custom":
            arguments["scale"] = self.round(self.rng.uniform(0.5, 2.0))
        inner = ()
        if name == "TopK":
            arguments["k"] = int(self.one_of(1, 2, 3, 7))
            inner = (self.normalizer(self.one_of(*(n for n in FEATURES["normalizer"] if n not in ("Sum", "TopK")))),)
        return Drawn(name, arguments, inner)

    def mask(self, name: str | None) -> Drawn | None:
        shape, batch = self.shape, self.shape.batch
        if name is None:
            return None
        if name in ("and", "or", "not"):
            simple = [n for n in FEATURES["mask"] if n not in (None, "and", "or", "not")]
            inner = [self.mask(self.one_of(*simple)) for _ in range(1 if name == "not" else 2)]
            return Drawn(name, {}, tuple(x for x in inner if x is not None))
        lead = self.one_of((), self.heads, batch)
        arguments: dict[str, Any] = {}
        if name == "Causal" and self.chance(0.6):
            arguments["align"] = self.one_of("start", "end")
        elif name == "Window":
            arguments = {"before": self.one_of(None, 0, 1, 6), "after": self.one_of(None, 0, 2)}
        elif name == "AllowedKeys":
            arguments = {"array": self.rng.random((*lead, shape.k)) < 0.7}
        elif name == "Lengths":
            arguments = {"lengths": self.integers(shape.k + 1, *batch)}
        elif name == "AllowedPairs":
            rows, columns = self.one_of((shape.q, shape.k), (1, shape.k), (shape.q, shape.k))
            arguments = {"array": self.rng.random((*lead, rows, columns)) < self.one_of(0.2, 0.7)}
        elif name == "Prefix":
            arguments = {"length": self.one_of(2, self.integers(shape.k + 1, *batch))}
        elif name == "Documents":
            arguments = {
                "query_ids": np.sort(self.integers(3, *lead, shape.q), -1),
                "key_ids": np.sort(self.integers(3, *lead, shape.k), -1),
            }
        elif name == "Blocks":
            size = self.one_of(1, 4)
            arguments = {"layout": self.rng.random((*lead, -(-shape.q // size), -(-shape.k // size))) < 0.6}
            arguments["size"] = size
        return Drawn(name, arguments)

    def positions(self) -> dict[str, Any] | None:
        q, k, kind = self.shape.q, self.shape.k, self.rng.integers(5)
        if kind == 0 and q == k:
            return None
        if kind in (1, 2) or (kind == 4 and not self.shape.batch):
            return {"align": "start" if kind == 1 else "end"}
        if kind == 3:
            return {"query_start": int(self.rng.integers(0, max(1, k)))}
        return {"query_start": self.integers(max(1, k), *self.shape.batch)}

    def magnitude(self, row: Row, query: Any, key: Any, score: Drawn) -> tuple[Any, Any, Drawn]:
        """Return queries and keys, and the score, with numbers of a kind of magnitude."""
        kind, largest = row["magnitude"], 2 if row["dtype"] == "float16" else 6
        scale = {"tiny": 10 ** self.rng.uniform(-largest, -1), "huge": 10 ** self.rng.uniform(1, largest)}.get(
            kind, 1.0
        )
        offset = 10 ** self.rng.uniform(0, largest) * self.normal(self.shape.width) if kind == "offset" else 0.0
        if kind == "grid":  # such as time stamps or positions
            unit = 10 ** self.rng.uniform(-min(3, largest), min(3, largest))
            moved = 0.25 * self.chance(0.5)
            query, key = (np.arange(x.shape[-2])[:, None] + np.round(x * 4) * moved for x in (query, key))
            query, key, score = query * unit, key * unit, self.scaled(score, unit * 10 ** self.rng.uniform(-1, 2))
        query, key = (self.round(x * scale + offset) for x in (query, key))
        limit = min(3, largest)
        return query, key, self.scaled(score, 10 ** self.rng.uniform(-limit, limit)) if kind == "parameters" else score

    def scaled(self, part: Drawn, factor: float) -> Drawn:
        """Return a part with its bandwidths, or else its first array of numbers, multiplied by a factor."""
        names = [n for n, x in part.arguments.items() if np.asarray(x).dtype.kind == "f"]
        arguments = dict(part.arguments)
        for name in names[:1]:
            x = self.round(arguments[name] * factor)
            arguments[name] = float(x) if isinstance(arguments[name], float) else x
        return Drawn(part.name, arguments, tuple(self.scaled(x, factor) for x in part.inner))


def draw_call(rng: np.random.Generator, row: Row, shape: Shape, round_to: Any) -> RandomCall:
    """Return a call of a row, with this shape."""
    draw = Draw(rng, shape, round_to)
    scale = draw.one_of(1.0, 1.0, 0.1, 4.0) if row["magnitude"] == "ordinary" else 1.0
    query = draw.normal(*shape.queries, shape.q, shape.width, scale=scale)
    key = draw.normal(*shape.key_batch, shape.k, shape.width, scale=scale)
    value = draw.normal(*shape.value_batch, shape.k, shape.value_width)
    query, key, score = draw.magnitude(row, query, key, draw.score(row["score"], row["inner"]))
    if score.name == "Exact":
        query, key = (np.clip(np.round(x), -1, 1) for x in (query, key))
    normalizer, mask, position = draw.normalizer(row["normalizer"]), draw.mask(row["mask"]), draw.positions()
    start = 0 if position is None else position.get("query_start", shape.k - shape.q)
    start = 0 if position == {"align": "start"} else start
    call = RandomCall(
        shape, query, key, value, score, normalizer, mask, start, position, (query, key, value), row["readout"],
        row["dropout"], int(rng.integers(2**31)) if row["dropout"] else None,
    )  # fmt: skip
    return poison(call, rng) if draw.chance(0.25) and mask is not None and shape.q and shape.k else call


def redraw(call: RandomCall, rng: np.random.Generator, round_to: Any) -> RandomCall:
    """Return a call with the same parts and shapes and with other elements of all arrays."""

    def other(part: Drawn) -> Drawn:
        arguments = {}
        for name, x in part.arguments.items():
            if not isinstance(x, np.ndarray):
                arguments[name] = x
            elif x.dtype.kind == "f":  # what is positive stays positive, and α stays above 1
                low, high = (1.0, 1.0) if name == "alpha" else (0.0, 1.4)
                arguments[name] = round_to(low + (x - low) * rng.uniform(0.7, high, size=x.shape))
            else:
                mixed = rng.permuted(x.reshape(-1)).reshape(x.shape)
                arguments[name] = np.sort(mixed, -1) if name.endswith("_ids") else mixed
        return Drawn(part.name, arguments, tuple(map(other, part.inner)))

    scales = [np.std(x) if x.size else 1.0 for x in (call.query, call.key, call.value)]
    query, key, value = (
        round_to(x.mean() * (s < abs(x).mean() / 4) + s * rng.normal(size=x.shape)) if x.size else x
        for x, s in zip((call.query, call.key, call.value), scales, strict=True)
    )
    if call.score.name == "Exact":
        query, key = (np.clip(np.round(x), -1, 1) for x in (query, key))
    mask = None if call.mask is None else other(call.mask)
    new = dataclasses.replace(
        call, query=query, key=key, value=value, score=other(call.score), normalizer=other(call.normalizer), mask=mask,
        poisoned=(query, key, value),
    )  # fmt: skip
    poisoned = mask is not None and new.shape.q and new.shape.k and rng.random() < 0.25
    return poison(new, rng) if poisoned else new


def repeated(call: RandomCall, x: Any) -> Any:
    return x if call.repeats == 1 else np.repeat(x, call.repeats, axis=-3)


def poison(call: RandomCall, rng: np.random.Generator) -> RandomCall:
    """Return the call with NaN and infinity where no pair may attend: keys, values and whole rows."""
    shape = call.shape
    full = np.broadcast_shapes(call.allowed.shape, (*shape.batch, shape.q, shape.k))
    reached = np.broadcast_to(call.allowed, full).any(-2)  # (*batch, k)
    if shape.grouped:
        reached = reached.reshape(*shape.key_batch, call.repeats, shape.k).any(-2)
    bad = rng.choice([np.nan, np.inf, -np.inf])

    def spoilt(x: Any, batch: tuple[int, ...], out: Any) -> Any:
        while out.ndim - 1 > len(batch):
            out = out.any(0)
        for axis, n in enumerate(batch):
            out = out.any(axis, keepdims=True) if n == 1 else out
        return np.where(out[..., None], x, bad)

    key = spoilt(call.key, shape.key_batch, reached) if call.score.name != "Exact" else call.key
    value = spoilt(call.value, shape.value_batch, reached)
    query = spoilt(call.query, shape.queries, np.broadcast_to(call.allowed, full).any(-1))
    return dataclasses.replace(call, poisoned=(query, key, value))
