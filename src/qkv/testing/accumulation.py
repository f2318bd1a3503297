"""The contract of normalizers on tiles: output, weights and gradients equal those of whole rows."""

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
from qkv.testing.examples import Draw, floats, with_floats
from qkv.testing.libraries import Setting, assert_close, to_float64
from qkv.testing.parts import PartContract

__all__ = ["AccumulationContract", "accumulate_tiles"]

Cuts = list[tuple[int, int]]


def accumulate_tiles(
    normalizer: Normalizer,
    logits: ArrayLike,
    value: ArrayLike,
    tile: Tile,
    cuts: Cuts,
    dropout: float,
    order: Callable[[int], Sequence[int]] | None = None,
) -> tuple[ArrayLike, Summary]:
    """Accumulate tiles, merge their partial results and finalize; `order(n)` names the next two to merge."""
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


class AccumulationContract(PartContract):
    """Tests of accumulation by tiles, part of `NormalizerContract`."""

    non_negative_logits: ClassVar[bool] = False
    """Whether only non-negative logits are accepted."""
    signed: ClassVar[bool] = False
    """Whether weights may be negative."""

    @settings(suppress_health_check=[HealthCheck.differing_executors])
    @given(st.data(), st.booleans(), st.sampled_from([0.0, 0.4]))
    def test_fold_in_any_tiles_and_any_order_is_the_whole(
        self, data: st.DataObject, batched: bool, dropout: float
    ) -> None:
        batch = (2,) if batched else ()
        draw = Draw(data.draw(st.integers(0, 99)), batch=batch)
        normalizer = self.make(draw)
        if not normalizer.online:
            return
        logits, value = self._row_logits(draw), draw(8, 2)
        tile = Tile.whole(4, 8, batch, seed=5)
        edges = sorted(data.draw(st.lists(st.integers(0, 8), max_size=4)))
        cuts = list(zip([0, *edges], [*edges, 8], strict=True))

        def order(n: int) -> ArrayLike:
            return data.draw(st.permutations(range(n)))[:2]

        with ignore_numpy_warnings():
            weights = normalizer.weights(logits, tile)
            output, summary = accumulate_tiles(normalizer, logits, value, tile, cuts, dropout, order)
            assert_close(output, apply_dropout(weights, tile, dropout) @ value, 1e-12, least=1.0)
            for c0, c1 in cuts:
                piece = tile.restrict((0, 4), (c0, c1))
                got = normalizer.tile_weights(normalizer.prepare(logits)[..., c0:c1], summary, piece)
                assert_close(got, weights[..., c0:c1], 1e-12, said="weights of a tile:", least=1e-3)

    def test_fold_is_the_whole_in_every_library(self, few_setting: Setting) -> None:
        draw, setting = Draw(1, batch=(2,)), few_setting
        normalizer = self.make(draw)
        if not normalizer.online:
            return
        logits, value = self._row_logits(draw), draw(8, 2)
        tile = Tile.whole(4, 8, (2,), seed=5)
        dropout = 0.0 if setting.library == "jax" else 0.4  # there the draw takes seconds to compile
        cut = tile.restrict((0, 4), (3, 8))

        def both(x: ArrayLike, v: ArrayLike) -> ArrayLike:
            part = setting.part(normalizer)
            output, summary = accumulate_tiles(part, x, v, tile, [(0, 3), (3, 8)], dropout)
            weights = part.weights(x, tile)
            wanted = namespace(x).matmul(apply_dropout(weights, tile, dropout), v)
            return (
                output,
                wanted,
                part.tile_weights(part.prepare(x)[..., 3:8], summary, cut),
                weights[..., 3:8],
            )

        with setting.active(), ignore_numpy_warnings():
            output, wanted, again, weights = setting.call(both, setting.array(logits), setting.array(value))
        assert_close(output, to_float64(wanted), 2 * setting.tolerance, said=str(setting))
        assert_close(again, to_float64(weights), 2 * setting.tolerance, said=f"{setting} weights:")

    def test_fold_of_no_key_at_all_is_zero(self) -> None:
        normalizer = self.make(Draw(1))
        if normalizer.online:
            tile = Tile.whole(3, 0, seed=5)
            with ignore_numpy_warnings():
                output, _ = accumulate_tiles(normalizer, np.zeros((3, 0)), np.zeros((0, 2)), tile, [(0, 0)], 0.0)
            assert output.tolist() == [[0.0, 0.0]] * 3

    def test_fold_never_reads_the_value_of_an_excluded_key(self) -> None:
        normalizer = self.make(Draw(1))
        if normalizer.online:
            draw = Draw(2)
            logits, value = self._row_logits(draw), draw(8, 2)
            logits[:, 5] = -np.inf
            tile, hurt = Tile.whole(4, 8, seed=5), value.copy()
            hurt[5] = [np.nan, np.inf]
            with ignore_numpy_warnings():
                clean, _ = accumulate_tiles(normalizer, logits, value, tile, [(0, 4), (4, 8)], 0.0)
                got, _ = accumulate_tiles(normalizer, logits, hurt, tile, [(0, 4), (4, 8)], 0.0)
            assert_close(got, clean, 1e-15)

    def test_gradients_from_the_summary_are_those_of_the_weights(self) -> None:
        """Tile by tile: through `logit_gradient`, then `prepare`, and `array_gradients` for the rest."""
        torch = pytest.importorskip("torch")
        draw = Draw(1, batch=(2,))
        normalizer = self.make(draw)
        if not normalizer.online:
            return
        tile, cuts = Tile.whole(4, 8, (2,), seed=5), [(0, 3), (3, 8)]
        leaves = [torch.tensor(x, requires_grad=True) for x in (self._row_logits(draw), *floats(normalizer))]
        part = with_floats(Setting("torch", "float64").part(normalizer), leaves[1:])
        gradient = torch.tensor(draw(4, 8))
        weights = part.weights(leaves[0], tile)
        wanted = [torch.zeros_like(leaf) for leaf in leaves]
        if weights.requires_grad:
            wanted = torch.autograd.grad(weights, leaves, gradient, allow_unused=True, materialize_grads=True)

        prepared = part.prepare(leaves[0])
        with torch.no_grad():
            _, summary = accumulate_tiles(part, leaves[0], torch.tensor(draw(8, 2)), tile, cuts, 0.0)
            row_dot = (weights * gradient).sum(dim=-1, keepdim=True)
            tiles = []
            for c0, c1 in cuts:
                piece = tile.restrict((0, 4), (c0, c1))
                logits, own = prepared[..., c0:c1], weights[..., c0:c1]
                tiles.append(part.logit_gradient(logits, own, gradient[..., c0:c1], row_dot, summary, piece))
        got = torch.autograd.grad(prepared, leaves, torch.cat(tiles, -1), allow_unused=True, materialize_grads=True)
        rest = part.array_gradients(summary, row_dot)
        assert len(rest) == len(part.arrays())
        for n, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
            more = rest[n - 1] if n else None
            if more is not None:
                mine = mine + more.sum_to_size((*mine.shape, 1, 1))[..., 0, 0]
            assert_close(mine, to_float64(theirs), 1e-12, said=f"gradient {n}:", least=1.0)

    def test_without_a_fold_it_says_that_it_must_see_whole_rows(self) -> None:
        normalizer = self.make(Draw(1))
        if not normalizer.online and not hasattr(normalizer, "normalizer"):
            with pytest.raises(RefusedError, match=f"{type(normalizer).__name__} must be given whole rows"):
                normalizer.accumulate(np.zeros((1, 1)), np.zeros((1, 1)), Tile.whole(1, 1), 0.0, True)

    def _row_logits(self, draw: Draw) -> ArrayLike:
        logits = draw(4, 8) * 3
        logits = np.abs(logits) if self.non_negative_logits else logits
        logits[..., 1, draw.rng.random(8) < 0.5] = -np.inf
        logits[..., 2, :] = -np.inf
        return logits
