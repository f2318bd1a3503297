"""Contract tests that every normalizer must pass, as a class from which the tests of a normalizer inherit.

class TestSoftmax(NormalizerContract):
    part = Softmax

    def make(self, draw):
        return Softmax()

    def formula(self, normalizer, row, at):
        e = [math.exp(l) for l in row]
        return [x / sum(e) for x in e]
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.tile import Tile
from qkv.core.typing import ArrayLike
from qkv.normalizers import Normalizer
from qkv.testing.accumulation import AccumulationContract, example_logits
from qkv.testing.examples import Draw, WeightRow, element, floats
from qkv.testing.gradients import torch_gradients
from qkv.testing.libraries import Setting, assert_close

__all__ = ["NormalizerContract"]

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
            wanted = np.zeros(logits.shape)
            for flat, index in enumerate(np.ndindex(*shape)):
                for row in range(5):
                    keys = [col for col in range(7) if rounded[(*index, row, col)] != -np.inf]
                    if keys:
                        at = WeightRow(flat, row, keys, _SEED)
                        own = element(exact, batch, index)
                        wanted[(*index, row, keys)] = self.formula(own, rounded[(*index, row, keys)], at)
            assert_close(got, wanted, setting.tolerance, message=f"{setting}, {shape}:")

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
            kept = [np.where(candidates, x, -np.inf) for x in (logits, ranks)]
            assert_close(normalizer.candidate_weights(*kept, tile), expected, 1e-12)

    # -- inputs and evaluation, which `DifferentiableContract` needs ----------------------------------------

    def inputs(self, batch: tuple[int, ...] = ()) -> tuple[ArrayLike, ...]:
        """Return a tuple with example logits `(*batch, 5, 7)`."""
        return (example_logits(Draw(2, batch=batch), self.non_negative_logits),)

    def evaluate(self, part: Normalizer, *inputs: ArrayLike) -> ArrayLike:
        """Return the weights that a normalizer computes from the logits in `inputs`."""
        (logits,) = inputs
        *batch, q, k = logits.shape
        with ignore_numpy_warnings():
            return part.weights(logits, Tile.whole(q, k, tuple(batch), seed=_SEED))
