"""Contract tests that every normalizer must pass, as a class from which the tests of a normalizer inherit.

class TestSoftmax(NormalizerContract):
    part = Softmax

    def formula(self, normalizer, row, at):
        e = [math.exp(l) for l in row]
        return [x / sum(e) for x in e]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.core.arrays import ignore_numpy_warnings, namespace
from qkv.core.equation import apply_dropout
from qkv.core.tile import Tile
from qkv.core.typing import ArrayLike
from qkv.errors import RefusedError
from qkv.normalizers.base import Normalizer, Summary
from qkv.testing.cases import Draw, WeightRow, element, floats, with_floats
from qkv.testing.gradients import torch_gradients
from qkv.testing.libraries import Setting, assert_close, to_float64
from qkv.testing.parts import DifferentiableContract

_Cuts = list[tuple[int, int]]
"""Ranges of keys, one for each tile."""


def example_logits(draw: Draw, non_negative: bool = False) -> ArrayLike:
    """Return random logits `(*batch, 5, 7)`, with rows for special cases such as masked keys.

    Row 1 is partly masked, row 2 is fully masked, row 3 has a single key, and row 4 has a wide range of values.
    """
    logits = draw(5, 7)
    logits[..., 4, :] *= 6
    logits = np.abs(logits) if non_negative else logits
    logits[..., 1, [0, 3, 4]] = -np.inf
    logits[..., 2, :] = -np.inf
    logits[..., 3, [0, 1, 2, 4, 5, 6]] = -np.inf
    return logits


def accumulate_tiles(
    normalizer: Normalizer,
    logits: ArrayLike,
    value: ArrayLike,
    tile: Tile,
    cuts: _Cuts,
    dropout: float,
    order: Callable[[int], Sequence[int]] | None = None,
) -> tuple[ArrayLike, Summary]:
    """Compute the output and the summary of all rows by accumulating tiles and merging the partial results.

    Args:
        logits: logits of whole rows.
        tile: the tile of the whole rows.
        cuts: range of the keys of each tile.
        dropout: probability of dropping a weight.
        order: function that returns the indices of the two of n partial results to merge next; in order by default.
    """
    prepared = normalizer.prepare(logits)
    partials = [
        normalizer.accumulate(
            prepared[..., c0:c1], value[..., c0:c1, :], tile.restrict(tile.rows, (c0, c1)), dropout, False
        )
        for c0, c1 in cuts
    ]
    while len(partials) > 1:
        i, j = order(len(partials)) if order else (0, 1)
        one, other = partials[i], partials[j]
        partials = [partial for n, partial in enumerate(partials) if n not in (i, j)]
        partials.insert(0, one.merge(other))
    return normalizer.finalize(partials[0], tile, dropout)


def _tiled_and_whole(
    normalizer: Normalizer,
    logits: ArrayLike,
    value: ArrayLike,
    tile: Tile,
    cuts: _Cuts,
    dropout: float,
    order: Callable[[int], Sequence[int]] | None = None,
) -> tuple[ArrayLike, ...]:
    """Return four arrays: the output and the weights computed from tiles, and both computed from whole rows.

    The arguments are as in `accumulate_tiles`.
    """
    xp = namespace(logits)
    output, summary = accumulate_tiles(normalizer, logits, value, tile, cuts, dropout, order)
    prepared, weights = normalizer.prepare(logits), normalizer.weights(logits, tile)
    by_tile = [
        normalizer.tile_weights(prepared[..., c0:c1], summary, tile.restrict(tile.rows, (c0, c1))) for c0, c1 in cuts
    ]
    return output, xp.concat(by_tile, axis=-1), xp.matmul(apply_dropout(weights, tile, dropout), value), weights


class AccumulationContract(DifferentiableContract):
    """Tests that accumulating tiles gives the results of whole rows, which `NormalizerContract` inherits."""

    non_negative_logits: ClassVar[bool] = False
    """Whether the normalizer accepts only non-negative logits."""
    signed: ClassVar[bool] = False
    """Whether weights may be negative."""

    def online(self, draw: Draw) -> Normalizer:
        """Return an example of the normalizer, or skip the test if the normalizer needs whole rows of logits."""
        normalizer: Normalizer = self.make(draw)
        if not normalizer.online:
            pytest.skip(f"{self.part.__name__} needs whole rows")
        return normalizer

    @settings(suppress_health_check=[HealthCheck.differing_executors])
    @given(st.data(), st.booleans(), st.sampled_from([0.0, 0.4]))
    def test_tiles_accumulated_in_any_order_equal_whole_rows(
        self, data: st.DataObject, batched: bool, dropout: float
    ) -> None:
        batch = (2,) if batched else ()
        draw = Draw(data.draw(st.integers(0, 99)), batch=batch)
        normalizer = self.online(draw)
        edges = sorted(data.draw(st.lists(st.integers(0, 7), max_size=4)))
        cuts = list(zip([0, *edges], [*edges, 7], strict=True))

        def order(n: int) -> ArrayLike:
            return data.draw(st.permutations(range(n)))[:2]

        inputs, tile = (example_logits(draw, self.non_negative_logits), draw(7, 2)), Tile.whole(5, 7, batch, seed=5)
        with ignore_numpy_warnings():
            output, by_tile, expected, weights = _tiled_and_whole(normalizer, *inputs, tile, cuts, dropout, order)
        assert_close(output, expected, 1e-12, min_scale=1.0)
        assert_close(by_tile, weights, 1e-12, message="weights by tile:", min_scale=1e-3)

    def test_accumulated_tiles_equal_whole_rows_in_every_library(self, few_setting: Setting) -> None:
        draw, setting = Draw(1, batch=(2,)), few_setting
        normalizer, tile = self.online(draw), Tile.whole(5, 7, (2,), seed=5)
        logits, value = example_logits(draw, self.non_negative_logits), draw(7, 2)
        dropout = 0.0 if setting.library == "jax" else 0.4  # JAX takes seconds to compile the random numbers

        def both(part: Normalizer, logits: ArrayLike, value: ArrayLike) -> tuple[ArrayLike, ...]:
            return _tiled_and_whole(part, logits, value, tile, [(0, 3), (3, 7)], dropout)

        with ignore_numpy_warnings():
            output, by_tile, expected, weights = setting.evaluate(normalizer, both, logits, value)
        assert_close(output, to_float64(expected), 2 * setting.tolerance, message=str(setting))
        assert_close(by_tile, to_float64(weights), 2 * setting.tolerance, message=f"{setting} weights:")

    def test_output_without_keys_is_zero(self) -> None:
        normalizer, tile = self.online(Draw(1)), Tile.whole(3, 0, seed=5)
        with ignore_numpy_warnings():
            output, _ = accumulate_tiles(normalizer, np.zeros((3, 0)), np.zeros((0, 2)), tile, [(0, 0)], 0.0)
        assert output.tolist() == [[0.0, 0.0]] * 3

    def test_value_of_an_excluded_key_is_never_read(self) -> None:
        normalizer, draw, tile = self.online(Draw(1)), Draw(2), Tile.whole(5, 7, seed=5)
        logits, value = example_logits(draw, self.non_negative_logits), draw(7, 2)
        logits[:, 5] = -np.inf
        damaged = value.copy()
        damaged[5] = [np.nan, np.inf]
        with ignore_numpy_warnings():
            expected, got = (
                accumulate_tiles(normalizer, logits, v, tile, [(0, 4), (4, 7)], 0.0)[0] for v in (value, damaged)
            )
        assert_close(got, expected, 1e-15)

    def test_gradients_from_the_summary_are_those_of_the_weights(self) -> None:
        """Check gradients that `logit_gradient` and `array_gradients` compute from the summary against autograd."""
        torch = pytest.importorskip("torch")
        draw = Draw(1, batch=(2,))
        normalizer, tile, cuts = self.online(draw), Tile.whole(5, 7, (2,), seed=5), [(0, 3), (3, 7)]
        inputs = [example_logits(draw, self.non_negative_logits), *floats(normalizer)]
        template, factors = Setting("torch", "float64").part(normalizer), torch.tensor(draw(5, 7))

        def weighted_sum(logits: ArrayLike, *arrays: ArrayLike) -> ArrayLike:
            return (with_floats(template, arrays).weights(logits, tile) * factors).sum()

        _, expected = torch_gradients(weighted_sum, inputs)
        leaves = [torch.tensor(x, requires_grad=True) for x in inputs]
        part = with_floats(template, leaves[1:])
        prepared = part.prepare(leaves[0])
        with torch.no_grad():
            _, summary = accumulate_tiles(part, leaves[0], torch.tensor(draw(7, 2)), tile, cuts, 0.0)
            weights = part.weights(leaves[0], tile)
            row_dot = (weights * factors).sum(dim=-1, keepdim=True)
            tiles = []
            for c0, c1 in cuts:
                piece = tile.restrict(tile.rows, (c0, c1))
                logits, own = prepared[..., c0:c1], weights[..., c0:c1]
                tiles.append(part.logit_gradient(logits, own, factors[..., c0:c1], row_dot, summary, piece))
        got = torch.autograd.grad(prepared, leaves, torch.cat(tiles, -1), allow_unused=True, materialize_grads=True)
        rest: Sequence[ArrayLike] = part.array_gradients(summary, row_dot)
        assert len(rest) == len(part.arrays())
        for n, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
            more = rest[n - 1] if n else None
            if isinstance(more, torch.Tensor):
                mine = mine + more.sum_to_size((*mine.shape, 1, 1))[..., 0, 0]
            assert_close(mine, theirs, 1e-12, message=f"gradient {n}:", min_scale=1.0)

    def test_normalizer_that_needs_whole_rows_refuses_tiles(self) -> None:
        normalizer = self.make(Draw(1))
        if not normalizer.online and not hasattr(normalizer, "normalizer"):
            with pytest.raises(RefusedError, match=f"{type(normalizer).__name__} must be given whole rows"):
                normalizer.accumulate(np.zeros((1, 1)), np.zeros((1, 1)), Tile.whole(1, 1), 0.0, True)


_SEED = 11


class NormalizerContract(AccumulationContract):
    """Contract tests of normalizers. Subclasses must define `part`, `make` and `formula`."""

    reads_logits: ClassVar[bool] = True
    """Whether the weights depend on the values of finite logits."""

    def formula(self, normalizer: Normalizer, row: ArrayLike, at: WeightRow) -> list[float]:
        """Return the weights of a row of logits at its unmasked keys, computed without the code under test."""
        raise NotImplementedError(
            f"{type(self).__name__} must define the method formula, which returns the weights of a row."
        )

    # -- values ---------------------------------------------------------------------------------------------

    def test_agrees_with_its_formula(self, setting: Setting) -> None:
        for shape, batch in setting.few(((2, 3), (1, 3)), ((2,), (2,)), ((), ())):
            draw = Draw(3, batch=batch)
            normalizer = self.make(draw)
            logits = example_logits(Draw(4, batch=shape), self.non_negative_logits)
            with setting.active():
                rounded, exact = setting.rounded(logits), normalizer.map_arrays(setting.rounded)
                got = setting.evaluate(normalizer, self.evaluate, logits)
            assert setting.dtype in str(got.dtype)
            expected = np.zeros(logits.shape)
            for flat, index in enumerate(np.ndindex(*shape)):
                for row in range(5):
                    keys = [col for col in range(7) if rounded[(*index, row, col)] != -np.inf]
                    if keys:
                        at = WeightRow(flat, row, keys, _SEED)
                        own = element(exact, batch, index)
                        expected[(*index, row, keys)] = self.formula(own, rounded[(*index, row, keys)], at)
            assert_close(got, expected, setting.tolerance, message=f"{setting}, {shape}:")

    def test_no_key_at_all_is_no_error(self) -> None:
        normalizer = self.make(Draw(1))
        with ignore_numpy_warnings():
            assert normalizer.weights(np.zeros((2, 0)), Tile.whole(2, 0, seed=1)).shape == (2, 0)
            assert normalizer.weights(np.zeros((0, 3)), Tile.whole(0, 3, seed=1)).shape == (0, 3)

    # -- properties -----------------------------------------------------------------------------------------

    @settings(suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(st.lists(st.integers(-9, 9) | st.just(None), min_size=4, max_size=4), min_size=1, max_size=3))
    def test_weights_are_what_its_facts_say(self, rows: list[list[int | None]]) -> None:
        """Check what the normalizer declares, such as weights that sum to 1, on rows with ties and masked keys."""
        normalizer = self.make(Draw(1))
        logits = np.array([[-np.inf if x is None else float(x) for x in row] for row in rows])
        logits = np.where(logits == -np.inf, logits, np.abs(logits)) if self.non_negative_logits else logits
        weights = self.evaluate(normalizer, logits)
        assert (weights[logits == -np.inf] == 0).all()
        if not self.signed:
            assert (weights >= 0).all()
        for row, own in zip(logits, weights, strict=True):
            empty = not (row > 0 if self.non_negative_logits else row > -np.inf).any()
            if empty:
                assert (own == 0).all()
            elif normalizer.sums_to_one:
                assert abs(own.sum() - 1) < 1e-12
        if normalizer.shift_invariant:
            assert_close(self.evaluate(normalizer, logits + 3), weights, 1e-12)

    def test_row_that_excludes_every_key_has_weights_and_gradients_zero(self) -> None:
        logits = np.full((2, 5), -np.inf)
        logits[0] = np.abs(Draw(2).rng.normal(size=5))
        normalizer = self.make(Draw(1))
        assert (self.evaluate(normalizer, logits)[1] == 0).all()
        _, gradients = torch_gradients(self._scalar(normalizer), [logits, *floats(normalizer)])
        assert (gradients[0][1] == 0).all()
        assert all(np.isfinite(gradient).all() for gradient in gradients)
        _, of_nothing = torch_gradients(self._scalar(normalizer), [logits[1:], *floats(normalizer)])
        assert all((gradient == 0).all() for gradient in of_nothing)

    def test_a_nan_that_is_read_shows_in_its_row_and_in_no_other(self) -> None:
        if self.reads_logits:
            (logits,) = self.inputs()
            logits[0, 2] = np.nan
            with_nan = np.isnan(self.evaluate(self.make(Draw(1)), logits)).any(axis=-1)
            assert with_nan.tolist() == [True, False, False, False, False]

    def test_logits_beyond_the_range_of_the_exponential_do_not_overflow(self) -> None:
        weights = self.evaluate(self.make(Draw(1)), np.array([[5e4, 3e4, 1e4], [3e4, 1e4, 5e4]]))
        assert np.isfinite(weights).all()

    def test_no_key_below_the_threshold_bound_has_weight_or_changes_the_weights(self) -> None:
        """Check that keys below the threshold bound, computed from maxima of groups of keys, have no weight."""
        normalizer, tile = self.make(Draw(1)), Tile.whole(6, 48, seed=_SEED)
        logits = np.abs(Draw(5).rng.normal(size=(6, 48)) * 3)
        logits[1, ::3], logits[2, 5:], logits[3, :8] = -np.inf, -np.inf, 2.0
        ranks = normalizer.selection_logits(logits, tile)
        for groups in (48, 16, 4, 1):
            bound = normalizer.threshold_bound(ranks.reshape(6, groups, 48 // groups).max(axis=-1))
            if bound is None:
                return
            assert normalizer.has_threshold_bound
            candidates = ranks >= bound
            expected = normalizer.weights(logits, tile)
            assert not expected[~candidates].any()
            remaining = [np.where(candidates, x, -np.inf) for x in (logits, ranks)]
            assert_close(normalizer.candidate_weights(*remaining, tile), expected, 1e-12)

    # -- inputs and evaluation, which `DifferentiableContract` needs ----------------------------------------

    def inputs(self, batch: tuple[int, ...] = ()) -> tuple[ArrayLike, ...]:
        return (example_logits(Draw(2, batch=batch), self.non_negative_logits),)

    def evaluate(self, part: Normalizer, *inputs: ArrayLike) -> ArrayLike:
        (logits,) = inputs
        *batch, q, k = logits.shape
        with ignore_numpy_warnings():
            return part.weights(logits, Tile.whole(q, k, tuple(batch), seed=_SEED))
