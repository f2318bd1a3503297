"""Queries of a batch to the same keys: the answers of each query alone, computed as rows of one batch element."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv import masks, normalizers, scores
from qkv.core.equation import attend_dense
from qkv.testing.libraries import LIBRARIES, settings_of

DRAW = np.random.default_rng(0)
BATCHES = [((3,), (), ()), ((2, 3), (), (1,)), ((2, 3), (2, 1), (2, 1)), ((3, 1), (1,), ()), ((3,), (2, 1), (2, 1))]
"""Batch axes of query, key and value, of which the last are shared."""
PARTS = [
    {},
    {"score": scores.Gaussian(0.7), "normalizer": normalizers.Sparsemax()},
    {"mask": masks.Lengths(3), "normalizer": normalizers.Softmax(0.5)},
    {"mask": masks.AllowedKeys(DRAW.random(5) < 0.6), "score": scores.Dot()},
    {"score": scores.Biased(scores.Dot(), DRAW.normal(size=(1, 5))), "normalizer": normalizers.TopK(2)},
    {"mask": masks.Causal(), "positions": qkv.Positions(query_start=1)},
    {"score": scores.Biased(scores.Dot(), DRAW.normal(size=(2, 5)))},
]


class OfTheTile(scores.Dot):
    """A score of a user, whose logits may depend on the indices of the tile."""


@given(st.sampled_from(LIBRARIES), st.sampled_from(BATCHES), st.sampled_from(PARTS), st.booleans())
def test_queries_that_share_keys_are_answered_as_each_alone(library, batches, parts, gradient):
    made = [DRAW.normal(size=(*own, n, 4)) for own, n in zip(batches, (2, 5, 5), strict=True)]
    (setting,) = settings_of((library,), ("float64" if library != "jax" else "float32",))
    own = {name: x.map_arrays(lambda x: setting.array(x) if x.dtype.kind == "f" else x) for name, x in parts.items()}
    with setting.active():
        sides = [setting.array(x) for x in made]
        got = qkv.attend(*sides, **own)
        observed = qkv.observe(*sides, **own).output
    wanted = attend_dense(*made, **{"score": scores.ScaledDot(), "normalizer": normalizers.Softmax(), **parts}).output
    assert tuple(got.shape) == tuple(observed.shape) == wanted.shape
    for each in (got, observed):
        np.testing.assert_allclose(np.asarray(each), wanted, atol=1e-12 if library != "jax" else 1e-5)


def test_only_queries_that_differ_in_their_vectors_alone_become_rows_of_one_element():
    def queries(q=1, batch=(64,), **options):
        return qkv.explain((*batch, q, 4), (9, 4), (9, 4), **options).requested.axes.q

    assert queries() == 64
    assert queries(2, (3, 5), mask=masks.Lengths(4)) == 30
    assert queries(mask=masks.Lengths(np.arange(64) % 9)) == 1
    assert queries(2, mask=masks.Causal(), positions=qkv.Positions(align="end")) == 2
    assert queries(score=scores.Biased(scores.Dot(), DRAW.normal(size=(64, 1, 9)))) == 1
    assert queries(dropout=0.1) == queries(normalizer=normalizers.Sample()) == queries(kernel="dense") == 1
    assert queries(readouts=[qkv.readouts.Dense()]) == 1
    assert queries(score=scores.Custom(lambda query, key: query @ key.mT)) == queries(score=OfTheTile()) == 1
    assert queries(100) == 100
    assert qkv.explain((64, 1, 4), (64, 9, 4), (9, 4)).requested.axes.q == 1


def test_gradients_are_those_of_each_query_alone():
    torch = pytest.importorskip("torch")
    sides = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((6, 2, 4), (9, 4), (9, 4))]
    score = scores.Gaussian(torch.tensor(0.7, dtype=torch.float64, requires_grad=True))
    together = qkv.attend(*sides, score=score)
    alone = torch.stack([qkv.attend(query, *sides[1:], score=score) for query in sides[0]])
    direction = torch.randn_like(together)
    inputs = [*sides, *score.arrays()]
    for mine, theirs in zip(*(torch.autograd.grad(x, inputs, direction) for x in (together, alone)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_a_prepared_call_keeps_the_planned_shapes():
    sides = [DRAW.normal(size=shape) for shape in ((6, 2, 4), (9, 4), (9, 4))]
    run = qkv.prepare(qkv.Spec(), tuple(x.shape for x in sides), dtype="float64")
    np.testing.assert_allclose(run(*sides).output, qkv.attend(*sides), atol=1e-12)
