"""The same problem in NumPy, PyTorch, JAX and TensorFlow: one answer, for every score and normalizer.

200 problems are drawn in the long profile, 7 or 8 for each score and all normalizers; 28 otherwise.
"""

from __future__ import annotations

import importlib.util

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.testing.cases import MASKS, NORMALIZERS, SCORES, SHAPES, Case
from qkv.testing.execution import run_eagerly
from qkv.testing.libraries import Setting, assert_close, to_float64
from tests.effort import LONG, sample

EACH = 8 if LONG else 2
OTHERS = [
    name
    for name, packages in {"torch": ["torch"], "jax": ["jax"], "tensorflow": ["tensorflow", "keras"]}.items()
    if all(importlib.util.find_spec(package) for package in packages)
]
FULL = [name for name, shape in SHAPES.items() if shape.q and shape.k][: None if LONG else 2]

# Of TensorFlow and PyTorch themselves, on import or in functions that they deprecate.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def normalizers_for(score: str) -> list[str]:
    """All that make sense for the score; the first, which is tried first, differs from score to score."""
    sensible = [name for name in NORMALIZERS if Case(score, name).sensible]
    first = (list(SCORES).index(score) + 1) % len(sensible)
    return sensible[first:] + sensible[:first]


def test_the_problems_that_are_tried_first_have_every_normalizer() -> None:
    assert {name for score in SCORES for name in normalizers_for(score)[:2]} == set(NORMALIZERS)
    assert len(SCORES) * EACH >= (200 if LONG else 40)


@pytest.mark.parametrize("score", sample(SCORES, 4))
def test_every_library_gives_the_same_answer(score: str) -> None:
    assert OTHERS

    @settings(max_examples=EACH, derandomize=True, deadline=None, database=None)
    @given(
        normalizer=st.sampled_from(normalizers_for(score)),
        mask=st.sampled_from(list(MASKS)),
        shape=st.sampled_from(FULL),
        seed=st.integers(0, 2**20),
    )
    def check(normalizer: str, mask: str, shape: str, seed: int) -> None:
        call = Case(score, normalizer, mask, shape).call(seed)
        wanted = to_float64(run_eagerly(call, Setting("numpy", "float32"), None).output)
        assert wanted.size
        for library in OTHERS:
            got = run_eagerly(call, Setting(library, "float32"), None)
            # What should be 0 is a rounding away from it: values are of the size of 1.
            assert_close(got.output, wanted, 1e-5, message=f"{library} {got.plan.kernel.name}", min_scale=1e-2)

    check()
