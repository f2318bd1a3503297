"""What each readout gives, on numbers that can be checked by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, readouts
from qkv.errors import KindError, OptionError, RefusedError, ShapeError

KEYS = np.log(np.array([[1.0], [6.0], [2.0], [1.0]]))
VALUES = np.array([[1.0], [2.0], [3.0], [4.0]])
ASK = np.ones((1, 1))
NOBODY = masks.Keys(np.zeros(4, dtype=bool))


def observe(*wanted: Any, query: Any = ASK, **options: Any) -> Any:
    """Weights 0.1, 0.6, 0.2, 0.1 for a query of 1."""
    return qkv.observe(query, KEYS, VALUES, readouts=wanted, **options).readouts


def test_results_come_in_the_order_asked() -> None:
    first, second, third = observe(readouts.LogSumExp(), readouts.Dense(), readouts.Entropy())
    assert first.shape == (1,)
    assert second.shape == (1, 4)
    assert np.exp(first) == pytest.approx(10)
    assert third == pytest.approx(-sum(w * math.log(w) for w in (0.1, 0.6, 0.2, 0.1)))


def test_rows_come_in_the_order_named_and_negative_ones_count_from_the_end() -> None:
    query = np.array([[0.0], [1.0], [2.0]])
    rows, everything = observe(readouts.Rows((-1, 0, -1, 1)), readouts.Dense(), query=query)
    assert np.array_equal(rows, everything[[2, 0, 2, 1]])


@pytest.mark.parametrize("kernel", ["dense", "streamed"])
def test_row_that_is_not_there_is_named(kernel: str) -> None:
    with pytest.raises(ShapeError, match="query 3, there are 1"):
        observe(readouts.Rows((0, 3)), kernel=kernel)
    with pytest.raises(ShapeError, match="query -2, there are 1"):
        observe(readouts.Rows((-2,)), kernel=kernel)


def test_top_weights_come_strongest_first_and_ties_go_to_the_lowest_key() -> None:
    keys = np.log(np.array([[2.0], [6.0], [2.0], [2.0]]))
    (top,) = qkv.observe(ASK, keys, VALUES, readouts=[readouts.TopWeights(3)]).readouts
    assert top.keys.tolist() == [[1, 0, 2]]
    assert top.weights.tolist() == [pytest.approx([1 / 2, 1 / 6, 1 / 6])]


def test_places_that_no_key_fills_have_weight_0_and_key_minus_1() -> None:
    (top,) = observe(readouts.TopWeights(5), mask=masks.Keys(np.array([True, False, True, False])))
    assert top.keys.tolist() == [[2, 0, -1, -1, -1]]
    assert top.weights.tolist() == [pytest.approx([2 / 3, 1 / 3, 0, 0, 0])]


def test_top_weights_of_a_row_without_keys_name_none() -> None:
    (top,) = observe(readouts.TopWeights(2), mask=NOBODY)
    assert top.keys.tolist() == [[-1, -1]]
    assert not top.weights.any()


def test_negative_weights_come_before_keys_without_weight() -> None:
    (top,) = observe(readouts.TopWeights(4), normalizer=normalizers.Identity(), query=-ASK)
    assert top.keys.tolist() == [[2, 1, -1, -1]]  # logits of 0 have no weight


def test_entropy_is_the_logarithm_of_how_many_keys_share_equally() -> None:
    even = qkv.observe(np.zeros((1, 1)), KEYS, VALUES, readouts=[readouts.Entropy()]).readouts[0]
    assert np.exp(even) == pytest.approx(4)


def test_entropy_counts_only_the_keys_that_a_sparse_normalizer_keeps() -> None:
    (entropy,) = observe(readouts.Entropy(), normalizer=normalizers.TopK(2), query=np.zeros((1, 1)))
    assert np.exp(entropy) == pytest.approx(2)


def test_row_without_keys_has_entropy_0_and_total_0() -> None:
    entropy, total = observe(readouts.Entropy(), readouts.LogSumExp(), mask=NOBODY)
    assert entropy.tolist() == [0.0]
    assert total.tolist() == [-math.inf]


def test_log_sum_exp_counts_the_sink() -> None:
    (total,) = observe(readouts.LogSumExp(), normalizer=normalizers.Softmax(sink=math.log(5)))
    assert np.exp(total) == pytest.approx(15)


def test_sampled_key_is_the_one_whose_value_is_the_answer() -> None:
    query = np.linspace(-1, 1, 50)[:, None]
    sample = normalizers.Sample()
    seen = qkv.observe(query, KEYS, VALUES, normalizer=sample, seed=3, readouts=[readouts.SampledKey()])
    assert np.array_equal(VALUES[seen.readouts[0]], seen.output)
    assert len(set(seen.readouts[0].tolist())) > 1


def test_log_probability_is_that_of_the_drawn_key() -> None:
    drawn, log_probability = observe(
        readouts.SampledKey(), readouts.LogProbability(), normalizer=normalizers.Sample(), seed=3
    )
    assert np.exp(log_probability) == pytest.approx(np.array([0.1, 0.6, 0.2, 0.1])[drawn])


def test_no_key_is_drawn_where_none_is_left() -> None:
    drawn, log_probability = observe(
        readouts.SampledKey(),
        readouts.LogProbability(),
        normalizer=normalizers.Sample(),
        seed=3,
        mask=NOBODY,
    )
    assert drawn.tolist() == [-1]
    assert log_probability.tolist() == [0.0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: readouts.Rows(()), r"Give one or more whole numbers"),
        (lambda: readouts.Rows((1.5,)), r"\(1.5,\).*whole numbers"),  # type: ignore[arg-type]
        (lambda: readouts.TopWeights(0), "k=0.*at least 1"),
        (lambda: readouts.TopWeights(2.0), "k=2.0.*whole number"),  # type: ignore[arg-type]
        (lambda: readouts.TopWeights(True), "k=True.*whole number"),
    ],
)
def test_numbers_that_make_no_readout_are_refused(make: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make()


def test_class_instead_of_an_instance_is_refused_with_what_to_give() -> None:
    with pytest.raises(KindError, match=r"instances.*TopWeights\(5\)"):
        observe(readouts.Dense)


@pytest.mark.parametrize(
    ("readout", "normalizer", "said"),
    [
        (
            readouts.Entropy(),
            normalizers.Identity(),
            r"Entropy wants weights that add up to 1; those of Identity\(\) do not.",
        ),
        (
            readouts.LogSumExp(),
            normalizers.Mean(),
            r"LogSumExp is the total of a softmax; Mean\(\) has none.",
        ),
        (
            readouts.SampledKey(),
            normalizers.Hard(),
            r"SampledKey is about the key that Sample draws; Hard\(\) draws none.",
        ),
    ],
)
def test_refusals_name_the_readout_and_the_normalizer(readout: Any, normalizer: Any, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        observe(readout, normalizer=normalizer)


def test_dense_weights_that_do_not_fit_the_memory_are_refused() -> None:
    shape = (50_000, 8)
    with pytest.raises(RefusedError, match="streamed: it would allocate"):
        qkv.explain(shape, shape, shape, readouts=[readouts.Dense()])
    assert qkv.explain(shape, shape, shape, readouts=[readouts.TopWeights(5)]).kernel.name == "streamed"
