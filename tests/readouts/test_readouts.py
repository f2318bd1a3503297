"""What each readout gives, on numbers that can be checked by hand."""

import math
import re
from functools import partial
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, readouts
from qkv.errors import KindError, OptionError, PositionError, RefusedError, ShapeError

KEYS = np.log(np.array([[1.0], [6.0], [2.0], [1.0]]))
VALUES = np.array([[1.0], [2.0], [3.0], [4.0]])
ASK = np.ones((1, 1))
NOBODY = masks.AllowedKeys(np.zeros(4, dtype=bool))


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


@pytest.mark.parametrize("kernel", ["dense", "numpy_blocks"])
def test_row_that_is_not_there_is_named(kernel: str) -> None:
    with pytest.raises(ShapeError, match="0 for 1 queries, got 3"):
        observe(readouts.Rows((0, 3)), kernel=kernel)
    with pytest.raises(ShapeError, match="0 for 1 queries, got -2"):
        observe(readouts.Rows((-2,)), kernel=kernel)


def test_top_weights_come_strongest_first_and_ties_go_to_the_lowest_key() -> None:
    keys = np.log(np.array([[2.0], [6.0], [2.0], [2.0]]))
    (top,) = qkv.observe(ASK, keys, VALUES, readouts=[readouts.TopWeights(3)]).readouts
    assert top.keys.tolist() == [[1, 0, 2]]
    assert top.weights.tolist() == [pytest.approx([1 / 2, 1 / 6, 1 / 6])]


def test_places_that_no_key_fills_have_weight_0_and_key_minus_1() -> None:
    (top,) = observe(readouts.TopWeights(5), mask=masks.AllowedKeys(np.array([True, False, True, False])))
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
        readouts.SampledKey(), readouts.LogProbability(), normalizer=normalizers.Sample(), seed=3, mask=NOBODY
    )
    assert drawn.tolist() == [-1]
    assert log_probability.tolist() == [0.0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: readouts.TopWeights(0), "k of TopWeights must be .*at least 1, got 0"),
        (lambda: readouts.TopWeights(2.0), "integer of at least 1, got 2.0"),  # type: ignore[arg-type]
        (lambda: readouts.TopWeights(True), "integer of at least 1, got True"),
        (lambda: readouts.PooledMap(0), "at least 1, got 0"),
        (lambda: readouts.PooledMap(True), "integer of at least 1, got True"),
        (lambda: readouts.PooledMap(8, "sum"), "must be one of mean, max, got 'sum'"),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_make_no_readout_are_refused(make: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make()


@pytest.mark.parametrize(
    ("readout", "normalizer", "said"),
    [
        (
            readouts.Entropy(),
            normalizers.Identity(),
            r"the normalizer must have weights that sum to 1 for Entropy, got Identity\(\)",
        ),
        (readouts.LogSumExp(), normalizers.Mean(), r"the normalizer must be Softmax for LogSumExp, got Mean\(\)"),
        (readouts.SampledKey(), normalizers.Hard(), r"the normalizer must be Sample for SampledKey, got Hard\(\)"),
    ],
)
def test_refusals_name_the_readout_and_the_normalizer(readout: Any, normalizer: Any, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        observe(readout, normalizer=normalizer)


def test_dense_weights_that_do_not_fit_the_memory_are_refused() -> None:
    shape = (50_000, 8)
    with pytest.raises(RefusedError, match="numpy_blocks: it would allocate"):
        qkv.explain(shape, shape, shape, readouts=[readouts.Dense()])
    assert qkv.explain(shape, shape, shape, readouts=[readouts.TopWeights(5)]).kernel.name == "numpy_blocks"


# -- maps, received mass, distances, heads ---------------------------------------------------------------

EVEN = np.zeros((6, 1))


def test_cells_of_a_map_hold_means_and_masked_pairs_count_as_0() -> None:
    mean, largest = qkv.observe(
        EVEN[:4],
        EVEN[:4],
        EVEN[:4],
        mask=masks.Causal("start"),
        readouts=[readouts.PooledMap(2), readouts.PooledMap(2, "max")],
    ).readouts
    assert mean == pytest.approx(np.array([[(1 + 1 / 2 + 1 / 2) / 4, 0], [(2 / 3 + 2 / 4) / 4, (1 / 3 + 2 / 4) / 4]]))
    assert largest == pytest.approx(np.array([[1, 0], [1 / 3, 1 / 3]]))


def test_cell_of_an_entry_is_its_share_of_the_cells_rounded_down() -> None:
    from qkv.readouts.cells import cell_lengths, cell_range

    for length in range(1, 30):
        for size in range(1, 35):
            cells = min(size, length)
            of = [i * cells // length for i in range(length)]
            assert cell_lengths(cells, length) == [of.count(c) for c in range(cells)]
            assert set(of) == set(range(cells))
            assert cell_range((length // 3, length), cells, length) == (of[length // 3], cells)


def test_map_of_few_queries_has_a_row_for_each() -> None:
    (pooled,) = qkv.observe(EVEN[:2], EVEN, EVEN, readouts=[readouts.PooledMap(3)]).readouts
    assert pooled == pytest.approx(np.full((2, 3), 1 / 6))


def test_maximum_of_negative_weights_is_negative_unless_a_pair_is_masked() -> None:
    ones = np.ones((4, 1))
    for kernel in ("dense", "numpy_blocks"):
        (all_pairs,) = qkv.observe(
            -ones, ones, ones, normalizer=normalizers.Identity(), readouts=[readouts.PooledMap(2, "max")], kernel=kernel
        ).readouts
        assert all_pairs.tolist() == [[-1, -1], [-1, -1]]
        (half,) = qkv.observe(
            -ones,
            ones,
            ones,
            normalizer=normalizers.Identity(),
            mask=masks.Window(1, 0),
            readouts=[readouts.PooledMap(2, "max")],
            kernel=kernel,
        ).readouts
        assert half.tolist() == [[0, 0], [0, 0]]


def test_received_mass_adds_up_to_the_number_of_queries_with_a_key() -> None:
    allowed = np.ones((6, 6), dtype=bool)
    allowed[2] = False
    (received,) = qkv.observe(
        EVEN, EVEN, EVEN, mask=masks.AllowedPairs(allowed), readouts=[readouts.ColumnSum()]
    ).readouts
    assert received == pytest.approx(np.full(6, 5 / 6))


def test_mean_distance_is_measured_from_where_queries_stand() -> None:
    def distance(**options: Any) -> Any:
        return qkv.observe(EVEN[:1], EVEN[:3], EVEN[:3], readouts=[readouts.MeanDistance()], **options).readouts[0]

    assert distance(positions=qkv.Positions(align="start")) == pytest.approx(1)
    assert distance(positions=qkv.Positions(query_start=1)) == pytest.approx(2 / 3)
    assert distance(positions=qkv.Positions(align="end"), mask=masks.AllowedKeys(np.zeros(3, dtype=bool))) == 0
    with pytest.raises(PositionError, match="positions must be given for 1 queries and 3 keys"):
        distance()


def test_heads_come_in_the_order_named() -> None:
    keys = np.log(np.arange(1.0, 9.0)).reshape(2, 4, 1)
    some, everything = qkv.observe(
        np.ones((2, 1, 1)), keys, keys, readouts=[readouts.Heads(readouts.Dense(), (-1, 0, 1)), readouts.Dense()]
    ).readouts
    assert np.array_equal(some, everything[[1, 0, 1]])


def test_heads_that_are_not_there_are_refused() -> None:
    one = readouts.Heads(readouts.Entropy(), (3,))
    with pytest.raises(ShapeError, match="from -2 to 1 for 2 heads, got 3"):
        qkv.explain((2, 5, 1), (2, 5, 1), (2, 5, 1), readouts=[one])
    with pytest.raises(ShapeError, match="must have a batch axis of heads"):
        qkv.explain((5, 1), (5, 1), (5, 1), readouts=[one])
    with pytest.raises(RefusedError, match="weights that sum to 1 for Entropy"):
        qkv.explain((4, 5, 1), (4, 5, 1), (4, 5, 1), normalizer=normalizers.Identity(), readouts=[one])


def test_heads_of_what_is_no_readout_are_refused() -> None:
    with pytest.raises(KindError, match=r"Heads\(Entropy\(\), \(0, 3\)\)"):
        readouts.Heads((0, 3), readouts.Entropy())  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel", ["dense", "row_blocks", "tiled"])
def test_gradient_of_equal_maxima_goes_to_the_first(kernel: str) -> None:
    torch = pytest.importorskip("torch")
    from qkv.kernels import DenseKernel, RowBlocksKernel, TiledKernel

    chosen = {"dense": DenseKernel(), "row_blocks": RowBlocksKernel(budget=1), "tiled": TiledKernel(row_block_budget=1)}
    logits = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)
    (largest,) = qkv.observe(
        torch.zeros(4, 1, dtype=torch.float64),
        torch.zeros(4, 1, dtype=torch.float64),
        torch.zeros(4, 1, dtype=torch.float64),
        score=qkv.scores.Biased(qkv.scores.Dot(), logits),
        normalizer=normalizers.Identity(),
        readouts=[readouts.PooledMap(2, "max")],
        kernel=chosen[kernel],
    ).readouts
    (gradient,) = torch.autograd.grad(largest.sum(), logits)
    assert gradient.nonzero().tolist() == [[0, 0], [0, 2], [2, 0], [2, 2]]


def test_plan_of_a_map_counts_the_map_and_not_the_pairs() -> None:
    shape = (100_000, 8)
    alone = qkv.explain(shape, shape, shape, kernel="numpy_blocks", normalizer=normalizers.Sparsemax())
    mapped = qkv.explain(
        shape,
        shape,
        shape,
        kernel="numpy_blocks",
        normalizer=normalizers.Sparsemax(),
        readouts=[readouts.PooledMap(512), readouts.ColumnSum()],
    )
    assert mapped.cost.peak - alone.cost.peak == 4 * (2 * 512 * 512 + 2 * 100_000)


def test_heads_keep_only_the_heads_named() -> None:
    def peak(readout: Any) -> float:
        shape = (12, 1000, 8)
        return qkv.explain(shape, shape, shape, kernel="dense", readouts=[readout]).cost.peak

    everything, one = peak(readouts.Dense()), peak(readouts.Heads(readouts.Dense(), (0,)))
    assert everything - one == 4 * 11 * 1000 * 1000


@pytest.mark.parametrize("indices", [(), (1.0,), (0, True), ("0",), (None, 1)])
def test_indices_that_are_no_integers_are_refused_by_readout_argument_and_value(indices: Any) -> None:
    for name, make in (("rows of Rows", readouts.Rows), ("heads of Heads", partial(readouts.Heads, readouts.Dense()))):
        with pytest.raises(
            OptionError, match=rf"^{name} must contain one or more integers, got {re.escape(repr(indices))}"
        ):
            make(indices)


def test_indices_may_be_any_sequence_and_are_kept_as_a_tuple() -> None:
    assert readouts.Rows([2, -1]).rows == (2, -1)  # type: ignore[arg-type]
    assert readouts.Heads(readouts.Dense(), range(3)).heads == (0, 1, 2)  # type: ignore[arg-type]
