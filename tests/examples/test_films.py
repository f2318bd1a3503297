"""Films folded into a latent space: generated ratings of two tastes, and the public ratings."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from examples.films import Films, measure, read

from qkv.errors import DataError


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    """Write ratings of forty films by forty people, who like horror and dislike comedy, or the reverse."""
    folder = tmp_path_factory.mktemp("ratings")
    draw = np.random.default_rng(0)
    films = [f"{n:03}::Film {n} ({1980 + n % 40})::{'Horror' if n % 2 else 'Comedy|Short'}" for n in range(40)]
    rows = []
    for person in range(40):
        for film in draw.choice(40, 8, replace=False):
            rating = (9 if film % 2 == person % 2 else 2) + draw.integers(-1, 2)
            rows.append(f"{person}::{film:03}::{rating}::1363245118")
    for name, lines in (("movies.dat.gz", films), ("ratings.dat.gz", rows)):
        with gzip.open(folder / name, "wt", encoding="utf-8") as stream:
            stream.write("\n".join(lines) + "\n")
    return folder


def test_ratings_are_read_with_genres_and_decades(folder):
    ratings = read(folder)
    assert len(ratings) == 320
    assert ratings.about.shape == (40, 3 + 4)
    np.testing.assert_array_equal(ratings.about.sum(axis=1), [3 - film % 2 for film in range(40)])
    assert ratings.titles[7] == "Film 7 (1987)"


def test_a_film_that_is_folded_in_lies_where_a_decomposed_one_of_the_same_row_does(folder):
    ratings = read(folder)
    known = np.arange(40) != 5
    films = Films(ratings, np.zeros(len(ratings), bool), known, components=4)
    assert films.semantics.n_samples_seen_ == 39
    # Without ratings, all horror films of the eighties have the same vector.
    np.testing.assert_allclose(films.points[5], films.points[1], atol=1e-12)
    assert {film for film, _ in films.like(5, top=4)} == {1, 3, 7, 9}
    assert films.like(5, top=4)[-1][1] == pytest.approx(1)


def test_attention_over_known_ratings_is_nearer_than_the_mean_of_the_film(folder):
    found = measure(read(folder), seed=0)
    assert found.attention < 0.9 * found.film_mean
    assert found.attention < found.no_space


def test_a_folder_without_ratings_is_reported(tmp_path, monkeypatch, capsys):
    from examples.films.__main__ import main

    with pytest.raises(DataError, match=r"must contain ratings\.dat\.gz"):
        read(tmp_path)
    monkeypatch.setattr("sys.argv", ["films", str(tmp_path)])
    assert main() == 2
    assert "must contain ratings.dat.gz" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA does not name the folder of public data")
def test_held_out_ratings_of_films_that_are_folded_in_are_nearer_than_the_mean_of_the_film():
    ratings = read(Path(os.environ["QKV_DATA"]) / "ratings" / "10K")
    assert (len(ratings), len(ratings.titles)) == (10_000, 3_096)
    found = measure(ratings, seed=0)
    assert found.attention < found.film_mean - 0.1
    assert found.attention < found.no_space
    assert found.new > 20
    assert found.new_attention < found.new_mean
