"""Draws queries, keys and bandwidths of many magnitudes, for which rewrites of a score may lose digits."""

from typing import Any

import numpy as np

__all__ = ["LAYOUTS", "coordinates"]

LAYOUTS = (
    "cloud",
    "two clusters",
    "one far key",
    "one far query",
    "time stamps",
    "shuffled grid",
    "equal keys",
    "far cloud",
)


def coordinates(
    rng: np.random.Generator,
    query_shape: tuple[int, ...],
    key_shape: tuple[int, ...],
    layout: str | None = None,
    far: float = 6,
) -> tuple[Any, Any, float]:
    """Return queries and keys in float64, and a bandwidth in their unit.

    The spread is 10^-6 to 10^6, the offset from 0 up to 10^far spreads, and the bandwidth 10^-3 to 10^3 spreads.

    Args:
        rng: generator of random numbers.
        query_shape: shape of the queries, `(*batch, q, width)`.
        key_shape: shape of the keys, `(*batch, k, width)`.
        layout: one of `LAYOUTS`, or "queries are keys"; None: a random one of `LAYOUTS`.
        far: logarithm to base 10 of the largest offset, distance of clusters and distance of outliers in spreads.
    """
    layout = layout or str(rng.choice(LAYOUTS))
    spread, bandwidth = 10 ** rng.uniform(-6, 6), 10 ** rng.uniform(-3, 3)
    offset = rng.choice([0.0, 1.0]) * 10 ** rng.uniform(0, far) * rng.choice([-1, 1], size=key_shape[-1])
    q, k = query_shape[-2], key_shape[-2]
    query, key = rng.normal(size=query_shape), rng.normal(size=key_shape)
    if layout == "two clusters":
        distance = 10 ** rng.uniform(0, far)
        key += distance * (np.arange(k) % 2)[:, None]
        query += distance * (np.arange(q) // 2 % 2)[:, None]
    elif layout == "one far key" and k:
        key[..., rng.integers(k), :] *= 10 ** rng.uniform(0, far)
    elif layout == "one far query" and q:
        query[..., rng.integers(q), :] *= 10 ** rng.uniform(0, far)
    elif layout in ("time stamps", "shuffled grid"):
        key = np.broadcast_to(np.arange(k)[:, None] / 4.0, key_shape)
        query = np.broadcast_to(np.arange(k - q, k)[:, None] / 4.0, query_shape)
        if layout == "shuffled grid":
            key, query = (rng.permutation(x, axis=-2) for x in (key, query))
    elif layout == "far cloud":  # within a few bandwidths, however far from 0
        bandwidth = 10 ** rng.uniform(-0.5, 0.5)
        offset = 10 ** rng.uniform(2, far) * rng.choice([-1, 1], size=key_shape[-1])
    elif layout == "queries are keys":  # of which the nearest other one has little weight
        query, rows = np.broadcast_to(key, query_shape), key.reshape(-1, k, key_shape[-1])[0]
        others = ((rows[:, None] - rows) ** 2).sum(-1) + np.where(np.eye(k), np.inf, 0)
        bandwidth = np.sqrt(others.min()) / rng.uniform(4, 7)
    elif layout == "equal keys":
        key = key[..., rng.integers(0, max(1, k // 3), size=k), :]
    if rng.random() < 0.3 and q and k and layout != "queries are keys":  # some queries near keys, at all scales
        near = min(q, k)
        shape = np.broadcast_shapes(query_shape[:-2], key_shape[:-2])
        if shape == query_shape[:-2]:
            step = rng.normal(size=(near, query_shape[-1])) * bandwidth * 10 ** rng.uniform(-2, 1)
            query = np.array(query)
            query[..., :near, :] = key[..., :near, :] + step
    return (query + offset) * spread, (key + offset) * spread, float(bandwidth * spread)
