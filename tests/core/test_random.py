"""One counter generator: the published vectors, the same bits everywhere, the distributions they name."""

import numpy as np
import pytest
from scipy import stats

from qkv.core import random
from qkv.core.positions import whole
from qkv.errors import OptionError
from qkv.testing import Setting
from qkv.testing.draws import plain_gumbel, plain_threefry, plain_uniform
from qkv.testing.libraries import LIBRARIES, to_float64

# Random123, tests/kat_vectors: threefry2x32 with 20 rounds.
VECTORS = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


def words(library, values):
    if library == "torch":
        import torch

        return torch.tensor(np.array(values, dtype=np.uint32).view(np.int32))
    if library == "jax":
        import jax.numpy as jnp

        return jnp.asarray(np.array(values, dtype=np.uint32))
    return np.array(values, dtype=np.uint32)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_generator_gives_the_published_vectors(library):
    key = tuple(words(library, [vector[0][n] for vector in VECTORS]) for n in (0, 1))
    counter = tuple(words(library, [vector[1][n] for vector in VECTORS]) for n in (0, 1))
    got = [np.asarray(word).astype(np.int64) & 0xFFFFFFFF for word in random.threefry(key, counter)]
    assert [tuple(pair) for pair in np.stack(got, -1).tolist()] == [vector[2] for vector in VECTORS]


def test_the_plain_generator_of_the_suites_gives_the_published_vectors():
    assert [plain_threefry(key, counter) for key, counter, _ in VECTORS] == [vector[2] for vector in VECTORS]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("seed", [0, 7, 2**32 + 5, 2**63 + 11, -1])
def test_every_library_draws_what_plain_integers_draw(library, seed):
    setting = Setting(library, "float64")
    with setting.active():
        place = whole(3, 4, (2,), seed=seed)
        uniform = place.uniform(setting.array(0.0), random.DROPOUT)
        gumbel = place.gumbel(setting.array(0.0), random.SAMPLE)
    for b, i, j in np.ndindex(2, 3, 4):
        assert to_float64(uniform)[b, i, j] == plain_uniform(seed, random.DROPOUT, b, i, j)
        assert to_float64(gumbel)[b, i, j] == pytest.approx(
            plain_gumbel(seed, random.SAMPLE, b, i, j), rel=1e-14
        )


@pytest.mark.parametrize("library", LIBRARIES)
def test_single_precision_draws_are_the_double_ones_rounded(library):
    setting = Setting(library, "float32")
    with setting.active():
        got = whole(3, 4, seed=1).uniform(setting.array(0.0), random.DROPOUT)
    wanted = whole(3, 4, seed=1).uniform(np.zeros(()), random.DROPOUT)
    assert np.abs(to_float64(got) - wanted).max() < 2.0**-23


def test_numbers_are_uniform():
    u = whole(300, 300, (2,), seed=3).uniform(np.zeros(()), random.DROPOUT)
    assert stats.kstest(u.ravel(), "uniform").pvalue > 0.01
    assert u.min() > 0
    assert u.max() < 1


def test_neither_zero_nor_one_is_ever_drawn(monkeypatch):
    """The words that come nearest to them, in the precision that rounds most."""
    monkeypatch.setattr(random, "_bits", lambda *_: np.array([0, 2**32 - 1], dtype=np.uint32))
    u = random.uniform(np.zeros(()), 0, 0, (), np.zeros(1), np.zeros(2), np.float32)
    assert u[0] > 0
    assert u[1] < 1
    assert np.isfinite(random.gumbel(np.zeros(()), 0, 0, (), np.zeros(1), np.zeros(2), np.float32)).all()


def test_gumbel_numbers_follow_their_distribution():
    g = whole(300, 300, (2,), seed=4).gumbel(np.zeros(()), random.SAMPLE)
    assert stats.kstest(g.ravel(), "gumbel_r").pvalue > 0.01


def test_streams_seeds_batch_elements_rows_and_columns_are_unrelated():
    place = whole(100, 100, (2,), seed=5)
    u = place.uniform(np.zeros(()), random.DROPOUT)
    others = [
        place.uniform(np.zeros(()), random.SAMPLE),
        whole(100, 100, (2,), seed=6).uniform(np.zeros(()), random.DROPOUT),
        u[::-1],
        np.roll(u, 1, axis=-1),
        np.roll(u, 1, axis=-2),
        np.swapaxes(u, -1, -2),
    ]
    for other in others:
        assert abs(np.corrcoef(u.ravel(), other.ravel())[0, 1]) < 0.03


@pytest.mark.parametrize("rows", [(0, 2), (3, 7)])
def test_a_tile_draws_what_the_whole_draws_there(rows):
    place = whole(7, 9, (2,), seed=8)
    of_all = place.gumbel(np.zeros(()), random.SAMPLE)
    tile = place.cut(rows, (4, 9)).gumbel(np.zeros(()), random.SAMPLE)
    assert (tile == of_all[:, slice(*rows), 4:9]).all()


def test_keys_named_by_index_draw_what_they_draw_in_place():
    place = whole(3, 6, seed=8)
    index = np.array([[5, 0], [1, 1], [2, 4]])
    named = place.uniform(np.zeros(()), random.DROPOUT, keys=index)
    assert (named == np.take_along_axis(place.uniform(np.zeros(()), random.DROPOUT), index, axis=-1)).all()


def test_drawing_without_a_seed_is_refused_with_what_to_give():
    with pytest.raises(OptionError, match=r"draws at random. Give seed="):
        whole(1, 1).uniform(np.zeros(()), random.DROPOUT)
