"""The few array functions that the standard leaves out: the same in every library."""

import numpy as np
import pytest

from qkv.core.arrays import (
    accumulation_dtype,
    arange,
    as_array,
    asarray_like,
    dtype_name,
    gather,
    is_array,
    is_floating,
    is_text,
    itemsize,
    library,
    namespace,
    requires_gradient,
    result_dtype,
    row_max,
    sigmoid,
    statically_known_true,
    stop_gradient,
    to_numpy,
    zeros,
)
from qkv.errors import KindError
from qkv.testing import Setting
from qkv.testing.gradients import torch_gradients
from qkv.testing.libraries import LIBRARIES, to_float64

EACH = pytest.mark.parametrize("setting", [Setting(name, "float32") for name in LIBRARIES], ids=str)


@EACH
def test_an_array_knows_its_library(setting):
    x = setting.array(np.ones(2))
    assert library(x, x) == setting.library
    assert is_array(x)
    assert dtype_name(x) == "float32"


@pytest.mark.parametrize("x", [1.0, [1.0], "Li", None, np.float64(1.0)])
def test_numbers_lists_and_numpy_scalars_are_no_arrays(x):
    assert not is_array(x)


def test_arrays_of_two_libraries_are_refused_by_naming_both():
    torch = pytest.importorskip("torch")
    with pytest.raises(KindError, match=r"numpy and torch.*Convert all arrays to the same"):
        namespace(np.ones(1), torch.ones(1))


def test_what_is_no_array_is_refused_by_its_kind():
    with pytest.raises(KindError, match=r"arrays of a call must be NumPy.* arrays, got an object of type list"):
        library([1.0])


def test_lists_of_text_become_arrays_of_objects():
    assert is_text(as_array(["Li", "Mu"]))
    assert as_array(["Li"]).dtype == object
    assert not is_text(as_array([1.0, 2.0]))


@pytest.mark.parametrize(
    ("name", "size"),
    [("float64", 8), ("float32", 4), ("bfloat16", 2), ("int8", 1), ("bool", 1), ("object", 8), ("<U5", 8)],
)
def test_elements_have_their_size_in_bytes(name, size):
    assert itemsize(name) == size


@pytest.mark.thinned
@EACH
@pytest.mark.parametrize("batches", [((), ()), ((2,), ()), ((), (2,)), ((2, 1), (1, 3)), ((2, 3), (2, 3))])
def test_gather_looks_up_rows_with_either_side_broadcast(setting, batches):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(*batches[0], 5)).astype("float32")
    index = rng.integers(0, 5, size=(*batches[1], 3, 4)).astype("int32")
    got = gather(setting.array(table), setting.array(index))
    batch = np.broadcast_shapes(*batches)
    whole_table = np.broadcast_to(table, (*batch, 5))
    whole_index = np.broadcast_to(index, (*batch, 3, 4))
    for tile in np.ndindex(*batch, 3, 4):
        assert to_float64(got)[tile] == whole_table[(*tile[:-2], whole_index[tile])]


@EACH
def test_largest_of_no_elements_is_minus_infinity(setting):
    assert to_float64(row_max(setting.array(np.zeros((2, 0))))).tolist() == [[-np.inf], [-np.inf]]
    assert to_float64(row_max(setting.array([[1.0, 3.0]]))).tolist() == [[3.0]]


@EACH
def test_sigmoid_keeps_the_digits_of_small_results_and_never_overflows(setting):
    x = np.array([-100.0, -60.0, -14.0, -1.0, 0.0, 1.0, 60.0, 1e4])
    wanted = np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))
    got = to_float64(sigmoid(setting.array(x)))
    assert np.allclose(got, wanted, rtol=1e-6, atol=1e-38)


def test_sigmoid_has_slope_one_quarter_at_zero_and_is_flat_far_out():
    _, (gradient,) = torch_gradients(lambda x: sigmoid(x).sum(), [np.array([0.0, -1e4, 1e4, -np.inf])])
    assert gradient.tolist() == [0.25, 0.0, 0.0, 0.0]


@EACH
def test_made_arrays_are_of_the_library_of_their_reference(setting):
    reference = setting.array(np.ones(2))
    for made in (
        arange(reference, 1, 4),
        zeros(reference, (3,)),
        asarray_like(reference, np.ones(3)),
        asarray_like(reference, [1.0]),
    ):
        assert library(made, reference) == setting.library
    assert dtype_name(asarray_like(reference, np.ones(3), reference.dtype)) == "float32"


@pytest.mark.parametrize("source", LIBRARIES)
@EACH
def test_an_array_is_carried_to_another_library(setting, source):
    x = Setting(source, "float32").array(np.arange(3.0))
    assert to_numpy(asarray_like(setting.array(0.0), x)).tolist() == [0.0, 1.0, 2.0]


def test_half_precision_accumulates_in_single():
    half, double = np.ones(1, dtype=np.float16), np.ones(1)
    assert accumulation_dtype(half) == np.float32
    assert result_dtype(half) == np.float16
    assert result_dtype(half, double) == np.float64
    assert is_floating(half)
    assert not is_floating(np.arange(2))


def test_bfloat16_accumulates_in_single_too():
    torch = pytest.importorskip("torch")
    assert accumulation_dtype(torch.ones(1, dtype=torch.bfloat16)) == torch.float32


def test_integers_are_answered_in_the_default_of_their_library():
    torch = pytest.importorskip("torch")
    assert result_dtype(np.arange(2)) == np.float64
    assert result_dtype(torch.arange(2)) == torch.float32


def test_what_cannot_be_known_under_jit_is_not_true():
    jax = pytest.importorskip("jax")
    seen = []
    jax.jit(lambda x: seen.append((statically_known_true(x.all()), to_numpy(x))) or x)(jax.numpy.ones(2))
    assert seen == [(False, None)]
    assert statically_known_true(np.ones(2).all())


def test_a_stopped_gradient_is_a_constant():
    assert torch_gradients(lambda x: (stop_gradient(x) * x).sum(), [np.array([3.0])])[1][0].tolist() == [3.0]


@EACH
def test_the_largest_of_no_elements_has_the_batch_axes_of_the_rows(setting):
    assert to_float64(row_max(setting.array(np.zeros((2, 3, 0))))).tolist() == [[[-np.inf]] * 3] * 2


def test_a_tracer_of_jax_requires_a_gradient_and_arrays_with_values_do_not():
    jax = pytest.importorskip("jax")
    seen = []
    jax.grad(lambda x: (seen.append(requires_gradient(x)), x * 2.0)[1])(1.0)
    assert seen == [True]
    assert not requires_gradient(jax.numpy.ones(2))
    assert not requires_gradient(np.ones(2))
