"""What is masked is never read, and what is read shows: the products that see to it."""

import numpy as np
import pytest

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.equation import attend_dense
from qkv.core.guard import all_finite, apply_weights, guarded_logits, zero_nonfinite
from qkv.masks import AllowedKeys, AllowedPairs
from qkv.normalizers import Hard, Identity, Softmax, Sparsemax, Sum, TopK
from qkv.scores import Additive, Biased, Dot, Gaussian
from qkv.testing import Setting
from qkv.testing.gradients import assert_jax_agrees, torch_gradients
from qkv.testing.libraries import LIBRARIES, to_float64

RNG = np.random.default_rng(0)
QUERY, KEY, VALUE = RNG.normal(size=(4, 3)), RNG.normal(size=(6, 3)), RNG.normal(size=(6, 2))
ADDITIVE = Additive(RNG.normal(size=(5, 3)), RNG.normal(size=(5, 3)), None, RNG.normal(size=5))


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("library", "poison"),
    [(name, x) for name in LIBRARIES for x in (np.nan, np.inf, -np.inf) if name != "jax" or np.isnan(x)],
)
@pytest.mark.parametrize("normalizer", [Softmax(), Sum(), Sparsemax(), Hard(), TopK(2), Identity()], ids=str)
def test_a_masked_key_or_value_leaks_nothing(library, poison, normalizer):
    setting = Setting(library, "float64")
    query, key, value = np.abs(QUERY), np.abs(KEY), VALUE.copy()
    keep = np.arange(6) != 2
    hurt_key, hurt_value = key.copy(), value.copy()
    hurt_key[2, 1], hurt_value[2] = poison, poison
    with setting.active():
        arrays = [setting.array(x) for x in (query, key[keep], value[keep], hurt_key, hurt_value)]
        alone = attend_dense(*arrays[:3], score=Dot(), normalizer=normalizer)
        mask = AllowedKeys(setting.array(keep))
        seen = attend_dense(arrays[0], *arrays[3:], score=Dot(), normalizer=normalizer, mask=mask)
    assert np.allclose(to_float64(seen.output), to_float64(alone.output), rtol=1e-12)
    assert (to_float64(seen.weights)[:, 2] == 0).all()


SCORES = pytest.mark.parametrize("score", [Dot(), Gaussian(0.7), ADDITIVE, Biased(Dot(), np.ones((4, 6)))], ids=str)


def poisoned(score, allowed):
    """A function of query, key and value in which query 3, key 2 and value 2 are NaN; and these."""
    query, key, value = QUERY.copy(), KEY.copy(), VALUE.copy()
    query[3], key[2], value[2] = np.nan, np.nan, np.nan

    def output(query, key, value):
        setting = Setting("torch" if hasattr(query, "detach") else "jax", "float64")
        mask = AllowedPairs(setting.array(allowed))
        return attend_dense(query, key, value, score=setting.part(score), normalizer=Softmax(), mask=mask).output

    return output, [query, key, value]


@SCORES
def test_under_pair_masks_only_the_queries_that_may_read_a_nan_see_it(score):
    allowed = np.ones((4, 6), dtype=bool)
    allowed[0, 2], allowed[2, 2], allowed[3] = False, False, False
    output, inputs = poisoned(score, allowed)
    got = to_float64(output(*map(Setting("torch", "float64").array, inputs)))
    assert np.isnan(got).any(axis=-1).tolist() == [False, True, False, False]
    assert (got[3] == 0).all()


@SCORES
def test_where_nobody_may_read_a_nan_no_gradient_is_one(score):
    allowed = np.ones((4, 6), dtype=bool)
    allowed[:, 2], allowed[3], allowed[1, 4] = False, False, False
    output, inputs = poisoned(score, allowed)
    _, gradients = torch_gradients(lambda *x: output(*x).sum(), inputs)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert (gradients[0][3] == 0).all()
    assert all((gradient[2] == 0).all() for gradient in gradients[1:])


def test_under_jit_where_nothing_is_known_of_the_data_the_same_is_true():
    allowed = np.ones((4, 6), dtype=bool)
    allowed[:, 2], allowed[3], allowed[1, 4] = False, False, False
    output, inputs = poisoned(Gaussian(0.7), allowed)
    assert_jax_agrees(lambda *x: output(*x).sum(), inputs)


def test_a_finite_row_beside_nan_has_the_gradient_of_the_finite_inputs():
    def score(query, key):
        return query @ key.mT

    def guarded(query, key):
        return guarded_logits(score, query, key)[:, :2].sum()

    hurt = KEY.copy()
    hurt[3] = np.nan
    wanted = torch_gradients(lambda q, k: score(q, k)[:, :2].sum(), [QUERY, KEY])[1]
    got = torch_gradients(guarded, [QUERY, hurt])[1]
    assert all(np.allclose(mine, theirs) for mine, theirs in zip(got, wanted, strict=True))


@pytest.mark.parametrize(
    ("weights", "column", "wanted"),
    [
        ([0.5, 0.5, 0.0], [1.0, 3.0, np.nan], 2.0),
        ([0.5, 0.5, 0.0], [1.0, 3.0, np.inf], 2.0),
        ([0.5, 0.0, 0.5], [1.0, 3.0, np.inf], np.inf),
        ([0.5, 0.0, 0.5], [1.0, 3.0, -np.inf], -np.inf),
        ([0.5, 0.0, -0.5], [1.0, 3.0, np.inf], -np.inf),
        ([0.5, 0.0, -0.5], [1.0, 3.0, -np.inf], np.inf),
        ([0.5, 0.2, 0.5], [1.0, np.inf, -np.inf], np.nan),
        ([0.5, 0.2, -0.5], [1.0, np.inf, np.inf], np.nan),
        ([0.5, 0.2, 0.5], [1.0, np.inf, np.nan], np.nan),
    ],
)
def test_a_value_that_is_read_is_read_as_it_is_and_no_other(weights, column, wanted):
    weights, value = np.array([weights]), np.array(column)[:, None]
    with ignore_numpy_warnings():
        got = apply_weights(weights, value, lambda: weights != 0, clean=False)
    assert np.array_equal(got, [[wanted]], equal_nan=True)


def test_text_and_integers_are_finite_and_tracers_are_not_known_to_be():
    assert all_finite(np.array(["a", None], dtype=object))
    assert all_finite(np.arange(3))
    assert not all_finite(np.array([1.0, np.inf]))
    jax = pytest.importorskip("jax")
    jax.jit(lambda x: x if not all_finite(x) else 1 / 0)(jax.numpy.ones(2))


def test_non_finite_elements_become_zero_and_the_others_stay():
    x = np.array([[np.inf, 1.5], [np.nan, -np.inf]])
    assert zero_nonfinite(x).tolist() == [[0.0, 1.5], [0.0, 0.0]]
