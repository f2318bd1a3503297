"""The oracle: worked numbers, identities, and the rules of meaning that stand in the equation itself."""

import numpy as np
import pytest

from qkv.core.equation import attend_dense, bind_call
from qkv.core.positions import Positions
from qkv.errors import KindError, ShapeError
from qkv.masks import AllowedKeys, AllowedPairs, Causal, Lengths
from qkv.normalizers import NORMALIZERS, Mean, Sample, Softmax, Sum, TopK
from qkv.scores import Biased, Bilinear, Constant, Dot, Exact, Gaussian, Projected, ScaledDot
from qkv.testing import Setting
from qkv.testing.gradients import assert_jax_agrees
from qkv.testing.libraries import LIBRARIES, to_float64

RNG = np.random.default_rng(0)


def attend(query, key, value, score=None, normalizer=None, **more):
    return attend_dense(query, key, value, score=score or Dot(), normalizer=normalizer or Softmax(), **more)


def test_mission_a1_exact_matching_finds_the_equal_name_and_nothing_else():
    last = np.array(["Zhang", "Lipton", "Li", "Smola", "Hu", "Werness"], dtype=object)
    seen = attend(np.array(["Li", "Jones"], dtype=object), last, np.arange(6.0)[:, None], Exact(), Sum())
    assert seen.weights.tolist() == [[0, 0, 1, 0, 0, 0], [0] * 6]
    assert seen.output.tolist() == [[2.0], [0.0]]


def test_mission_a3_top_k_is_the_dense_answer_of_the_kept_keys_alone():
    query, key, value = RNG.normal(size=(3, 4)), RNG.normal(size=(9, 4)), RNG.normal(size=(9, 2))
    seen = attend(query, key, value, normalizer=TopK(4))
    for row in range(3):
        kept = np.argsort(-(query[row] @ key.T))[:4]
        alone = attend(query[row : row + 1], key[kept], value[kept])
        assert np.allclose(seen.output[row], alone.output[0], rtol=1e-13)


def test_mission_a8_average_pooling_is_the_mean_of_the_values():
    value = RNG.normal(size=(7, 3))
    for score, normalizer in ((Dot(), Mean()), (Constant(), Softmax())):
        seen = attend(RNG.normal(size=(2, 4)), RNG.normal(size=(7, 4)), value, score, normalizer)
        assert np.allclose(seen.weights, 1 / 7, rtol=1e-14)
        assert np.allclose(seen.output, value.mean(axis=0), rtol=1e-13)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_mission_a10_gradient_by_the_query_is_the_covariance_of_the_keys(scale):
    """With a(q, k) = qᵀk and values = keys, d output / d q = Σ w k kᵀ − (Σ w k)(Σ w k)ᵀ."""
    torch = pytest.importorskip("torch")
    query, key = torch.tensor(RNG.normal(size=(1, 5))), torch.tensor(RNG.normal(size=(40, 5)) * scale)
    seen = attend(query, key, key)
    mean = seen.weights @ key
    covariance = (key - mean).mT @ ((key - mean) * seen.weights.mT)
    jacobian = torch.func.jacrev(lambda q: attend(q, key, key).output)(query)[0, :, 0]
    assert torch.abs(jacobian - covariance).max() <= 1e-13 * max(1.0, float(covariance.abs().max()), scale**2)


def test_mission_b1_shapes_of_the_dot_product():
    seen = attend(RNG.normal(size=(100, 10, 5)), RNG.normal(size=(100, 20, 5)), RNG.normal(size=(100, 20, 10)))
    assert seen.output.shape == (100, 10, 10)
    assert seen.weights.shape == (100, 10, 20)


def test_mission_b9_shapes_of_unequal_widths_through_maps():
    query, key, value = (RNG.normal(size=shape) for shape in ((100, 10, 7), (100, 20, 5), (100, 20, 10)))
    seen = attend(query, key, value, Projected(Dot(), RNG.normal(size=(6, 7)), RNG.normal(size=(6, 5))))
    assert seen.output.shape == (100, 10, 10)
    assert seen.weights.shape == (100, 10, 20)


@pytest.mark.parametrize("library", LIBRARIES)
def test_mission_c3_masked_self_attention_gives_the_printed_weights(library):
    """A value tensor in [0, 1]^(3×5), attending to itself by softmax(XXᵀ / √5) under a causal mask."""
    x = np.array([[0.67, 0.38, 0.26, 0.20, 0.79], [0.71, 0.51, 0.57, 0.47, 0.74], [0.68, 0.13, 0.67, 0.14, 0.64]])
    setting = Setting(library, "float64")
    with setting.active():
        x = setting.array(x)
        seen = attend(x, x, x, ScaledDot(), mask=Causal())
    printed = [[1, 0, 0], [0.4597, 0.5403, 0], [0.3136, 0.3519, 0.3345]]
    assert to_float64(seen.weights).round(4).tolist() == printed


def test_mission_c4_a_row_with_no_key_is_zero_and_padding_has_weight_zero():
    query, key, value = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(2, 5, 4)), RNG.normal(size=(2, 5, 2))
    for normalizer in (make() if name != "topk" else TopK(2) for name, make in NORMALIZERS.items()):
        own = np.abs(query), np.abs(key), value
        seen = attend(*own, normalizer=normalizer, mask=Lengths([0, 3]), seed=1)
        assert (seen.output[0] == 0).all()
        assert (seen.weights[0] == 0).all()
        assert (seen.weights[1, :, 3:] == 0).all()
        assert (seen.weights[1] != 0).any(axis=-1).all()


@pytest.mark.parametrize("score", [Gaussian(0.5), Biased(Dot(), RNG.normal(size=(4, 6)))], ids=str)
def test_gradients_under_a_mask_are_the_same_in_torch_and_jax(score):
    inputs = [RNG.normal(size=shape) for shape in ((2, 4, 3), (1, 6, 3), (2, 6, 2))]
    allowed = RNG.random((2, 4, 6)) < 0.5
    allowed[0, 1] = False

    def loss(query, key, value):
        setting = Setting("torch" if hasattr(query, "detach") else "jax", "float64")
        mask = AllowedPairs(setting.array(allowed))
        return (attend(query, key, value, setting.part(score), mask=mask).output ** 2).sum()

    assert_jax_agrees(loss, inputs)


def test_dropout_acts_on_the_output_and_weights_are_those_before_it():
    query, key, value = RNG.normal(size=(30, 4)), RNG.normal(size=(50, 4)), RNG.normal(size=(50, 2))
    plain = attend(query, key, value)
    seen = attend(query, key, value, dropout=0.5, seed=3)
    assert (seen.weights == plain.weights).all()
    assert not np.allclose(seen.output, plain.output)
    assert (attend(query, key, value, dropout=0.5, seed=3).output == seen.output).all()
    assert (attend(query, key, value, dropout=0.5, seed=4).output != seen.output).any()


def test_dropout_keeps_the_output_in_expectation():
    value = np.ones((400, 1))
    seen = attend(np.zeros((500, 1)), np.zeros((400, 1)), value, dropout=0.25, seed=3)
    assert abs(seen.output.mean() - 1) < 5 * np.sqrt(0.25 / 0.75 / 400 / 500)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_half_precision_is_accumulated_in_single_and_answered_in_half(dtype):
    query = np.full((1, 64), 10, dtype=dtype)
    key = np.concatenate([query, query * 0])
    seen = attend(query, key, np.array([[1.0], [0.0]], dtype=dtype))
    assert seen.output.dtype == dtype
    assert seen.logits.dtype == np.float32
    assert seen.logits[0, 0] == 6400
    assert seen.output.item() == 1


def test_a_logit_as_low_as_the_lowest_number_is_an_ordinary_number():
    """Only −inf excludes: a fill with the lowest finite number is a key like another."""
    lowest = np.finfo(np.float64).min
    seen = attend(np.zeros((1, 1)), np.zeros((2, 1)), np.array([[1.0], [3.0]]), Biased(Dot(), np.full((1, 2), lowest)))
    assert seen.output.tolist() == [[2.0]]


@pytest.mark.thinned
@pytest.mark.parametrize(("q", "k"), [(0, 3), (3, 0), (1, 1), (0, 0)])
@pytest.mark.parametrize("library", LIBRARIES)
def test_lengths_of_zero_and_one_work(q, k, library):
    setting = Setting(library, "float32")
    with setting.active():
        arrays = [setting.array(np.ones(shape)) for shape in ((q, 2), (k, 2), (k, 3))]
        seen = attend(*arrays, mask=AllowedKeys(setting.array(np.ones(k, dtype=bool))))
    assert to_float64(seen.output).tolist() == [[1.0 if k else 0.0] * 3] * q


def test_a_broadcast_batch_axis_is_the_same_as_a_copied_one():
    query, key, value = RNG.normal(size=(2, 3, 4, 5)), RNG.normal(size=(2, 1, 6, 5)), RNG.normal(size=(6, 2))
    seen = attend(query, key, value)
    copied = attend(query, np.repeat(key, 3, axis=1), np.broadcast_to(value, (2, 3, 6, 2)).copy())
    assert np.allclose(seen.output, copied.output, rtol=1e-14)


def test_positions_move_the_causal_mask():
    query, key, value = RNG.normal(size=(2, 3)), RNG.normal(size=(5, 3)), RNG.normal(size=(5, 2))
    for align, seen_keys in (("start", [1, 2]), ("end", [4, 5])):
        seen = attend(query, key, value, mask=Causal(), positions=Positions(align=align))
        assert (seen.weights != 0).sum(axis=-1).tolist() == seen_keys


def test_a_part_of_another_library_is_refused_with_what_to_convert():
    torch = pytest.importorskip("torch")
    x = torch.ones((2, 3))
    with pytest.raises(
        KindError,
        match=r"arrays of Biased must be torch arrays like query, key and value, got a numpy array",
    ):
        attend(x, x, x, Biased(Dot(), np.ones((2, 2))))


def test_lengths_of_key_and_value_that_differ_are_refused():
    with pytest.raises(ShapeError, match=r"key and value must have the same length, got 5 keys .* and 4 values"):
        attend(np.ones((2, 3)), np.ones((5, 3)), np.ones((4, 2)))


def test_mission_a9_the_score_function_estimate_agrees_with_the_exact_gradient():
    """E[(reward − baseline) ∇ log p_j] over drawn keys = ∇ Σ p_j reward_j, within five standard errors."""
    logits, reward = np.array([0.5, -1.0, 0.2, 1.3]), np.array([1.0, 3.0, -2.0, 0.5])
    p = np.exp(logits) / np.exp(logits).sum()
    exact = p * (reward - p @ reward)
    n = 40_000
    seen = attend(np.ones((n, 1)), logits[:, None], reward[:, None], normalizer=Sample(), seed=2)
    assert np.abs(seen.weights.mean(axis=0) - p).max() < 5 * np.sqrt(0.25 / n)
    estimates = (seen.output - p @ reward) * (seen.weights - p)
    error = estimates.std(axis=0) / np.sqrt(n)
    assert (np.abs(estimates.mean(axis=0) - exact) < 5 * error).all()


def test_a_tile_uses_the_score_and_the_projections_that_it_is_given():
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(n, 4)) for n in (3, 5, 5))
    bias = rng.normal(size=(3, 5))
    call = bind_call(query, key, value, score=Dot(), normalizer=Softmax())
    with_bias = call.logits((0, 3), (0, 5), score=Biased(Dot(), bias))
    np.testing.assert_allclose(with_bias, query @ key.T + bias, rtol=1e-12)
    mapped = bind_call(query, key, value, score=Bilinear(2 * np.eye(4)), normalizer=Softmax())
    shared = mapped.with_projections(*mapped.score.project(query, key, mapped.tile))
    np.testing.assert_allclose(shared.logits((0, 3), (0, 5)), 2 * query @ key.T, rtol=1e-12)


def test_tiles_compare_large_integers_exactly_before_they_are_cast():
    numbers = np.array([[2**53], [2**53 + 1]])
    for cast_tiles in (False, True):
        call = bind_call(numbers, numbers, np.ones((2, 1)), score=Exact(), normalizer=Softmax(), cast_tiles=cast_tiles)
        logits = call.logits((0, 2), (0, 2))
        assert logits.tolist() == [[1.0, 0.0], [0.0, 1.0]]
