"""Partial results merge in any order and grouping, and every specialised loop agrees with the shared definition."""

import itertools
import math
import re
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.core import partial as partial_results
from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.guard import apply_weights
from qkv.core.ordering import RunningTopK
from qkv.core.partial import ExponentialSums, PartialResult, TopKeys, WeightedSums, merge_means, rescale_factor
from qkv.core.tile import Tile
from qkv.kernels.tiled.readouts import ElementMap
from qkv.readouts.base import Reduction
from qkv.readouts.cells import cell_lengths


def merge_all(partials):
    """Merge as a balanced tree."""
    queue = list(partials)
    while len(queue) > 1:
        pairs = zip(queue[::2], queue[1::2], strict=False)
        queue = [a.merge(b) for a, b in pairs] + ([queue[-1]] if len(queue) % 2 else [])
    return queue[0]


CELL = st.sampled_from([-np.inf, -800.0, -1.0, 0.0, 0.5, 800.0])
ROWS = st.lists(CELL, min_size=3, max_size=3)


def exponential_sums(logit, value):
    x = np.array([[logit]])
    total = np.zeros((1, 1)) if logit == -np.inf else np.ones((1, 1))
    return ExponentialSums(x, total, total * value)


def top_keys(logit, index, size=2):
    x = np.array([[logit]])
    return TopKeys(x, np.array([[-1 if logit == -np.inf else index]]), x, np.array([[[float(index)]]]), size)


def same(one, other):
    fields = [name for name in vars(one) if name != "size"]
    return all(np.allclose(getattr(one, f), getattr(other, f), rtol=1e-13, equal_nan=True) for f in fields)


@given(ROWS)
def test_sums_of_exponentials_merge_in_any_order_and_grouping(logits):
    a, b, c = (exponential_sums(logit, value) for value, logit in enumerate(logits, 1))
    with ignore_numpy_warnings():
        assert same(a.merge(b), b.merge(a))
        assert same(a.merge(b).merge(c), a.merge(b.merge(c)))


@given(ROWS)
def test_top_keys_merge_in_any_order_and_grouping(logits):
    a, b, c = (top_keys(logit, index) for index, logit in enumerate(logits))
    left, right = a.merge(b).merge(c), c.merge(b.merge(a))
    filled = left.index >= 0
    assert (left.index == right.index).all()
    assert (left.value[filled] == right.value[filled]).all()


def test_ties_of_top_keys_go_to_the_lower_index_in_any_order_of_merging():
    parts = [top_keys(1.0, index) for index in (4, 2, 3)]
    assert merge_all(parts).index.tolist() == merge_all(parts[::-1]).index.tolist() == [[2, 3]]


def test_nan_ranks_first_among_top_keys():
    merged = merge_all([top_keys(5.0, 0), top_keys(np.nan, 1), top_keys(7.0, 2)])
    assert merged.index.tolist() == [[1, 2]]


def test_infinite_value_survives_later_keys_that_outweigh_it():
    early = ExponentialSums(np.array([[0.0]]), np.ones((1, 1)), np.array([[np.inf]]))
    late = ExponentialSums(np.array([[2000.0]]), np.ones((1, 1)), np.array([[1.0]]))
    with ignore_numpy_warnings():
        assert early.merge(late).weighted.tolist() == [[np.inf]]


def test_rows_without_keys_merge_to_a_row_without_keys():
    empty = exponential_sums(-np.inf, 1.0)
    with ignore_numpy_warnings():
        merged = empty.merge(empty)
    assert (merged.maximum, merged.total, merged.weighted) == (-np.inf, 0, 0)


def test_tree_of_many_weighted_sums_is_their_sum():
    parts = [WeightedSums(np.array([[1.0]]), np.array([[float(n)]])) for n in range(11)]
    merged = merge_all(parts)
    assert (merged.total.item(), merged.weighted.item()) == (11, 55)


@pytest.mark.thinned
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("masses", [(1.0, 3.0), (0.0, 2.0), (2.0, 0.0), (0.0, 0.0), (-1.0, 2.0), (1.0, 1e30)])
def test_means_and_squared_deviations_merge_to_those_of_all_rows(masses, library):
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((4, 3)) + 100, rng.standard_normal((5, 3))]
    weights = [np.full(len(each), mass / len(each)) for mass, each in zip(masses, rows, strict=True)]
    own = [each.mean(axis=0) for each in rows]
    arguments = []
    for mass, mean in zip(masses, own, strict=True):
        arguments += array_of(library, np.array([mass]), mean)
    mean, difference, weight = (np.asarray(x, np.float64) for x in merge_means(*arguments))
    every, both = np.concatenate(rows), np.where(np.concatenate(weights) > 0, np.concatenate(weights), 0)
    if min(masses) < 0 or not both.sum():
        assert (difference, weight) == (0, 0) if not difference.shape else not difference.any()
        return
    expected = both @ every / both.sum()
    squares = sum(w.clip(0) @ np.square(x - m) for w, x, m in zip(weights, rows, own, strict=True))
    np.testing.assert_allclose(mean, expected, rtol=1e-12 if library != "jax" else 1e-5)
    merged = squares + weight * np.square(difference)
    np.testing.assert_allclose(merged, both @ np.square(every - expected), rtol=1e-9 if library != "jax" else 1e-3)


def test_partial_result_without_a_merge_raises():
    with pytest.raises(TypeError, match=r"PartialResult must define merge"):
        PartialResult().merge(PartialResult())


# -- Specialised loops -------------------------------------------------------------------------------------

Q, K = 6, 40
OFFSETS = pytest.mark.parametrize("offset", [0.0, 900.0, -900.0])
SPREADS = pytest.mark.parametrize("spread", [1.0, 200.0])


def problem(spread=1.0, offset=0.0, infinite=False, seed=0):
    """Logits `(Q, K)`, values, and which pairs are allowed; the last row has no key."""
    rng = np.random.default_rng(seed)
    logits = spread * rng.standard_normal((Q, K)) + offset
    value = rng.standard_normal((K, 3))
    allowed = rng.random((Q, K)) > 0.3
    allowed[:, 10:20] &= rng.random((Q, 1)) > 0.5
    allowed[-1] = False
    if infinite:
        value[7, 1] = np.inf
        allowed[:3, 7] = False
    return logits, value, allowed


def shared(logits, value, allowed, seed=0):
    """Partial results of random splits of the keys, merged in random order by the shared definition."""
    rng = np.random.default_rng(seed)
    cuts = [0, *np.sort(rng.choice(np.arange(1, K), 5, replace=False)), K]
    logits = np.where(allowed, logits, -np.inf)
    parts = []
    with ignore_numpy_warnings():
        for start, stop in itertools.pairwise(cuts):
            tile, values = logits[:, start:stop], value[start:stop]
            parts.append(
                ExponentialSums.accumulate(
                    tile, lambda e, tile=tile, values=values: apply_weights(e, values, lambda: tile > -np.inf, False)
                )
            )
        rng.shuffle(parts)
        return merge_all(parts)


def check(output, wanted, tolerance=1e-9):
    with ignore_numpy_warnings():
        np.testing.assert_allclose(np.asarray(output), wanted.finalize()[0], rtol=tolerance, atol=tolerance)


def array_of(library, *arrays):
    if library == "torch":
        torch = pytest.importorskip("torch")
        return [torch.from_numpy(x.copy()) for x in arrays]
    if library == "jax":
        jnp = pytest.importorskip("jax").numpy
        return [jnp.asarray(x.astype("float32") if x.dtype == float else x) for x in arrays]
    return list(arrays)


LOOPS = {
    "tiled": ("torch", lambda: qkv.kernels.TiledKernel(budget=64)),
    "numpy_blocks": ("numpy", lambda: qkv.kernels.NumpyBlocksKernel(budget=64)),
    "jax_loops": ("jax", lambda: qkv.kernels.JaxLoopsKernel(budget=64)),
}


@pytest.mark.thinned
@OFFSETS
@SPREADS
@pytest.mark.parametrize("infinite", [False, True], ids=["finite", "infinite value"])
@pytest.mark.parametrize("loop", LOOPS)
def test_kernel_agrees_with_the_shared_definition(loop, infinite, spread, offset):
    library, kernel = LOOPS[loop]
    logits, value, allowed = problem(spread, offset, infinite)
    wanted = shared(logits, value, allowed)
    query, key, values, pairs = array_of(library, logits, np.eye(K), value, allowed)
    output = qkv.attend(query, key, values, score=scores.Dot(), mask=masks.AllowedPairs(pairs), kernel=kernel())
    check(output, wanted, 1e-9 if library != "jax" else 2e-3 if offset else 1e-4)


@OFFSETS
@SPREADS
def test_tiled_log_sum_exp_is_that_of_the_shared_definition(spread, offset):
    logits, value, allowed = problem(spread, offset)
    with ignore_numpy_warnings():
        wanted = shared(logits, value, allowed)
        log_sum_exp = (wanted.maximum + np.log(wanted.total))[:, 0]
    query, key, values, pairs = array_of("torch", logits, np.eye(K), value, allowed)
    options = {"score": scores.Dot(), "mask": masks.AllowedPairs(pairs), "kernel": LOOPS["tiled"][1]()}
    found = qkv.observe(query, key, values, readouts=[readouts.LogSumExp()], **options).readouts[0]
    np.testing.assert_allclose(np.asarray(found), log_sum_exp, rtol=1e-12)


@OFFSETS
@SPREADS
@pytest.mark.parametrize("cells", [8, 7], ids=["equal cells", "unequal cells"])
def test_tiled_pooled_map_has_the_sums_of_the_shared_definition(cells, spread, offset):
    logits, _, allowed = problem(spread, offset)
    counts = np.asarray(cell_lengths(cells, K))
    in_cell = np.repeat(np.eye(cells), counts, axis=0)
    with ignore_numpy_warnings():
        wanted = shared(logits, in_cell, allowed).finalize()[0] / counts
    query, key, pairs = array_of("torch", logits, np.eye(K), allowed)
    options = {"score": scores.Dot(), "mask": masks.AllowedPairs(pairs), "kernel": LOOPS["tiled"][1]()}
    with mock.patch.object(ElementMap, "finalize", autospec=True, side_effect=ElementMap.finalize) as finalize:
        found = qkv.observe(query, key, key, readouts=[readouts.PooledMap(cells)], **options).readouts[0]
    assert finalize.called
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-9, atol=1e-12)


@OFFSETS
@SPREADS
@pytest.mark.parametrize("base", ["NATURAL", "BINARY"])
def test_numpy_accumulator_has_the_sums_of_the_shared_definition(base, spread, offset):
    from qkv.kernels.numpy_blocks import logits as exponential
    from qkv.kernels.numpy_blocks.one_pass import ExponentialAccumulator

    logits, value, allowed = problem(spread, offset)
    allowed[-1, 3] = True  # rows without keys go another way
    exp = getattr(exponential, base)
    sums, ones = ExponentialAccumulator((), Q, 3, np.dtype(float), exp), np.ones((K, 1))
    masked = np.where(allowed, logits, -np.inf)
    with ignore_numpy_warnings():
        for start in range(0, K, 7):
            tile = masked[:, start : start + 7] * exp.factor
            sums.update(lambda shift, tile=tile: tile - (0 if shift is None else shift), value[start : start + 7], ones)
        found, wanted = sums.result(), shared(logits, value, allowed)
        check(found.finalize()[0], wanted)
        factor = rescale_factor(found.maximum, wanted.maximum)
        np.testing.assert_allclose(found.total * factor, wanted.total, rtol=1e-9)


@pytest.mark.thinned
@OFFSETS
@SPREADS
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_log_sum_exps_of_tiles_combine_as_in_the_shared_definition(library, spread, offset):
    logits, value, allowed = problem(spread, offset)
    with ignore_numpy_warnings():
        wanted = shared(logits, value, allowed)
        log_sum_exp = (wanted.maximum + np.log(wanted.total))[:, 0]
    rule = Reduction((Q,), (slice(None),), "logaddexp", -math.inf)
    (masked,) = array_of(library, np.where(allowed, logits, -np.inf))
    found = rule.allocate(masked[:, 0])
    for start in range(0, K, 7):
        with ignore_numpy_warnings():
            found = rule.combine(found, normalizers.Softmax().log_total(masked[:, start : start + 7])[:, 0])
    np.testing.assert_allclose(np.asarray(found), log_sum_exp, rtol=1e-12 if library != "jax" else 1e-5)


@pytest.mark.parametrize("start", [3, 17, K - Q])
def test_fused_outputs_of_two_ranges_of_keys_merge_as_in_the_shared_definition(start):
    pytest.importorskip("torch")
    logits, value, _ = problem()
    allowed = np.arange(K) <= start + np.arange(Q)[:, None]
    query, key, values = array_of("torch", logits, np.eye(K), value)
    options = {"score": scores.Dot(), "mask": masks.Causal(), "positions": qkv.Positions(query_start=start)}
    check(qkv.attend(query, key, values, kernel="fused", **options), shared(logits, value, allowed))


@OFFSETS
@SPREADS
def test_streamed_sums_of_a_table_are_those_of_the_shared_definition(spread, offset):
    pa = pytest.importorskip("pyarrow")
    from qkv.database.execute.aggregates import value_sums
    from qkv.database.execute.partial_sums import Accumulator
    from qkv.encoders.columns import Column

    logits, value, allowed = problem(spread, offset)
    column = Column.from_table(pa.table({"v": pa.array(list(value), pa.list_(pa.float64(), 3))}), "v")
    with ignore_numpy_warnings():
        wanted = shared(logits, value, allowed)
        masked = np.where(allowed, logits, -np.inf)
        parts = []
        for first, last in ((0, 22), (22, K)):  # tiles are added to two partial results, which merge
            accumulator = Accumulator(normalizers.Softmax(), value_sums(column, Q), Q, 1)
            for start in range(first, last, 9):
                stop = min(start + 9, last)
                accumulator.accumulate(masked[:, start:stop].copy(), start, value[start:stop])
            parts.append(accumulator.sums)
        sums = merge_all(parts)
        output = sums.values.weighted / np.where(sums.total > 0, sums.total, 1)[:, None]
    check(output, wanted)
    weights = np.exp(np.where(allowed, logits, -np.inf) - np.where(wanted.total > 0, wanted.maximum, 0))
    weights /= np.where(wanted.total > 0, wanted.total, 1)
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(axis=1)
    effective = np.asarray(sums.finalize(normalizers.Softmax(), column)[2])[:-1]
    np.testing.assert_allclose(effective, np.exp(entropy)[:-1], rtol=1e-9)
    assert math.isclose(float(sums.total[-1]), 0.0)


@pytest.mark.parametrize("offset", [1e30, -1e30, 1e300])
def test_sums_of_a_table_whose_maxima_are_far_apart_are_those_of_the_larger_one(offset):
    pa = pytest.importorskip("pyarrow")
    from qkv.database.execute.aggregates import value_sums
    from qkv.database.execute.partial_sums import Accumulator
    from qkv.encoders.columns import Column

    logits, values = np.array([[0.0, -1.0], [-1.0, 0.0]]), np.array([1.0, 2.0])
    column, labels = (
        Column.from_table(pa.table({"v": values}), "v"),
        Column.from_table(pa.table({"v": ["a", "b"]}), "v"),
    )
    for like, cells in ((column, values), (labels, np.arange(2))):
        parts = []
        for number, shift in enumerate((0.0, offset)):
            accumulator = Accumulator(normalizers.Softmax(), value_sums(like, 2), 2, 1)
            for name in like.original.tolist() if like.original is not None else ():
                accumulator.sums.values.labels[name] = len(accumulator.sums.values.labels)
            accumulator.accumulate(logits + shift, 2 * number, cells)
            parts.append(accumulator.sums)
        larger = parts[int(offset > 0)].finalize(normalizers.Softmax(), like)
        for order in (parts, parts[::-1]):
            found = order[0].merge(order[1]).finalize(normalizers.Softmax(), like)
            assert [one.value for one in found[1]] == [one.value for one in larger[1]]
            assert [one.spread for one in found[1]] == [one.spread for one in larger[1]]
            np.testing.assert_array_equal(np.array(found[2:]), np.array(larger[2:]))


@OFFSETS
@pytest.mark.parametrize("loop", ["rows of a table", "readout"])
def test_largest_keys_of_tiles_are_those_of_the_shared_definition(loop, offset):
    logits, _, allowed = problem(1.0, offset)
    logits[:, 5] = logits[:, 30]  # a tie, which goes to the lower index
    masked, size, tiles = np.where(allowed, logits, -np.inf), 4, list(range(0, K, 7))
    parts = []
    for start in tiles:
        tile = masked[:, start : start + 7]
        index = np.where(np.isfinite(tile), np.arange(start, start + tile.shape[1]), -1)
        parts.append(TopKeys(tile, index, tile, np.zeros((*tile.shape, 1)), size).top())
    wanted = merge_all(parts).index
    if loop == "readout":
        weights = np.where(allowed, np.exp(logits - logits.max(axis=1, keepdims=True)), 0.0)
        readout, merged = readouts.TopWeights(size), None
        for start in tiles:
            tile = Tile.whole(Q, K).restrict((0, Q), (start, min(start + 7, K)))
            part = readout.read(
                masked[:, start : start + 7], weights[:, start : start + 7], normalizers.Softmax(), tile
            )
            merged = part if merged is None else readout.merge(tuple(merged), tuple(part), tile)
        found = np.asarray(merged[1])
    else:
        top = RunningTopK((Q,), size)
        for start in tiles:
            top.update(masked[:, start : start + 7], start)
        found = top.index
    np.testing.assert_array_equal(found, wanted)


def test_every_specialised_loop_of_the_table_exists():
    folder = Path(partial_results.__file__).parents[1]
    listed = re.findall(r"^    (\S+\.py) ", partial_results.__doc__, re.MULTILINE)
    assert len(listed) == 8
    assert all((folder / name).is_file() for name in listed)
