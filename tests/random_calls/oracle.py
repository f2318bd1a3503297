"""Attention in plain float64 NumPy, which shares no code with qkv: the expected results of the random calls.

A part is a `Drawn`: the name of a class of qkv with its arguments. Each function computes what the documentation of
the class states, from whole arrays and with no attention to speed or memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Drawn", "allowed_pairs", "attend", "logits_of", "smallest_divisor", "smallest_gap", "weights"]


@dataclass(frozen=True)
class Drawn:
    """A part of a call: the name of its class, its arguments, and the parts inside it."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    inner: tuple[Drawn, ...] = ()

    def __str__(self) -> str:
        def text(x: Any) -> str:
            return f"array{x.shape}" if isinstance(x, np.ndarray) else repr(x)

        given = [*map(str, self.inner), *(f"{key}={text(x)}" for key, x in self.arguments.items())]
        return f"{self.name}({', '.join(given)})"


def attend(query: Any, key: Any, value: Any, score: Drawn, normalizer: Drawn, allowed: Any, start: Any) -> Any:
    """Return the output; `allowed` holds booleans (*batch, q, k), `start` the position of query 0."""
    return weights(query, key, score, normalizer, allowed, start) @ value


def weights(query: Any, key: Any, score: Drawn, normalizer: Drawn, allowed: Any, start: Any) -> Any:
    """Return the weights (*batch, q, k)."""
    logits = logits_of(score, query, key, positions(start, query, key))
    return weights_of(normalizer, np.where(allowed, logits, -np.inf))


def positions(start: Any, query: Any, key: Any) -> tuple[Any, Any]:
    rows = np.arange(query.shape[-2])[:, None] + np.asarray(start)[..., None, None]
    return rows, np.arange(key.shape[-2])[None, :]


def per_pair(x: Any) -> Any:
    return np.asarray(x)[..., None, None]


def product(a: Any, b: Any) -> Any:
    return a @ np.swapaxes(b, -1, -2)


def sigmoid(x: Any) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * x))


def distance(query: Any, key: Any) -> Any:
    return np.sqrt(((query[..., :, None, :] - key[..., None, :, :]) ** 2).sum(-1))


def unit(x: Any) -> Any:
    norm = np.sqrt((x * x).sum(-1, keepdims=True))
    return x / np.where(norm == 0, 1, norm)


def log_of_kernel(inside: Any, kernel: Any) -> Any:
    return np.where(inside, np.log(np.where(inside, kernel, 1)), -np.inf)


def features(x: Any, function: str) -> Any:
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) if function == "elu" else np.maximum(x, 0)


def bucket(relative: Any, buckets: int, bidirectional: bool, largest: int) -> Any:
    """Return the buckets of T5, one pair after the other."""

    def of(d: int) -> int:
        first, count, far = 0, buckets, -d if d < 0 else 0
        if bidirectional:
            count, first, far = buckets // 2, buckets // 2 if d > 0 else 0, abs(d)
        exact = max(1, count // 2)
        if far < exact:
            return first + far
        steps = math.log(far / exact) / math.log(max(largest, exact + 1) / exact) * (count - exact)
        return first + min(count - 1, exact + int(steps + 1e-6))

    return np.vectorize(of, otypes=[int])(relative) if relative.size else relative.astype(int)


def logits_of(score: Drawn, q: Any, k: Any, at: tuple[Any, Any]) -> Any:
    """Return the logits (*batch, q, k) of queries (*batch, q, width) and keys (*batch, k, width)."""
    p = score.arguments
    inner = [None if score.name == "Projected" else logits_of(part, q, k, at) for part in score.inner]
    i, j = at
    match score.name:
        case "Dot":
            return p.get("scale", 1.0) * product(q, k)
        case "ScaledDot":
            return product(q, k) / math.sqrt(max(1, q.shape[-1]))
        case "Bilinear" if "key_factor" in p:
            return product(q @ p["weight"], k @ p["key_factor"])
        case "Bilinear":
            return product(q @ p["weight"], k)
        case "Additive":
            left, right = product(q, p["query_weight"]), product(k, p["key_weight"])
            hidden = np.tanh(left[..., :, None, :] + right[..., None, :, :] + p.get("bias", 0.0))
            return (hidden * p["vector"][..., None, None, :]).sum(-1)
        case "Gated":
            gate = (q @ p["query_weight"])[..., :, None] + (k @ p["key_weight"])[..., None, :] + per_pair(p["bias"])
            return sigmoid(gate) * product(q, k)
        case "SeparableGate":
            left = sigmoid((q @ p["query_weight"])[..., None] + per_pair(p["query_bias"]))
            right = sigmoid((k @ p["key_weight"])[..., None] + per_pair(p["key_bias"]))
            return product(left * q, right * k)
        case "Cosine":
            return product(unit(q), unit(k)) / per_pair(p["temperature"])
        case "Features":
            return product(features(q, p["function"]), features(k, p["function"]))
        case "Projected":
            return logits_of(score.inner[0], product(q, p["query_weight"]), product(k, p["key_weight"]), at)
        case "SumOf":
            return sum(inner)
        case "Gaussian":
            return -(distance(q, k) ** 2) / (2 * per_pair(p["bandwidth"]) ** 2)
        case "Laplace":
            return -distance(q, k) / per_pair(p["bandwidth"])
        case "Boxcar":
            return np.where(distance(q, k) <= per_pair(p["bandwidth"]), 0.0, -np.inf)
        case "Epanechnikov":
            u = distance(q, k) / per_pair(p["bandwidth"])
            return log_of_kernel(u < 1, 1 - u * u)
        case "Triangular":
            u = distance(q, k) / per_pair(p["bandwidth"])
            return log_of_kernel(u < 1, 1 - u)
        case "Constant":
            return 0 * (q[..., :, None, :1].sum(-1) + k[..., None, :, :1].sum(-1))
        case "Softcap":
            cap = per_pair(p["cap"])
            return np.where(inner[0] == -np.inf, -np.inf, cap * np.tanh(inner[0] / cap))
        case "Biased":
            return inner[0] + (p["bias"] if "bias" in p else p["per_key"][..., None, :])
        case "ALiBi":
            return inner[0] - per_pair(p["slope"]) * abs(i - j)
        case "QuadraticPosition":
            return inner[0] - per_pair(p["coefficient"]) * (i - j) ** 2
        case "RelativePosition":
            table = p["table"]
            at_pair = bucket(j - i, table.shape[-1], p["bidirectional"], p["max_distance"])
            batch = np.broadcast_shapes(table.shape[:-1], at_pair.shape[:-2])
            at_pair = np.broadcast_to(at_pair, (*batch, *at_pair.shape[-2:]))
            rows = np.broadcast_to(table, (*batch, table.shape[-1]))
            out = np.empty(at_pair.shape)
            for index in np.ndindex(*batch):
                out[index] = rows[index][at_pair[index]]
            return inner[0] + out
        case "ClassTable":
            return inner[0] + p["table"][..., p["query_classes"][:, None], p["key_classes"][None, :]]
        case "Exact":
            return (q[..., :, None, :] == k[..., None, :, :]).all(-1).astype(float)
        case "Custom":  # the L1 distance, divided by a parameter
            return -abs(q[..., :, None, :] - k[..., None, :, :]).sum(-1) / p["scale"]
    raise ValueError(score.name)


def allowed_pairs(mask: Drawn | None, q: int, k: int, start: Any) -> Any:
    """Return booleans (*batch, q, k), or with fewer axes, True for the pairs that may attend."""
    if mask is None:
        return np.ones((q, k), bool)
    p = mask.arguments
    inner = [allowed_pairs(part, q, k, start) for part in mask.inner]
    if "align" in p:
        start = k - q if p["align"] == "end" else 0
    i, j = np.arange(q)[:, None] + np.asarray(start)[..., None, None], np.arange(k)[None, :]
    match mask.name:
        case "and":
            return inner[0] & inner[1]
        case "or":
            return inner[0] | inner[1]
        case "not":
            return ~inner[0]
        case "Causal":
            return j <= i
        case "Window":
            after = np.ones((q, k), bool) if p["after"] is None else j <= i + p["after"]
            return after & (np.True_ if p["before"] is None else j >= i - p["before"])
        case "Keys":
            return np.broadcast_to(p["array"][..., None, :], (*p["array"].shape[:-1], q, k))
        case "Lengths":
            return np.broadcast_to(j < per_pair(p["lengths"]), (*np.shape(p["lengths"]), q, k))
        case "Pairs":
            return np.broadcast_to(p["array"], (*p["array"].shape[:-2], q, k))
        case "Prefix":
            return (j < per_pair(p["length"])) | (j <= i)
        case "Documents":
            return p["query_ids"][..., :, None] == p["key_ids"][..., None, :]
        case "Blocks":
            size = p["size"]
            return p["layout"][..., np.arange(q)[:, None] // size, j // size]
        case "Custom":  # a causal mask with holes
            return (j <= i) & ((i - j) % 3 != 1)
    raise ValueError(mask.name)


def weights_of(normalizer: Drawn, logits: Any) -> Any:
    """Return the weights of rows of logits, in which −inf excludes a key."""
    p, out = normalizer.arguments, logits == -np.inf
    safe = np.where(out, 0.0, logits)
    if not logits.shape[-1]:
        return logits
    match normalizer.name:
        case "Softmax":
            scaled = np.where(out, -np.inf, safe / per_pair(p.get("temperature", 1.0)))
            sink = per_pair(p.get("sink", -np.inf))
            top = np.maximum(scaled.max(-1, keepdims=True), sink)
            top = np.where(top == -np.inf, 0, top)
            e = np.exp(scaled - top)
            total = e.sum(-1, keepdims=True) + np.exp(sink - top)
            return e / np.where(total == 0, 1, total)
        case "Sum":
            total = safe.sum(-1, keepdims=True)
            return safe / np.where(total == 0, 1, total)
        case "Mean":
            return ~out / np.maximum(1, (~out).sum(-1, keepdims=True))
        case "Identity":
            return safe
        case "Sigmoid":
            return np.where(out, 0, sigmoid(safe + per_pair(p["bias"])))
        case "Hard":
            return np.where(ranks(logits) < 1, ~out, 0)
        case "TopK":
            return weights_of(normalizer.inner[0], np.where(ranks(logits) < p["k"], logits, -np.inf))
        case "Sparsemax":
            return entmax(logits, 2.0)
        case "Entmax15":
            return entmax(logits, 1.5)
        case "Entmax":
            return entmax(logits, per_pair(p["alpha"]))
        case "Custom":  # squares divided by 1 + their sum
            squares = np.maximum(safe, 0) ** 2
            return p["scale"] * squares / (1 + squares.sum(-1, keepdims=True))
    raise ValueError(normalizer.name)


def ranks(logits: Any) -> Any:
    """Return the rank of each logit of a row: 0 for the largest; ties go to the lowest index."""
    order = np.argsort(-logits, axis=-1, kind="stable")
    return np.argsort(order, axis=-1, kind="stable")


def entmax(logits: Any, alpha: Any) -> Any:
    """Return max(0, (α − 1) l − τ)^(1 / (α − 1)), with τ found by bisection so that each row sums to 1."""
    top = logits.max(-1, keepdims=True)
    z = np.where(logits == -np.inf, -np.inf, (alpha - 1) * (logits - np.where(top == -np.inf, 0, top)))
    low, high = np.full(np.broadcast_shapes(top.shape, np.shape(alpha)), -1.0), 0.0
    for _ in range(70):
        middle = (low + high) / 2
        more = (np.maximum(z - middle, 0) ** (1 / (alpha - 1))).sum(-1, keepdims=True) > 1
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    w = np.maximum(z - low, 0) ** (1 / (alpha - 1))
    return w / np.where(w.sum(-1, keepdims=True) == 0, 1, w.sum(-1, keepdims=True))


def smallest_divisor(score: Drawn, normalizer: Drawn, query: Any, key: Any, logits: Any) -> float:
    """Return the smallest number by which derivatives divide: the norm of a vector, or the sum of a row of scores."""

    def norms(score: Drawn, q: Any, k: Any) -> float:
        if score.name == "Projected":
            weights = score.arguments
            q, k = product(q, weights["query_weight"]), product(k, weights["key_weight"])
        found = [norms(part, q, k) for part in score.inner]
        if score.name == "Cosine":
            both = np.concatenate([np.sqrt((x * x).sum(-1)).reshape(-1) for x in (q, k)])
            found.append(float(both[both > 0].min(initial=np.inf)))
        return min(found, default=math.inf)

    total = np.where(logits == -np.inf, 0, logits).sum(-1) if normalizer.name == "Sum" else np.zeros(0)
    return min(norms(score, query, key), float(total[total > 0].min(initial=np.inf)))


def smallest_gap(score: Drawn, normalizer: Drawn, logits: Any) -> float:
    """Return how far the logits are from a tie that float32 could break, relative to their size.

    It is infinite where the result is continuous, or where all logits are equal.
    """
    if normalizer.name not in ("Hard", "TopK") or logits.shape[-1] < 2 or not logits.size:
        return math.inf
    count = normalizer.arguments.get("k", 1)
    if count >= logits.shape[-1]:
        return math.inf
    ordered = -np.sort(-logits, axis=-1)
    upper, lower = ordered[..., count - 1], ordered[..., count]
    both = (upper > -np.inf) & (lower > -np.inf) & ((upper != lower) | (score.name not in ("Constant", "Exact")))
    gaps = (upper - np.where(both, lower, 0))[both]
    return float(gaps.min() / max(1.0, abs(ordered[np.isfinite(ordered)]).max())) if gaps.size else math.inf
