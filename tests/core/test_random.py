"""One counter generator: the published vectors, the same bits everywhere, the distributions they name."""

import numpy as np
import pytest
from scipy import stats

from qkv.core import random
from qkv.core.threefry import numpy_pair_words, seed_words, threefry
from qkv.core.tile import Tile
from qkv.errors import OptionError
from qkv.testing import Setting
from qkv.testing.libraries import LIBRARIES, to_float64

from .reference_draws import reference_dropout_mask, reference_gumbel, reference_threefry, reference_uniform

# Random123, tests/kat_vectors: threefry2x32 by rounds; key, counter, words.
VECTORS = {
    13: [
        ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x9D1C5EC6, 0x8BD50731)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0xFD36D048, 0x2D17272C)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xBA3E4725, 0xF27D669E)),
    ],
    20: [
        ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
}
ROUNDS = pytest.mark.parametrize("rounds", list(VECTORS))


def words(library, values):
    if library == "torch":
        import torch

        return torch.tensor(np.array(values, dtype=np.uint32).view(np.int32))
    if library == "jax":
        import jax.numpy as jnp

        return jnp.asarray(np.array(values, dtype=np.uint32))
    return np.array(values, dtype=np.uint32)


@ROUNDS
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_generator_gives_the_published_vectors(library, rounds):
    vectors = VECTORS[rounds]
    key = tuple(words(library, [vector[0][n] for vector in vectors]) for n in (0, 1))
    counter = tuple(words(library, [vector[1][n] for vector in vectors]) for n in (0, 1))
    got = [np.asarray(word).astype(np.int64) & 0xFFFFFFFF for word in threefry(key, counter, rounds)]
    assert [tuple(pair) for pair in np.stack(got, -1).tolist()] == [vector[2] for vector in vectors]


@ROUNDS
def test_the_words_made_in_place_are_the_published_vectors(rounds):
    for key, (above, across), wanted in VECTORS[rounds]:
        keys = tuple(np.array([[word]], dtype=np.uint32) for word in key)
        if above >= 2**31:
            continue  # no query has that number
        made = numpy_pair_words(keys, (2 * above, 2 * above + 2), (across, across + 1), rounds)
        assert tuple(made[:, 0].tolist()) == wanted


@ROUNDS
def test_the_plain_generator_of_the_suites_gives_the_published_vectors(rounds):
    vectors = VECTORS[rounds]
    assert [reference_threefry(key, counter, rounds) for key, counter, _ in vectors] == [v[2] for v in vectors]


@pytest.mark.thinned
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("seed", [0, 7, 2**32 + 5, 2**63 + 11, -1])
def test_every_library_draws_what_plain_integers_draw(library, seed):
    setting = Setting(library, "float64")
    with setting.active():
        tile = Tile.whole(3, 4, (2,), seed=seed)
        uniform = tile.uniform(setting.array(0.0), random.DROPOUT)
        gumbel = tile.gumbel(setting.array(0.0), random.SAMPLE)
        kept = to_float64(tile.dropout_mask(setting.array(0.0), 0.4))
    for b, i, j in np.ndindex(2, 3, 4):
        assert kept[b, i, j] == reference_dropout_mask(seed, random.DROPOUT, b, i, j, 0.4)
        assert to_float64(uniform)[b, i, j] == reference_uniform(seed, random.DROPOUT, b, i, j)
        assert to_float64(gumbel)[b, i, j] == pytest.approx(reference_gumbel(seed, random.SAMPLE, b, i, j), rel=1e-14)


@pytest.mark.parametrize("library", LIBRARIES)
def test_single_precision_draws_are_the_double_ones_rounded(library):
    setting = Setting(library, "float32")
    with setting.active():
        got = Tile.whole(3, 4, seed=1).uniform(setting.array(0.0), random.DROPOUT)
    wanted = Tile.whole(3, 4, seed=1).uniform(np.zeros(()), random.DROPOUT)
    assert np.abs(to_float64(got) - wanted).max() < 2.0**-23


def test_numbers_are_uniform():
    u = Tile.whole(300, 300, (2,), seed=3).uniform(np.zeros(()), random.DROPOUT)
    assert stats.kstest(u.ravel(), "uniform").pvalue > 0.01
    assert u.min() > 0
    assert u.max() < 1


def test_neither_zero_nor_one_is_ever_drawn(monkeypatch):
    """The words that come nearest to them, in the precision that rounds most."""
    monkeypatch.setattr(random, "numpy_pair_words", lambda *_: np.array([[0, 2**32 - 1]], dtype=np.uint32))
    single, draws = np.zeros((), np.float32), random.Draws(0, (), (0, 1), (0, 2))
    u = random.uniform(single, draws, 0)
    assert u[0, 0] > 0
    assert u[0, 1] < 1
    assert np.isfinite(random.gumbel(single, draws, 0)).all()


def test_gumbel_numbers_follow_their_distribution():
    g = Tile.whole(300, 300, (2,), seed=4).gumbel(np.zeros(()), random.SAMPLE)
    assert stats.kstest(g.ravel(), "gumbel_r").pvalue > 0.01


def test_streams_seeds_batch_elements_rows_and_columns_are_unrelated():
    tile = Tile.whole(100, 100, (2,), seed=5)
    u = tile.uniform(np.zeros(()), random.DROPOUT)
    others = [
        tile.uniform(np.zeros(()), random.SAMPLE),
        Tile.whole(100, 100, (2,), seed=6).uniform(np.zeros(()), random.DROPOUT),
        u[::-1],
        np.roll(u, 1, axis=-1),
        np.roll(u, 1, axis=-2),
        np.swapaxes(u, -1, -2),
    ]
    for other in others:
        assert abs(np.corrcoef(u.ravel(), other.ravel())[0, 1]) < 0.03


@pytest.mark.parametrize("rows", [(0, 2), (3, 7)])
def test_a_tile_draws_what_the_whole_draws_there(rows):
    tile = Tile.whole(7, 9, (2,), seed=8)
    of_all = tile.gumbel(np.zeros(()), random.SAMPLE)
    piece = tile.restrict(rows, (4, 9)).gumbel(np.zeros(()), random.SAMPLE)
    assert (piece == of_all[:, slice(*rows), 4:9]).all()


@pytest.mark.thinned
@pytest.mark.parametrize("cols", [(4, 9), (3, 8), (0, 1)])
@pytest.mark.parametrize("rows", [(0, 2), (3, 7), (5, 6)])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_tile_keeps_what_the_whole_keeps_there(library, rows, cols):
    setting = Setting(library, "float32")
    with setting.active():
        piece = to_float64(Tile.whole(7, 9, (2,), seed=8).restrict(rows, cols).dropout_mask(setting.array(0.0), 0.5))
    assert (
        piece == Tile.whole(7, 9, (2,), seed=8).dropout_mask(np.zeros(()), 0.5)[:, slice(*rows), slice(*cols)]
    ).all()


@pytest.mark.parametrize("library", LIBRARIES)
def test_keys_named_by_index_keep_what_they_keep_in_place(library):
    tile, index = Tile.whole(3, 6, seed=8), np.array([[5, 0], [1, 1], [2, 4]])
    setting = Setting(library, "float32")
    with setting.active():
        named = to_float64(tile.dropout_mask(setting.array(0.0), 0.5, keys=setting.array(index)))
    assert (named == np.take_along_axis(tile.dropout_mask(np.zeros(()), 0.5), index, axis=-1)).all()


def test_long_rows_are_drawn_in_pieces_that_fit_together(monkeypatch):
    wanted = Tile.whole(33, 50, (2,), seed=8).dropout_mask(np.zeros(()), 0.5)
    monkeypatch.setattr("qkv.core.threefry._CHUNK", 70)
    assert (Tile.whole(33, 50, (2,), seed=8).dropout_mask(np.zeros(()), 0.5) == wanted).all()


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_as_many_are_kept_as_the_rate_says_in_every_row_column_and_half(dropout):
    kept = Tile.whole(400, 600, (2,), seed=9).dropout_mask(np.zeros(()), dropout)
    chance = 1 - random.dropout_rate(dropout)
    for axes in [(0, 1, 2), (1,), (2,), (0, 1)]:
        found = kept.mean(axis=axes)
        deviation = np.sqrt(chance * (1 - chance) / (kept.size / found.size))
        assert np.abs(found - chance).max() <= 5.5 * deviation
    for one, other in ((kept[..., ::2], kept[..., 1::2]), (kept[:, ::2], kept[:, 1::2]), kept):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.015


def test_drawing_without_a_seed_is_refused_with_what_to_give():
    with pytest.raises(OptionError, match=r"seed must be given for dropout"):
        Tile.whole(1, 1).uniform(np.zeros(()), random.DROPOUT)


@pytest.mark.parametrize("seed", [0, 5, -3, 2**31 - 1, 2**40 + 7, -(2**40) - 1])
def test_seed_in_an_array_is_the_same_seed(seed):
    mask = 2**32 - 1
    wanted = seed_words(seed)
    for dtype in (np.int64, np.int32):
        if np.iinfo(dtype).min <= seed <= np.iinfo(dtype).max:
            words = seed_words(np.asarray(seed, dtype=dtype))
            assert tuple(int(word) & mask for word in words) == wanted


@pytest.mark.parametrize(("dtype", "high"), [(np.uint32, 0), (np.uint64, 3)])
def test_an_unsigned_seed_in_an_array_is_not_extended_by_a_sign(dtype, high):
    low, upper = seed_words(np.asarray(high * 2**32 + 2**31 + 5, dtype=dtype))
    assert (int(low) & (2**32 - 1), int(upper) & (2**32 - 1)) == (2**31 + 5, high)
    assert seed_words((7, 9)) == (7, 9)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_seed_in_an_array_draws_the_numbers_of_the_integer(shape):
    like, seed, ranges = np.zeros(()), 2**33 + 7, ((1, 40), (3, 70))
    array = np.asarray(seed)
    for draw in (random.uniform, random.gumbel):
        np.testing.assert_allclose(
            *(draw(like, random.Draws(each, shape, *ranges), 1) for each in (array, seed)), rtol=1e-14
        )


def test_the_dropout_mask_is_the_same_from_halves_of_words_and_from_whole_words():
    like, ranges = np.zeros(()), ((0, 500), (0, 2001))
    for rate in (0.25, 0.5):
        fast, slow = (random.dropout_mask(like, random.Draws(seed, (), *ranges), rate) for seed in (7, np.asarray(7)))
        assert (fast == slow).all()
