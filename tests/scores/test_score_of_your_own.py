"""What a user writes to add a score: one dataclass, and the contract holds it to everything."""

import math
import re
from dataclasses import dataclass

import numpy as np
import pytest

import qkv
from qkv import scores
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.core.typing import Array
from qkv.errors import KindError, QkvError, ShapeError
from qkv.scores import InnerProductScore
from qkv.testing import ScoreContract
from qkv.testing.libraries import LIBRARIES, Setting, assert_close


@dataclass(frozen=True, eq=False)
class WeightedDot(InnerProductScore):
    """Inner product with a learned weight for each unit of width."""

    weight: Array = array_field("width")

    def lift(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        return query * self.weight[..., None, :], key


class TestWeightedDot(ScoreContract):
    part = WeightedDot

    def make(self, draw):
        return WeightedDot(draw(3))

    def formula(self, score, q, k, at):
        return math.fsum(w * a * b for w, a, b in zip(score.weight, q, k, strict=True))


WRONG_RESULTS = {
    "None": (lambda q, k: None, KindError, "got None"),
    "a number": (lambda q, k: 1.0, KindError, r"got 1\.0"),
    "a list": (lambda q, k: [[1.0]], KindError, "type list"),
    "another library's array": (lambda q, k: np.zeros((2, 5, 7), np.float32), KindError, "got a numpy array"),
    "complex numbers": (lambda q, k: (q @ k.mT) * 1j, KindError, "got complex64 elements"),
    "transposed": (lambda q, k: k @ q.mT, ShapeError, r"must have shape \(\*batch, q, k\)"),
    "one number per query": (lambda q, k: q.sum(-1), ShapeError, r"must have shape \(\*batch, q, k\)"),
    "another batch": (lambda q, k: (q @ k.mT)[:1].expand(3, -1, -1), ShapeError, r"got \(3, "),
    "more axes": (lambda q, k: (q @ k.mT)[None, None], ShapeError, r"got \(1, 1, 2, "),
    "no argument": (lambda: 0.0, KindError, "must take query and key as positional arguments"),
    "one argument": (lambda q: q, KindError, "must take query and key as positional arguments"),
    "three arguments": (lambda q, k, w: q, KindError, "must take query and key as positional arguments"),
    "a keyword argument": (lambda q, k, *, w: q, KindError, "must take query and key as positional arguments"),
}


@pytest.mark.thinned
@pytest.mark.parametrize("kernel", [None, "dense", "tiled", "row_blocks"])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", WRONG_RESULTS)
def test_function_that_does_not_return_logits_is_refused_in_one_sentence(name, gradient, kernel):
    torch = pytest.importorskip("torch")
    function, error, message = WRONG_RESULTS[name]
    query, key = torch.randn(2, 5, 4, requires_grad=gradient), torch.randn(2, 7, 4)
    with pytest.raises(error, match=message) as raised:
        qkv.attend(query, key, key, score=scores.Custom(function), kernel=kernel)
    assert re.fullmatch(r"[a-z].* must .*, got .*\. [A-Z].*\.", str(raised.value))


def test_error_inside_of_a_function_is_raised_unchanged():
    def function(query, key):
        return query + "text"

    with pytest.raises(TypeError) as raised:
        scores.Custom(function)(np.ones((2, 3)), np.ones((4, 3)))
    assert not isinstance(raised.value, QkvError)


@pytest.mark.parametrize("library", LIBRARIES)
def test_logits_that_broadcast_are_accepted(library):
    setting = Setting(library, "float32")
    query, key, value = (setting.array(np.random.default_rng(0).normal(size=(2, n, 4))) for n in (5, 7, 7))

    def per_key(query, key):
        return key.sum(axis=-1)[:, None, :]

    output = qkv.attend(query, key, value, score=scores.Custom(per_key))
    logits = np.asarray(key).sum(-1)[:, None, :]
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert_close(output, np.broadcast_to(weights @ np.asarray(value), (2, 5, 4)), 1e-5)


class _Transposed(scores.GeneralScore):
    def compare(self, query, key):
        return key @ query.T

    def flop_per_logit(self, query_width, key_width):
        return 1


def test_class_that_returns_no_logits_is_named():
    with pytest.raises(ShapeError, match=r"logits of _Transposed must have shape \(\*batch, q, k\), here \(2, 4\)"):
        qkv.attend(np.ones((2, 3)), np.ones((4, 3)), np.ones((4, 3)), score=dataclass(frozen=True)(_Transposed)())


@pytest.mark.parametrize("inner", ["dot", scores.Dot, None, 3, lambda q, k: q])
def test_wrapper_refuses_what_is_no_score(inner):
    with pytest.raises(KindError, match=r"score of Softcap must be a Score, got .*"):
        scores.Softcap(inner, 2.0)
