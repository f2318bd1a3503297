"""Contract tests that every score must pass, as a class from which the tests of a score inherit.

    class TestDot(ScoreContract):
        part = Dot

        def formula(self, score, q, k, at):
            return sum(a * b for a, b in zip(q, k))

The inherited tests check agreement with the formula in every array library, gradients, tiles, lifts and masks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.core.arrays import sigmoid
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.core.typing import ArrayLike
from qkv.errors import ShapeError
from qkv.masks import AllowedPairs
from qkv.normalizers import NORMALIZERS
from qkv.scores import Score, forms
from qkv.testing.cases import Call, Draw, PairIndex, element, floats
from qkv.testing.execution import oracle_of, run
from qkv.testing.gradients import torch_gradients
from qkv.testing.kernel_harness import assert_agrees
from qkv.testing.libraries import Setting, assert_close
from qkv.testing.parts import DifferentiableContract

END = Positions(align="end")
FLOAT64 = Setting("torch", "float64")


class ScoreContract(DifferentiableContract):
    """Contract tests of scores. Subclasses must define `part`, `make` and `formula`."""

    widths: ClassVar[tuple[int, int]] = (3, 3)
    """Widths of the example queries and keys."""
    compares_widths: ClassVar[bool] = True
    """Whether the score must raise an error for widths that do not match."""

    def formula(self, score: Score, q: ArrayLike, k: ArrayLike, at: PairIndex) -> float:
        """Return the logit of a query vector and a key vector, computed without the code under test."""
        raise NotImplementedError(
            f"{type(self).__name__} must define the method formula, which returns the logit of a pair."
        )

    def edge(self, score: Score, q: ArrayLike, k: ArrayLike, at: PairIndex) -> bool:
        """Return whether a pair is so close to a discontinuity or pole of the score that no test should compare it."""
        return False

    def inputs(self, batch: tuple[int, ...] = ()) -> tuple[ArrayLike, ...]:
        return self._sides(batch)[0], self._sides()[1]

    def special_inputs(self) -> tuple[ArrayLike, ...]:
        """Return example queries and keys that include an equal pair and zero vectors."""
        sides = self._sides()
        for side in sides:
            side[-2], side[-1] = 1.0, 0.0
        return sides

    def evaluate(self, part: Score, *inputs: ArrayLike) -> ArrayLike:
        query, key = inputs
        return part(query, key, END)

    def rows(self, draw: Draw, length: int, width: int) -> ArrayLike:
        """Return random queries or keys `(*batch, length, width)`."""
        return draw(length, width)

    # -- values ---------------------------------------------------------------------------------------------

    def test_agrees_with_its_formula(self, setting: Setting) -> None:
        for query_batch, key_batch, batch in setting.few(((2, 3), (2, 1), (1, 3)), ((2,), (), ()), ((), (), ())):
            draw = Draw(5, 4, 6, batch)
            score = self.make(draw)
            query = self.rows(Draw(6, batch=query_batch), 4, self.widths[0])
            key = self.rows(Draw(7, batch=key_batch), 6, self.widths[1])
            with setting.active():
                expected, compared = self._expected(setting, score, batch, query, key)
                got = setting.evaluate(score, self.evaluate, query, key)
            assert setting.dtype in str(got.dtype) or self.libraries == ("numpy",)
            assert_close(got, expected, setting.tolerance, where=compared, message=f"{setting}, {batch}:")

    def _expected(
        self, setting: Setting, score: Score, batch: tuple[int, ...], query: ArrayLike, key: ArrayLike
    ) -> tuple[ArrayLike, ArrayLike]:
        score = score.map_arrays(setting.rounded)
        core = 1 if self.libraries == ("numpy",) and query.dtype.kind in "OV" else 2
        if core == 2:
            query, key = setting.rounded(query), setting.rounded(key)
        shared = np.broadcast_shapes(query.shape[:-core], key.shape[:-core])
        query, key = (np.broadcast_to(side, (*shared, *side.shape[side.ndim - core :])) for side in (query, key))
        q, k = query.shape[len(shared)], key.shape[len(shared)]
        expected, compared = np.empty((*shared, q, k)), np.empty((*shared, q, k), dtype=bool)
        for index in np.ndindex(*shared, q, k):
            lead, (row, col) = index[:-2], index[-2:]
            pair = (
                element(score, batch, lead),
                query[(*lead, row)],
                key[(*lead, col)],
                PairIndex(row, col, row + k - q, col),
            )
            expected[index], compared[index] = self.formula(*pair), not self.edge(*pair)
        return expected, compared

    def test_lengths_of_zero_and_one_work(self) -> None:
        for q, k in ((0, 3), (3, 0), (1, 1), (0, 0)):
            assert self.make(Draw(1, q, k))(*self._sides(q=q, k=k), END).shape == (q, k)

    def test_widths_that_cannot_be_compared_are_refused_by_naming_both(self) -> None:
        score, (left, right) = self.make(Draw(1)), self.widths
        if self.compares_widths:
            with pytest.raises(ShapeError, match=rf"\b{left + 8}\b.*\b({left}|{right})\b.*(Give|Project|must be)"):
                score(np.zeros((2, left + 8)), np.zeros((2, right)), END)

    def test_states_what_a_logit_costs(self) -> None:
        score = self.make(Draw(1))
        assert score.elements_per_logit(*self.widths) >= 1
        assert score.flop_per_logit(*self.widths) >= 1
        assert score.default_normalizer in NORMALIZERS

    # -- tiles ----------------------------------------------------------------------------------------------

    @settings(suppress_health_check=[HealthCheck.differing_executors])
    @given(st.tuples(*[st.integers(0, 5)] * 2), st.tuples(*[st.integers(0, 7)] * 2), st.booleans())
    def test_tile_of_the_slice_is_the_slice_of_the_whole(self, r: tuple[int, ...], c: tuple[int, ...], b: bool) -> None:
        rows, cols = (min(r), max(r)), (min(c), max(c))
        batch = (2,) if b else ()
        score = self.make(Draw(1, 5, 7, batch))
        query, key = self._sides(batch, 5, 7)
        tile = Tile.whole(5, 7, batch, END)
        logits = score.logits(query, key, tile)
        where = (slice(*rows), slice(*cols))
        axis = len(batch)
        sides = (query[(slice(None),) * axis + where[:1]], key[(slice(None),) * axis + where[1:]])
        piece = score.slice(*where).logits(*sides, tile.restrict(rows, cols))
        assert_close(piece, logits[(..., *where)], 1e-12)

    def test_lift_gives_the_logit_as_far_as_it_says(self) -> None:
        for batch in ((), (2,)):
            score = self.make(Draw(1, batch=batch))
            query, key = self._sides(batch)
            if score.form.lift is None:
                continue
            tile = Tile.whole(query.shape[-2], key.shape[-2], batch, END)
            left, right = score.lift(query, key, tile)
            rest = score(query, key, END) - left @ _transposed(right)
            if score.form.lift == "up_to_query_constant":
                rest = rest - rest[..., :1]
            assert np.abs(rest).max() <= 1e-12 * np.abs(score(query, key, END)).max()

    def test_logits_are_those_that_the_form_states(self) -> None:
        for batch in ((), (2,)):
            score = self.make(Draw(1, batch=batch))
            query, key = self._sides(batch)
            if isinstance(score.form, forms.Pairwise):
                continue
            tile = Tile.whole(query.shape[-2], key.shape[-2], batch, END)
            left, right = score.project(query, key, tile)
            expected = None
            match score.form:
                case forms.SquaredDistance(float() as factor):
                    expected = -factor * np.square(query[..., :, None, :] - key[..., None, :, :]).sum(axis=-1)
                case forms.UnitProduct(temperature):
                    norms = [np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key)]
                    assert_close(score.lift(query, key, tile)[1] * norms[1], key, 1e-12)
                    if temperature is not None:
                        expected = (query / norms[0]) @ _transposed(key / norms[1]) / temperature
                case forms.ScaledProduct() as form:
                    expected = form.factor(query.shape[-1]) * query @ _transposed(key)
                case forms.MappedProduct() as form:
                    maps = form.maps()
                    sides = [x if w is None else x @ _transposed(w) for x, w in zip((query, key), maps, strict=True)]
                    expected = form.factor * sides[0] @ _transposed(sides[1])
                case forms.Distance(float() as slope):
                    expected = -slope * np.linalg.norm(query[..., :, None, :] - key[..., None, :, :], axis=-1)
                case forms.Gated(gates) | forms.GatedSides(gates) if gates is not None:
                    terms = [
                        (x @ w[..., None]) + np.asarray(b)[..., None, None]
                        for x, w, b in zip((query, key), gates[:2], gates[2:], strict=True)
                    ]
                    first, second = terms[0], _transposed(terms[1])
                    of_pair = isinstance(score.form, forms.Gated)
                    gate = sigmoid(first + second) if of_pair else sigmoid(first) * sigmoid(second)
                    expected = gate * (query @ _transposed(key))
                case forms.Product():
                    expected = left @ _transposed(right)
                case forms.Tanh(vector, maps):
                    hidden = np.tanh(left[..., :, None, :] + right[..., None, :, :])
                    expected = (hidden @ vector[..., None, :, None])[..., 0]
                    if maps is not None:
                        sides = [
                            x if w is None else x @ _transposed(w) for x, w in zip((query, key), maps[:2], strict=True)
                        ]
                        assert_close(left, sides[0] + (0 if maps[2] is None else maps[2][..., None, :]), 1e-12)
                        assert_close(right, sides[1], 1e-12)
            if expected is not None:
                assert_close(score(query, key, END), expected, 1e-12)

    def test_rounding_errors_are_within_the_bound_of_the_form(self) -> None:
        score = self.make(Draw(1, 4, 6))
        query, key = self._sides()
        if not isinstance(score.form, (forms.Product, forms.Distance)):
            return
        tile = Tile.whole(query.shape[-2], key.shape[-2], (), END)
        left, right = (np.asarray(x, np.float32) for x in score.project(query, key, tile))
        rounded = score.map_arrays(lambda x: np.asarray(x, np.float32)).projected_logits(left, right, tile)
        bound = score.form.rounding(left, right, rounded)
        if bound is not None:
            exact = score.projected_logits(left.astype(float), right.astype(float), tile)
            assert (np.abs(rounded - exact) <= bound).all()

    def test_pair_of_the_sides_is_the_tile_for_each_batch_element_and_no_logit_exceeds_the_bound(self) -> None:
        for batch in ((), (2,)):
            score = self.make(Draw(1, 4, 6, batch))
            query, key = self._sides(batch)
            tile = Tile.whole(4, 6, batch, END)
            logits = score.logits(query, key, tile)
            left, right = score.project(query, key, tile)
            where = (slice(1, 3), slice(2, 6))
            largest = np.abs(np.where(np.isfinite(logits), logits, 0.0)).max(initial=1.0)
            for index in np.ndindex(*batch):
                one = score.select_batch(index)
                cut = one.slice(*where).projected_logits(
                    left[index][where[0]], right[index][where[1]], tile.select_batch(index).restrict((1, 3), (2, 6))
                )
                assert_close(cut, logits[(*index, *where)], 1e-12 * largest)
            bound = score.bound(left, right)
            assert bound is None or (bound >= 0 and np.abs(logits).max() <= bound * (1 + 1e-12))

    def test_positional_is_true_exactly_where_positions_are_wanted(self) -> None:
        score = self.make(Draw(1))
        query, key = self._sides()
        if score.positional:
            with pytest.raises(ValueError, match=r"start.*end"):
                score(query, key)
        else:
            assert_close(score(query, key), score(query, key, END), 0.0)

    # -- gradients ------------------------------------------------------------------------------------------

    def test_gradients_are_finite_where_query_and_key_coincide_or_are_zero(self) -> None:
        if self.differentiable:
            score = self.make(Draw(1))
            inputs = [*self.special_inputs(), *floats(score)]
            assert all(np.isfinite(gradient).all() for gradient in torch_gradients(self._scalar(score), inputs)[1])

    def test_masked_inputs_are_never_read_forward_or_backward(self) -> None:
        if self.libraries != ("numpy",):
            clean, damaged = (run(call, FLOAT64, "dense") for call in self._masked_calls())
            assert_agrees(damaged, clean, FLOAT64, "masked NaN and infinity:")

    @pytest.mark.long
    def test_masked_inputs_are_never_read_under_jit(self) -> None:
        if self.libraries != ("numpy",):
            clean, damaged = self._masked_calls()
            assert_agrees(run(damaged, replace(FLOAT64, library="jax"), "dense"), oracle_of(clean, FLOAT64), FLOAT64)

    # -- helpers --------------------------------------------------------------------------------------------

    def _masked_calls(self) -> tuple[Call, Call]:
        """Return two calls with a mask: one with finite inputs, and one with NaN and infinity in the masked inputs."""
        (query, key), value = self._sides(), np.arange(12.0).reshape(6, 2)
        allowed = np.ones((4, 6), dtype=bool)
        allowed[:, 2], allowed[3, :], allowed[1, 4] = False, False, False
        clean = Call(query, key, value, self.make(Draw(1)), mask=AllowedPairs(allowed), positions=END)
        damaged = replace(clean, query=query.copy(), key=key.copy(), value=value.copy())
        damaged.query[3], damaged.key[2], damaged.value[2] = np.inf, np.nan, np.nan
        return clean, damaged

    def _sides(self, batch: tuple[int, ...] = (), q: int = 4, k: int = 6) -> tuple[ArrayLike, ArrayLike]:
        left, right = self.widths
        return self.rows(Draw(2, batch=batch), q, left), self.rows(Draw(3, batch=batch), k, right)


def _transposed(x: ArrayLike) -> ArrayLike:
    return np.swapaxes(x, -1, -2)
