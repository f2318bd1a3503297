"""Draws random calls as plain float64 NumPy arrays and names of parts; `oracle.py` computes their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.random_calls.oracle import Drawn, allowed_pairs, logits_of, positions, smallest_gap

__all__ = ["RandomCall", "Shape", "SHAPES", "draw_call", "draw_shape", "redraw"]

NONNEGATIVE = ("Features", "Constant", "Exact")  # scores that the normalizer Sum accepts
GENERAL = ("Laplace", "Boxcar", "Epanechnikov", "Triangular", "Exact", "Custom")


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

    def __str__(self) -> str:
        axes = f"{self.batch}/{self.key_batch}/{self.value_batch}"
        return f"{axes} {self.q}×{self.k}×{self.width}→{self.value_width}{' grouped' if self.grouped else ''}"


SHAPES = (
    Shape(4, 6, 3, 2, (2, 2), (2, 2), (2, 2)),
    Shape(1, 9, 4, 4, (2,), (2,), (1,)),
    Shape(5, 5, 2, 3),
    Shape(7, 3, 1, 1, (2, 4), (2, 2), (2, 2), grouped=True),
    Shape(3, 0, 2, 2, (2,), (2,), (2,)),
    Shape(0, 4, 2, 2, (2,), (2,), (2,)),
)
"""Shapes for the libraries that compile a function for every shape."""


def draw_shape(rng: np.random.Generator) -> Shape:
    lengths = [0, 1, 1, 2, 3, 5, 8, 17, 40 if rng.random() < 0.8 else 300]
    q, k = (int(rng.choice(lengths)) for _ in range(2))
    if rng.random() < 0.3:
        q = k
    width, value_width = int(rng.choice([1, 2, 3, 4, 8, 16])), int(rng.choice([1, 2, 3, 5, 8]))
    if rng.random() < 0.15:
        heads = int(rng.choice([1, 2]))
        lead = (2,) if rng.random() < 0.5 else ()
        return Shape(q, k, width, value_width, (*lead, 2 * heads), (*lead, heads), (*lead, heads), grouped=True)
    batch: tuple[int, ...] = ((), (2,), (3,), (2, 3), (1, 2), (2, 1, 2))[rng.integers(6)]
    key_batch, value_batch = (
        tuple(1 if rng.random() < 0.25 else n for n in batch)[0 if rng.random() < 0.8 else len(batch) :]
        for _ in range(2)
    )
    return Shape(q, k, width, value_width, batch, key_batch, value_batch)


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

    def __str__(self) -> str:
        return f"{self.shape} {self.score} {self.normalizer} mask={self.mask} positions={self.position}"

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

    def score(self, names: tuple[str, ...], depth: int = 0, width: int | None = None) -> Drawn:
        shape = self.shape
        name, width = self.one_of(*names), shape.width if width is None else width
        lead, hidden = self.lead(), self.one_of(1, 3, 6)
        plain = ("Dot", "ScaledDot", "Gaussian", "Additive", "Laplace", "Cosine")
        wrapped = () if name not in WRAPPERS else (self.score(plain if depth else plain + WRAPPERS, depth + 1, width),)
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
            wrapped = (self.score(plain, 2, 3),)
        elif name == "SumOf":
            wrapped = tuple(self.score(plain + WRAPPERS, depth + 1, width) for _ in range(self.one_of(2, 3)))
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

    def normalizer(self, score: Drawn, suited: tuple[Any, Any] | None = None) -> Drawn:
        if suited is not None:
            names = [n for n in suited[1] if n != "Sum" or score.name in NONNEGATIVE]
            return self.named_normalizer(self.one_of(*names))
        names = ["Softmax"] * 4 + ["Mean", "Identity", "Sigmoid", "Hard", "TopK", "TopK"]
        names += ["Sparsemax", "Entmax15", "Entmax", "Custom"]
        names += ["Sum"] * 8 if score.name in NONNEGATIVE else []
        return self.named_normalizer(self.one_of(*names))

    def named_normalizer(self, name: str) -> Drawn:
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
            inner = (self.named_normalizer(self.one_of("Softmax", "Sigmoid", "Sparsemax", "Entmax15")),)
        return Drawn(name, arguments, inner)

    def mask(self, depth: int = 0) -> Drawn | None:
        shape, batch = self.shape, self.shape.batch
        if depth == 0 and self.chance(0.25):
            return None
        names = ["Causal", "Window", "Keys", "Lengths", "Pairs", "Prefix", "Documents", "Blocks", "Custom"]
        name = self.one_of(*names + ["and", "or", "not"] * (depth == 0))
        if name in ("and", "or", "not"):
            return Drawn(name, {}, tuple(self.mask(1) or Drawn("Causal") for _ in range(1 if name == "not" else 2)))
        lead = self.one_of((), self.heads, batch)
        arguments: dict[str, Any] = {}
        if name == "Causal" and self.chance(0.6):
            arguments["align"] = self.one_of("start", "end")
        elif name == "Window":
            arguments = {"before": self.one_of(None, 0, 1, 6), "after": self.one_of(None, 0, 2)}
        elif name == "Keys":
            arguments = {"array": self.rng.random((*lead, shape.k)) < 0.7}
        elif name == "Lengths":
            arguments = {"lengths": self.integers(shape.k + 1, *batch)}
        elif name == "Pairs":
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


WRAPPERS = ("Softcap", "Biased", "ALiBi", "QuadraticPosition", "RelativePosition", "ClassTable")
SCORES = (
    *("Dot", "ScaledDot", "ScaledDot", "Bilinear", "Additive", "Additive", "Gated", "SeparableGate", "Cosine"),
    *("Features", "Features", "Projected", "SumOf", "Gaussian", "Gaussian", "Constant", *GENERAL, *WRAPPERS),
)


INNER_PRODUCTS = ("Dot", "ScaledDot", "ScaledDot", "Bilinear", "SeparableGate", "Cosine", "Gaussian")
SUITED = {
    "fused": (INNER_PRODUCTS, ("Softmax",)),
    "batched": (("ScaledDot", "Additive", "Additive", "Gaussian", "Custom", "Gated", *WRAPPERS), ("Softmax",)),
    "linear": (("Features", "Features", "Dot"), ("Sum", "Identity")),
}
"""Scores and normalizers that some kernels need; half of the calls of these kernels draw from them."""


def draw_call(rng: np.random.Generator, shape: Shape, round_to: Any, kernel: object = None) -> RandomCall:
    """Return a call of this shape without near ties, which a dtype of fewer digits would break otherwise."""
    suited = SUITED.get(str(kernel)) if rng.random() < 0.5 else None
    while True:
        draw = Draw(rng, shape, round_to)
        scale = draw.one_of(1.0, 1.0, 0.1, 4.0)
        query = draw.normal(*shape.batch, shape.q, shape.width, scale=scale)
        key = draw.normal(*shape.key_batch, shape.k, shape.width, scale=scale)
        value = draw.normal(*shape.value_batch, shape.k, shape.value_width)
        score = draw.score(SCORES if suited is None else suited[0])
        if score.name == "Exact":
            query, key = (np.clip(np.round(x), -1, 1) for x in (query, key))
        normalizer, mask, position = draw.normalizer(score, suited), draw.mask(), draw.positions()
        start = 0 if position is None else position.get("query_start", shape.k - shape.q)
        start = 0 if position == {"align": "start"} else start
        call = RandomCall(shape, query, key, value, score, normalizer, mask, start, position, (query, key, value))
        if gap_is_safe(call):
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

    while True:
        query, key, value = (round_to(rng.normal(size=x.shape)) for x in (call.query, call.key, call.value))
        if call.score.name == "Exact":
            query, key = (np.clip(np.round(x), -1, 1) for x in (query, key))
        mask = None if call.mask is None else other(call.mask)
        score, normalizer = other(call.score), other(call.normalizer)
        new = RandomCall(
            call.shape, query, key, value, score, normalizer, mask, call.start, call.position, (query, key, value)
        )
        if gap_is_safe(new):
            poisoned = mask is not None and new.shape.q and new.shape.k and rng.random() < 0.25
            return poison(new, rng) if poisoned else new


def repeated(call: RandomCall, x: Any) -> Any:
    return x if call.repeats == 1 else np.repeat(x, call.repeats, axis=-3)


def gap_is_safe(call: RandomCall) -> bool:
    key = repeated(call, call.key)
    logits = logits_of(call.score, call.query, key, positions(call.start, call.query, key))
    allowed = np.broadcast_to(call.allowed, np.broadcast_shapes(call.allowed.shape, logits.shape))
    if smallest_gap(call.score, call.normalizer, np.where(allowed, logits, -np.inf)) < 1e-4:
        return False
    bandwidth = call.score.arguments.get("bandwidth")
    if call.score.name not in ("Boxcar", "Epanechnikov", "Triangular"):
        return True
    u = ((call.query[..., :, None, :] - key[..., None, :, :]) ** 2).sum(-1) / np.asarray(bandwidth)[
        ..., None, None
    ] ** 2
    return bool((abs(u - 1) > 0.02).all())


def poison(call: RandomCall, rng: np.random.Generator) -> RandomCall:
    """Return the call with NaN and infinity where no pair may attend: keys, values and whole rows."""
    shape = call.shape
    full = np.broadcast_shapes(call.allowed.shape, (*shape.batch, shape.q, shape.k))
    reached = np.broadcast_to(call.allowed, full).any(-2)  # (*batch, k)
    if shape.grouped:
        reached = reached.reshape(*shape.key_batch, call.repeats, shape.k).any(-2)
    bad = rng.choice([np.nan, np.inf, -np.inf])

    def spoilt(x: Any, batch: tuple[int, ...]) -> Any:
        out = reached
        while out.ndim - 1 > len(batch):
            out = out.any(0)
        for axis, n in enumerate(batch):
            out = out.any(axis, keepdims=True) if n == 1 else out
        return np.where(out[..., None], x, bad)

    key = spoilt(call.key, shape.key_batch) if call.score.name != "Exact" else call.key
    value = spoilt(call.value, shape.value_batch)
    query = np.where(np.broadcast_to(call.allowed, full).any(-1)[..., None], call.query, bad)
    return RandomCall(
        shape, call.query, call.key, call.value, call.score, call.normalizer, call.mask, call.start, call.position,
        (query, key, value),
    )  # fmt: skip
