"""Attention in plain float64 NumPy, which shares no code with qkv: the expected results of the random calls.

A part is a `Drawn`: the name of a class of qkv with its arguments. Each function computes what the documentation of
the class states, from whole arrays and with no attention to speed or memory. All functions accept complex numbers,
whose imaginary part is a derivative times 1e-200 (Squire, Trapp 1998, Using complex variables to estimate derivatives
of real functions, https://doi.org/10.1137/S003614459631241X): no digit is lost to a difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Drawn", "allowed_pairs", "logits_of", "positions", "readout_of", "select_rows", "weights_of"]


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


def positions(start: Any, rows: Any, keys: int) -> tuple[Any, Any]:
    """Return the positions of the queries `rows`, where query 0 stands at `start`, and of all keys."""
    return np.asarray(rows)[:, None] + np.asarray(start)[..., None, None], np.arange(keys)[None, :]


def select_rows(score: Drawn, rows: Any) -> Drawn:
    """Return a score restricted to some of the queries."""
    arguments = dict(score.arguments)
    if "bias" in arguments and score.name == "Biased":
        arguments["bias"] = arguments["bias"][..., rows, :]
    if "query_classes" in arguments:
        arguments["query_classes"] = arguments["query_classes"][rows]
    return Drawn(score.name, arguments, tuple(select_rows(part, rows) for part in score.inner))


def absolute(x: Any) -> Any:
    return np.where(x.real < 0, -x, x)


def per_pair(x: Any) -> Any:
    return np.asarray(x)[..., None, None]


def product(a: Any, b: Any) -> Any:
    return a @ np.swapaxes(b, -1, -2)


def sigmoid(x: Any) -> Any:
    e = np.exp(-absolute(x))
    return np.where(x.real < 0, e, 1) / (1 + e)


def distance(query: Any, key: Any) -> Any:
    return np.sqrt(((query[..., :, None, :] - key[..., None, :, :]) ** 2).sum(-1))


def unit(x: Any) -> Any:
    norm = np.sqrt((x * x).sum(-1, keepdims=True))
    return np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm))


def log_of_kernel(inside: Any, kernel: Any) -> Any:
    return np.where(inside, np.log(np.where(inside, kernel, 1)), -np.inf)


def features(x: Any, function: str) -> Any:
    above = x.real > 0
    return np.where(above, x + 1, np.exp(np.where(above, 0, x))) if function == "elu" else np.where(above, x, 0)


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
            return np.where(distance(q, k).real <= per_pair(p["bandwidth"]).real, 0.0, -np.inf)
        case "Epanechnikov":
            u = distance(q, k) / per_pair(p["bandwidth"])
            return log_of_kernel(u.real < 1, 1 - u * u)
        case "Triangular":
            u = distance(q, k) / per_pair(p["bandwidth"])
            return log_of_kernel(u.real < 1, 1 - u)
        case "Constant":
            return 0 * (q[..., :, None, :1].sum(-1) + k[..., None, :, :1].sum(-1))
        case "Softcap":
            cap = per_pair(p["cap"])
            out = inner[0].real == -np.inf
            return np.where(out, -np.inf, cap * np.tanh(np.where(out, 0, inner[0]) / cap))
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
            out = np.empty(at_pair.shape, table.dtype)
            for index in np.ndindex(*batch):
                out[index] = rows[index][at_pair[index]]
            return inner[0] + out
        case "ClassTable":
            return inner[0] + p["table"][..., p["query_classes"][:, None], p["key_classes"][None, :]]
        case "Exact":
            return (q[..., :, None, :] == k[..., None, :, :]).all(-1).astype(float)
        case "Custom":  # the L1 distance, divided by a parameter; libraries differentiate |0| as 0
            difference = q[..., :, None, :] - k[..., None, :, :]
            return -np.where(difference.real == 0, 0, absolute(difference)).sum(-1) / p["scale"]
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
        case "AllowedKeys":
            return np.broadcast_to(p["array"][..., None, :], (*p["array"].shape[:-1], q, k))
        case "Lengths":
            return np.broadcast_to(j < per_pair(p["lengths"]), (*np.shape(p["lengths"]), q, k))
        case "AllowedPairs":
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
    p, out = normalizer.arguments, logits.real == -np.inf
    safe = np.where(out, 0.0, logits)
    if not logits.shape[-1]:
        return logits
    match normalizer.name:
        case "Softmax":
            scaled = np.where(out, -np.inf, safe / per_pair(p.get("temperature", 1.0)))
            sink = per_pair(p.get("sink", -np.inf))
            top = np.maximum(scaled.real.max(-1, keepdims=True), sink.real)
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
            squares = np.where(safe.real > 0, safe, 0) ** 2
            return p["scale"] * squares / (1 + squares.sum(-1, keepdims=True))
    raise ValueError(normalizer.name)


def ranks(logits: Any) -> Any:
    """Return the rank of each logit of a row: 0 for the largest; ties go to the lowest index."""
    order = np.argsort(-logits.real, axis=-1, kind="stable")
    return np.argsort(order, axis=-1, kind="stable")


def entmax(logits: Any, alpha: Any) -> Any:
    """Return max(0, (α − 1) l − τ)^(1 / (α − 1)), with τ found by bisection so that each row sums to 1."""
    alpha, out, top = np.asarray(alpha), logits.real == -np.inf, logits.real.max(-1, keepdims=True)
    z = (alpha - 1) * (np.where(out, 0, logits) - np.where(top == -np.inf, 0, top))
    below, power = np.where(out, -np.inf, z.real), 1 / (alpha - 1)
    low, high = np.full(np.broadcast_shapes(top.shape, alpha.shape), -1.0), 0.0
    for _ in range(70):
        middle = (low + high) / 2
        more = (np.maximum(below - middle, 0) ** power.real).sum(-1, keepdims=True) > 1
        low, high = np.where(more, middle, low), np.where(more, high, middle)

    def weigh(tau: Any) -> tuple[Any, Any]:
        above = below - low > 0
        base = np.where(above, z - tau, 1)
        return np.where(above, base**power, 0), np.where(above, base ** (power - 1), 0)

    # A step of Newton's method, which gives τ its derivative.
    w, slope = weigh(low)
    total = (power * slope).sum(-1, keepdims=True)
    w, _ = weigh(low + (w.sum(-1, keepdims=True) - 1) / np.where(total == 0, 1, total))
    return w / np.where(w.sum(-1, keepdims=True) == 0, 1, w.sum(-1, keepdims=True))


def readout_of(name: str, logits: Any, w: Any, normalizer: Drawn, at: tuple[Any, Any]) -> Any:
    """Return a readout of each query, from its logits and weights."""
    if name == "MeanDistance":
        return (w * abs(at[0] - at[1])).sum(-1)
    if name == "Entropy":
        return -(w * np.log(np.where(w == 0, 1, w))).sum(-1)
    scaled = logits / per_pair(normalizer.arguments.get("temperature", 1.0))
    scaled = np.where(logits.real == -np.inf, -np.inf, scaled)
    sink = np.broadcast_to(per_pair(normalizer.arguments.get("sink", -np.inf)), (*scaled.shape[:-1], 1))
    both = np.concatenate([scaled, sink], -1)
    top = both.real.max(-1, keepdims=True)
    top = np.where(top == -np.inf, 0, top)
    return np.log(np.exp(both - top).sum(-1)) + top[..., 0]


def logit_errors(score: Drawn, q: Any, k: Any, at: tuple[Any, Any], limit: float) -> Any:
    """Return the bounds of the errors of the logits as multiples of the unit of rounding, (*batch, q, k).

    For products they are 8 Σ |q_i k_i| and for distances 4 (1 + |logit|), or those of the products by which they are
    computed, where these are small: up to a squared distance of `limit`. `docs/decisions` has the table of all scores.
    """
    p, size = score.arguments, abs(logits_of(score, q, k, at))
    size = np.where(np.isfinite(size), size, 0)
    inner = [] if score.name == "Projected" else [logit_errors(part, q, k, at, limit) for part in score.inner]
    a, b = abs(q), abs(k)

    def units(x: Any, weight: Any) -> Any:
        return 8 * product(abs(x), abs(weight))

    match score.name:
        case "Dot":
            return 8 * abs(p.get("scale", 1.0)) * product(a, b)
        case "ScaledDot":
            return 8 * product(a, b) / math.sqrt(max(1, q.shape[-1]))
        case "Features":  # not where features or their products underflow in float32
            return np.where((size > 0) & (size < 1e-30), np.inf, 8 * size)
        case "Bilinear":
            return 8 * product(a @ abs(p["weight"]), b @ abs(p["key_factor"]) if "key_factor" in p else b)
        case "Additive":
            left, right = units(q, p["query_weight"]), units(k, p["key_weight"])
            off = left[..., :, None, :] + right[..., None, :, :] + 8 * abs(p.get("bias", 0.0))
            return ((8 + off) * abs(p["vector"])[..., None, None, :]).sum(-1)
        case "Gated" | "SeparableGate":
            gate = (a @ abs(p["query_weight"]))[..., :, None] + (b @ abs(p["key_weight"]))[..., None, :]
            return 8 * (4 + gate) * product(a, b)
        case "Cosine":
            return 8 / per_pair(p["temperature"]) * (1 + 0 * size)
        case "Projected":
            both = product(q, p["query_weight"]), product(k, p["key_weight"])
            off = units(q, p["query_weight"]), units(k, p["key_weight"])
            here, step = logits_of(score.inner[0], *both, at), 1e-9  # the projections move by their errors
            signs = [(i % 2 * 2 - 1, i // 2 * 2 - 1) for i in range(4)]
            moved = [
                logits_of(score.inner[0], *(x + s * step * e for x, s, e in zip(both, sign, off, strict=True)), at)
                for sign in signs
            ]
            return logit_errors(score.inner[0], *both, at, limit) + 2 * sum(abs(x - here) for x in moved) / step
        case "SumOf":
            return sum(inner) + 4 * sum(abs(logits_of(part, q, k, at)) for part in score.inner)
        case "Gaussian":  # products are used for keys near their mean
            y = (k - k.sum(-2, keepdims=True) / max(1, k.shape[-2])) / per_pair(p["bandwidth"])
            return 4 * (1 + size) + np.minimum((abs(y) ** 2).sum(-1).max(-1, initial=0)[..., None, None], limit)
        case "Laplace":  # products are used for 12 features or more
            return (4 if q.shape[-1] < 12 else 32) * (1 + size)
        case "Boxcar" | "Epanechnikov" | "Triangular":  # none at the edge
            u = distance(q, k) / per_pair(p["bandwidth"])
            return np.where(abs(u - 1) < 1e-4, np.inf, 16 * (1 + size) / np.maximum(abs(u - 1), 1e-4))
        case "Constant" | "Exact":
            return 0 * size
        case "Custom":
            return 8 * size
        case "Softcap":
            cap = per_pair(p["cap"])  # 2σ − 1 is used for small caps
            return inner[0] + 8 * size + np.where(abs(cap) <= 256, 2 * abs(cap), 0)
        case "Biased" | "ALiBi" | "QuadraticPosition" | "RelativePosition" | "ClassTable":
            within = abs(logits_of(score.inner[0], q, k, at))
            if score.name == "QuadraticPosition":  # a product for small coefficients
                within = within + np.minimum(abs(per_pair(p["coefficient"])) * (k.shape[-2] / 2) ** 2, limit) / 4
            return inner[0] + 4 * (size + np.where(np.isfinite(within), within, 0))
    raise ValueError(score.name)


def gaps(normalizer: Drawn, logits: Any) -> Any:
    """Return how far each row is from a tie that changes which keys are selected, (*batch, q, 1)."""
    if normalizer.inner:
        within = gaps(normalizer.inner[0], logits)
        return np.minimum(within, gaps(Drawn("TopK", normalizer.arguments), logits))
    count = normalizer.arguments.get("k", 1)
    if normalizer.name not in ("Hard", "TopK") or count >= logits.shape[-1]:
        return np.full((*logits.shape[:-1], 1), np.inf)
    ordered = -np.sort(-logits, axis=-1)
    upper, lower = ordered[..., count - 1 : count], ordered[..., count : count + 1]
    return np.where(lower == -np.inf, np.inf, upper - np.where(lower == -np.inf, 0, lower))


def weight_errors(normalizer: Drawn, logits: Any, w: Any, errors: Any) -> Any:
    """Return bounds of the errors of the weights (*batch, q, k), given those of the logits."""
    p, out = normalizer.arguments, logits == -np.inf
    errors = np.where(out, 0, errors)
    worst = errors.max(-1, keepdims=True, initial=0)
    temperature = per_pair(p.get("temperature", 1.0))
    match normalizer.name:
        case "Softmax":
            return w * np.minimum(np.expm1(np.minimum(4 * worst / temperature, 40)), 1 / np.maximum(w, 1e-300))
        case "Sum":
            total = np.where(out, 0, logits).sum(-1, keepdims=True)
            return (errors + w * errors.sum(-1, keepdims=True)) / np.where(total == 0, 1, total)
        case "Mean" | "Hard":
            return 0 * w
        case "Identity":
            return errors
        case "Sigmoid":
            return np.minimum(w * np.expm1(np.minimum(2 * errors, 40)), 1)
        case "TopK":
            kept = np.where(ranks(logits) < p["k"], logits, -np.inf)
            return weight_errors(normalizer.inner[0], kept, w, np.where(kept == -np.inf, 0, errors))
        case "Sparsemax" | "Entmax15":
            return np.where(out, 0, 4 * worst)
        case "Entmax":
            alpha = per_pair(p["alpha"])
            return np.where(out, 0, 4 * np.maximum(worst, worst ** (1 / (alpha - 1))))
        case "Custom":
            positive = np.maximum(np.where(out, 0, logits), 0)
            total = 1 + (positive**2).sum(-1, keepdims=True)
            return p["scale"] * 8 * worst * (positive**2 + np.minimum(positive, 1) + worst) / total
    raise ValueError(normalizer.name)


def smallest_divisor(score: Drawn, normalizer: Drawn, query: Any, key: Any, logits: Any) -> float:
    """Return the smallest number by which derivatives divide: the norm of a vector, or the sum of a row of scores."""

    def norms(score: Drawn, q: Any, k: Any) -> float:
        if score.name == "Projected":
            weights = score.arguments
            q, k = product(q, weights["query_weight"]), product(k, weights["key_weight"])
        found = [norms(part, q, k) for part in score.inner]
        if score.name == "Cosine":
            both = [np.sqrt((x * x).sum(-1)).reshape(-1) / (np.std(x) or 1.0) for x in (q, k) if x.size]
            found += [float(x[x > 0].min(initial=np.inf)) for x in both]
        return min(found, default=math.inf)

    total = np.where(logits == -np.inf, 0, logits).sum(-1) if normalizer.name == "Sum" else np.zeros(0)
    return min(norms(score, query, key), float(total[total > 0].min(initial=np.inf)))
