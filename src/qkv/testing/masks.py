"""Contract tests that every mask must pass, as a class from which the tests of a mask inherit.

class TestCausal(MaskContract):
    part = Causal

    def formula(self, mask, at):
        return at.j <= at.i
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.core.arrays import namespace
from qkv.core.equation import attend_dense
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.core.typing import ArrayLike
from qkv.errors import PositionError
from qkv.masks import AllowedKeys, Mask, Window
from qkv.normalizers import Softmax
from qkv.scores import Dot
from qkv.testing.cases import Draw, PairIndex, element
from qkv.testing.libraries import Setting, settings_of, to_float64
from qkv.testing.parts import PartContract

SIDE = st.tuples(st.integers(0, 5), st.integers(0, 5)).map(sorted).map(tuple)
_COLS = st.tuples(st.integers(0, 7), st.integers(0, 7)).map(sorted).map(tuple)
_POSITIONS = st.sampled_from(
    [
        Positions(align="start"),
        Positions(align="end"),
        Positions(query_start=3),
        Positions(query_start=np.array([0, 4])),
    ]
)


class MaskContract(PartContract):
    """Contract tests of masks. Subclasses must define `part`, `make` and `formula`."""

    dtypes = ("float64",)

    def formula(self, mask: Mask, at: PairIndex) -> bool:
        """Return whether the query `at.row` may attend to the key `at.col`, computed without the code under test."""
        raise NotImplementedError(
            f"{type(self).__name__} must define the method formula, which returns whether a query may attend to a key."
        )

    def test_agrees_with_its_formula(self, setting: Setting) -> None:
        for batch in setting.few((2, 3), (1, 3), ()):
            for positions in setting.few(Positions(align="end"), Positions(align="start"), Positions(query_start=2)):
                mask = self.make(Draw(1, 5, 7, batch))
                tile = Tile.whole(5, 7, (2, 3), positions)
                got = setting.evaluate(mask, lambda mask, tile=tile: mask.allowed(tile, setting.array(0.0)))
                assert "bool" in str(got.dtype)
                expected = np.empty((2, 3, 5, 7), dtype=bool)
                for *index, row, col in np.ndindex(*expected.shape):
                    at = PairIndex(row, col, row + positions.offset(5, 7), col)
                    expected[(*index, row, col)] = self.formula(element(mask, batch, tuple(index)), at)
                assert (np.broadcast_to(np.asarray(got), expected.shape) == expected).all(), f"{batch}, {positions}"

    def test_lengths_of_zero_and_one_work(self) -> None:
        for q, k in ((0, 3), (3, 0), (1, 1)):
            mask, tile = self.make(Draw(1, q, k)), Tile.whole(q, k, (), Positions(align="end"))
            mask.check(q, k)
            assert np.broadcast_to(mask.allowed(tile, np.zeros(())), (q, k)).shape == (q, k)
            assert mask.coverage(tile) in ("all", "none", "part")

    @settings(suppress_health_check=[HealthCheck.differing_executors])
    @given(SIDE, _COLS, _POSITIONS, st.integers(0, 99))
    def test_tile_of_the_slice_is_the_slice_of_the_whole_and_cover_never_lies(
        self, rows: tuple[int, int], cols: tuple[int, int], positions: Positions, seed: int
    ) -> None:
        mask = self.make(Draw(seed, 5, 7, (2,)))
        mask.check(5, 7)
        for shown in (mask, ~mask, mask & Window(2, 1), mask | AllowedKeys(np.arange(7) < 3)):
            tile = Tile.whole(5, 7, (2,), positions)
            of_all = np.broadcast_to(shown.allowed(tile, np.zeros(())), (2, 5, 7))[:, slice(*rows), slice(*cols)]
            piece = tile.restrict(rows, cols)
            of_tile = shown.slice(slice(*rows), slice(*cols)).allowed(piece, np.zeros(()))
            assert (np.broadcast_to(of_tile, of_all.shape) == of_all).all()
            cover = shown.coverage(piece)
            assert cover != "all" or of_all.all()
            assert cover != "none" or not of_all.any()
            start, stop = shown.key_range(tile.restrict(rows, (0, 7)))
            out_of_reach = np.ones(7, dtype=bool)
            out_of_reach[max(0, start) : max(0, stop)] = False
            of_rows = np.broadcast_to(shown.allowed(tile, np.zeros(())), (2, 5, 7))[:, slice(*rows)]
            assert not of_rows[..., out_of_reach].any()

    def test_cover_is_part_where_the_elements_cannot_be_known(self) -> None:
        """Check that the coverage of a tile under `jax.jit` is `"part"` or the same as for known arrays of the mask."""
        jax = pytest.importorskip("jax")
        mask = self.make(Draw(1, 5, 7, (2,)))
        tile = Tile.whole(5, 7, (2,), Positions(align="end"))
        if mask.arrays():
            known = mask.coverage(tile)

            def count(arrays: ArrayLike) -> ArrayLike:
                own = mask.replace_arrays(arrays)
                assert own.coverage(tile) in ("part", known)
                return own.allowed(tile, jax.numpy.zeros(())).sum()

            assert int(jax.jit(count)(list(mask.arrays()))) == int(mask.allowed(tile, np.zeros(())).sum())

    def test_masks_of_keys_alone_say_so(self) -> None:
        mask, tile = self.make(Draw(1, 5, 7)), Tile.whole(5, 7, (), Positions(align="start"))
        if mask.key_only:
            allowed = np.broadcast_to(mask.allowed(tile, np.zeros(())), (5, 7))
            assert (allowed == allowed[:1]).all()

    def test_positional_is_true_exactly_where_positions_are_wanted(self) -> None:
        mask = self.make(Draw(1, 5, 7))
        if mask.positional:
            with pytest.raises(
                PositionError, match=r'positions must be given for 5 queries and 7 keys.*align="start".*align="end"'
            ):
                mask.allowed(Tile.whole(5, 7), np.zeros(()))
        else:
            mask.allowed(Tile.whole(5, 7), np.zeros(()))

    def test_combinations_are_and_or_and_not(self) -> None:
        mask, other = self.make(Draw(1, 5, 7)), self.make(Draw(2, 5, 7)) & AllowedKeys(np.arange(7) % 2 == 0)
        tile, zero = Tile.whole(5, 7, (), Positions(align="end")), np.zeros(())
        a, b = (np.broadcast_to(x.allowed(tile, zero), (5, 7)) for x in (mask, other))
        assert (np.broadcast_to((mask & other).allowed(tile, zero), (5, 7)) == (a & b)).all()
        assert (np.broadcast_to((mask | other).allowed(tile, zero), (5, 7)) == (a | b)).all()
        assert (np.broadcast_to((~mask).allowed(tile, zero), (5, 7)) == ~a).all()
        assert (mask & other).positional == (mask.positional or other.positional)

    def test_what_it_does_not_allow_has_weight_zero_and_a_row_without_keys_is_zero(self) -> None:
        draw = Draw(3, 5, 7)
        inputs = (draw(5, 4), draw(7, 4), draw(7, 2))
        mask, positions = self.make(draw), Positions(align="end")
        allowed = np.broadcast_to(mask.allowed(Tile.whole(5, 7, (), positions), np.zeros(())), (5, 7))
        for setting in settings_of(("numpy", "torch"), ("float64",)):
            result = attend_dense(
                *(setting.array(x) for x in inputs), score=Dot(), normalizer=Softmax(), mask=mask, positions=positions
            )
            weights = to_float64(result.weights)
            assert (weights[~allowed] == 0).all()
            assert np.allclose(weights.sum(axis=-1), allowed.any(axis=-1))
            assert (to_float64(result.output)[~allowed.any(axis=-1)] == 0).all()
            assert namespace(result.output) is namespace(setting.array(0.0))
