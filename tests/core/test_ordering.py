"""The largest of each row, with and without sorting all of it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.core import ordering
from qkv.core.ordering import kth_largest, nonzero_top_k_indices, top_k_indices, top_k_mask

ENTRIES = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0, np.inf, np.nan])


def test_nan_is_among_the_largest_beside_as_many_equal_elements() -> None:
    x = np.array([[-np.inf, -1.0, -1.0, -1.0, np.nan], [0.0, 1.0, 2.0, 3.0, np.nan]])
    assert top_k_mask(x, 3).tolist() == [[False, True, True, False, True], [False, False, True, True, True]]


@given(rows=st.integers(1, 3), data=st.data(), count=st.integers(1, 5))
def test_ties_go_to_the_lowest_index_whether_or_not_whole_rows_are_sorted(rows, data, count):
    x = np.array(data.draw(st.lists(st.lists(ENTRIES, min_size=41, max_size=41), min_size=rows, max_size=rows)))
    wanted = [sorted(range(41), key=lambda i: (-(np.inf if np.isnan(r[i]) else r[i]), i))[:count] for r in x]
    assert top_k_indices(x, count).tolist() == wanted
    assert [np.flatnonzero(row).tolist() for row in top_k_mask(x, count)] == [sorted(w) for w in wanted]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_rows_of_5000_elements_have_the_order_of_a_stable_sort(count):
    x = np.random.default_rng(count).integers(0, 2000, (3, 5000)).astype(np.float32)
    x[1, 7:], x[2, ::3] = -np.inf, np.nan
    for width in (5000, 300):  # with candidates of long rows, and many short rows at once
        rows = x[:, :width]
        wanted = np.argsort(-np.where(np.isnan(rows), np.inf, rows), axis=-1, kind="stable")[:, :count]
        assert top_k_indices(rows, count).tolist() == wanted.tolist()


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_other_libraries_take_the_same_keys_as_numpy(library):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 4, (3, 50)).astype(np.float32)
    xp = pytest.importorskip("torch" if library == "torch" else "jax.numpy")
    other = xp.asarray(x)
    assert np.asarray(top_k_indices(other, 5)).tolist() == top_k_indices(x, 5).tolist()
    assert np.asarray(top_k_mask(other, 5)).tolist() == top_k_mask(x, 5).tolist()


def test_a_row_shorter_than_asked_gives_all_of_it():
    assert top_k_indices(np.array([[1.0, 2.0]]), 5).tolist() == [[1, 0]]
    assert top_k_mask(np.array([[1.0, 2.0]]), 5).tolist() == [[True, True]]


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_zeros_come_after_negative_elements_and_the_others_in_the_order_of_sorting(levels):
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(levels)
    x = torch.randint(-levels // 4, levels, (2, 20, 64), generator=generator).double()
    x[0, 3, 5:], x[1, 2, 7] = 0, math.nan
    for count in (1, 3, 12, 40):
        found, wanted = nonzero_top_k_indices(x, count), top_k_indices(x.masked_fill(x == 0, -math.inf), count)
        there = torch.take_along_dim(x, wanted, -1) != 0
        assert torch.equal(torch.take_along_dim(x, found, -1) != 0, there)
        assert torch.equal(found[there], wanted[there])


@pytest.mark.parametrize("library", ["numpy", "torch", "jax", "tensorflow"])
def test_the_kth_largest_is_that_of_sorting_in_every_library(library):
    x = np.random.default_rng(0).integers(0, 9, (2, 3, 20)).astype(np.float32)
    x[0, 1, 5:] = -np.inf
    if library == "tensorflow":
        convert = pytest.importorskip("tensorflow").constant
    else:
        convert = pytest.importorskip({"jax": "jax.numpy"}.get(library, library)).asarray
    for count in (1, 4, 7, 20):
        found = np.asarray(kth_largest(convert(x), count))
        np.testing.assert_array_equal(found, np.sort(x, axis=-1)[..., 20 - count : 21 - count])


def test_the_kth_largest_of_half_precision_and_of_tensors_with_gradients_is_that_of_sorting():
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    for y in (x.half(), x.bfloat16(), x.clone().requires_grad_()):
        found = kth_largest(y, 4)
        assert found.shape == (3, 1)
        assert torch.equal(found, y.sort(dim=-1, descending=True).values[:, 3:4])
    kth_largest(x.requires_grad_(), 4).sum().backward()
    assert x.grad.sum() == 3
    assert (x.grad != 0).sum() == 3


def test_the_largest_entries_of_a_tracer_are_found_without_comparing_values(monkeypatch):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).integers(0, 4, (2, 3, 40)).astype(np.float32)
    monkeypatch.setattr(ordering, "statically_known_true", lambda _: False)
    found = ordering._torch_top_k(torch.from_numpy(x), 7)
    assert found.tolist() == np.argsort(-x, axis=-1, kind="stable")[..., :7].tolist()


def test_candidates_of_long_rows_contain_the_largest_with_ties_to_the_lowest_index():
    rng = np.random.default_rng(0)
    for _ in range(60):
        n = int(rng.integers(9, 3000))
        count = int(rng.integers(1, max(2, n // 8)))
        few, masked = rng.integers(0, 4, n).astype(float), np.where(rng.random(n) < 0.9, -np.inf, rng.normal(size=n))
        for x in (rng.normal(size=n), few, masked, np.full(n, -np.inf), np.where(few > 1, np.inf, -np.inf)):
            expected = np.argsort(-x, kind="stable")[:count]
            assert (top_k_indices(x[None], count)[0] == expected).all()
