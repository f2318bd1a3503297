"""The checks of the random calls notice an output, a gradient or a leaked NaN that is wrong."""

import numpy as np
import pytest

from tests.random_calls.draw import RandomCall, Shape
from tests.random_calls.libraries import Counts, bounds_of, check_directions, check_output, expected
from tests.random_calls.oracle import Drawn, bucket, entmax, weights_of

SHAPE = Shape(4, 6, 3, 2)


@pytest.fixture
def call() -> RandomCall:
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=n) for n in ((4, 3), (6, 3), (6, 2)))
    score, normalizer = Drawn("Gaussian", {"bandwidth": np.array(1.3)}), Drawn("Softmax")
    return RandomCall(SHAPE, query, key, value, score, normalizer, None, 0, None, (query, key, value))


ROWS = np.arange(4)


@pytest.mark.parametrize(
    ("dtype", "off"), [("float64", 1e-12), ("float32", 1e-4), ("float16", 1e-2), ("bfloat16", 0.1)]
)
def test_an_output_that_is_off_is_noticed(call: RandomCall, dtype: str, off: float) -> None:
    wanted = expected(call, ROWS)
    bounds = bounds_of(call, wanted, ROWS, dtype)
    assert bounds.comparable.all()
    check_output(call, wanted.output, None, dtype, ROWS, wanted, bounds)
    for wrong in (wanted.output + off * (np.arange(8).reshape(4, 2) == 3), np.where(ROWS[:2], wanted.output, np.nan)):
        with pytest.raises(AssertionError, match=r"off by|must be finite"):
            check_output(call, wrong, None, dtype, ROWS, wanted, bounds)


def test_a_gradient_that_is_off_is_noticed(call: RandomCall) -> None:
    cotangent, counts = np.random.default_rng(1).normal(size=(4, 2)), Counts()
    bounds = bounds_of(call, expected(call, ROWS), ROWS, "float64")

    def numeric(x: np.ndarray, name: str) -> np.ndarray:
        out = np.zeros_like(x)
        for index in np.ndindex(*x.shape):
            ends = []
            for sign in (1, -1):
                moved = x.copy()
                moved[index] += sign * 1e-6
                changed = Drawn("Gaussian", {"bandwidth": moved}) if name == "score" else moved
                ends.append((expected(call, ROWS, **{name: changed}).output * cotangent).sum())
            out[index] = (ends[0] - ends[1]) / 2e-6
        return out

    gradients = [numeric(getattr(call, name), name) for name in ("query", "key", "value")]
    gradients.append(numeric(call.score.arguments["bandwidth"], "score"))

    def check(gradients: list[np.ndarray]) -> None:
        rng = np.random.default_rng(2)
        check_directions(call, gradients, (cotangent, None), rng, "float32", counts, ROWS, bounds)

    check(gradients)
    for n in range(4):
        with pytest.raises(AssertionError, match="is off by"):
            check([g * (1.001 if n == m else 1) for m, g in enumerate(gradients)])


def test_the_oracle_computes_what_the_papers_state() -> None:
    row = np.array([[1.0, 0.6, -1.0, -np.inf]])
    assert np.allclose(entmax(row, 2.0), [[0.7, 0.3, 0, 0]])  # sparsemax: Σ max(0, l − τ) = 1 with τ = .3
    assert np.allclose(weights_of(Drawn("Softmax"), np.log([[1.0, 3.0]])), [[0.25, 0.75]])
    assert not weights_of(Drawn("Softmax", {"sink": np.array(0.5)}), np.full((1, 2), -np.inf)).any()
    assert np.array_equal(bucket(np.array([-1, 0, 1, 9, 40]), 8, True, 20), [1, 0, 5, 7, 7])
