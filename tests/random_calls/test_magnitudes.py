"""Scores of squared distances at all magnitudes agree with float64 differences, in every kernel and library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qkv
from qkv import scores
from tests.random_calls.magnitudes import LAYOUTS, coordinates

EPSILON = float(np.finfo(np.float32).eps)
LIBRARIES = {
    "numpy": (None, "dense", "numpy_blocks"),
    "torch": (None, "dense", "batched", "fused", "tiled", "row_blocks"),
    "jax": (None, "dense", "jax_loops"),
    "tensorflow": (None, "dense", "tensorflow_blocks"),
}


def squares(query: Any, key: Any) -> Any:
    return np.sum((query[..., :, None, :] - key[..., None, :, :]) ** 2, axis=-1)


def right_output(logits: Any, value: Any) -> Any:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights @ value / weights.sum(axis=-1, keepdims=True)


def allowed_error(logits: Any) -> Any:
    """Return the largest error of weights in each row: that of logits, 4 eps (1 + |logit|), of keys with weight."""
    near = logits >= logits.max(axis=-1, keepdims=True) - 20
    return 4 * EPSILON * (1 + np.where(near, abs(logits), 0).max(axis=-1, keepdims=True))


def draw(number: int) -> tuple[Any, Any, Any, float]:
    rng = np.random.default_rng(number)
    width, q, k = int(rng.choice([1, 1, 2, 3, 8, 16, 64])), int(rng.integers(1, 40)), int(rng.choice([2, 7, 40, 300]))
    batch = ((), (2,), (2, 3))[rng.integers(3)]
    layout = LAYOUTS[number % len(LAYOUTS)]
    query, key, bandwidth = coordinates(rng, (*batch, q, width), (*batch[1:], k, width), layout)
    value = rng.uniform(-1, 1, size=(k, 3))
    with np.errstate(all="ignore"):
        return *(x.astype(np.float32) for x in (query, key, value)), bandwidth


def arrays_of(name: str) -> Any:
    if name == "numpy":
        return np.asarray
    if name == "torch":
        return pytest.importorskip("torch").tensor
    if name == "jax":
        return pytest.importorskip("jax.numpy").asarray
    return pytest.importorskip("tensorflow").constant


def check(name: str, kernel: str | None, number: int) -> str | None:
    query, key, value, bandwidth = draw(number)
    array = arrays_of(name)
    exact = [x.astype(np.float64) for x in (query, key, value)]
    logits = squares(*exact[:2]) * (-0.5 / bandwidth**2)
    tolerance = 4 * allowed_error(logits) + 8 * EPSILON
    got = qkv.attend(*map(array, (query, key, value)), score=scores.Gaussian(bandwidth), kernel=kernel)
    wrong = abs(np.asarray(got, np.float64) - right_output(logits, exact[2])) > tolerance
    wrong &= allowed_error(logits) < 0.1
    if not wrong.any():
        return None
    error = (abs(np.asarray(got, np.float64) - right_output(logits, exact[2])) / tolerance)[wrong].max()
    return f"call {number}, {LAYOUTS[number % len(LAYOUTS)]}, {name}, {kernel}: {error:.3g} × the bound"


@pytest.mark.parametrize("name", LIBRARIES)
def test_weights_of_distances_are_within_the_bound_at_every_magnitude(name: str) -> None:
    kernels = LIBRARIES[name]
    count = 28 if name in ("numpy", "torch") else 7
    found = [check(name, kernel, number) for kernel in kernels for number in range(count)]
    assert [each for each in found if each] == []
