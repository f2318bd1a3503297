"""Latent vectors of films, and prediction of ratings: python -m examples.films FOLDER

A film is a row of genres, its decade and the people who rated it. `LatentSemantics` decomposes the rows of
nine tenths of the films; the other tenth is folded in. Attention over the known ratings predicts a missing one:

    logit = a · [same film] + b · [same person] + c · cosine of the two films        weights = softmax

The prediction is a weighted mean of ratings of the film, of the person and of similar films. `a`, `b` and `c`
are chosen on a held-out part of the training ratings.
"""

from __future__ import annotations

import gzip
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sparse

import qkv
from qkv.encoders import LatentSemantics
from qkv.errors import DataError
from qkv.scores import ByColumn, Cosine, Exact

__all__ = ["Films", "Measured", "Ratings", "measure", "read"]

_A, _B, _C = (3.0, 4.0, 5.0, 6.0), (5.0, 6.0, 7.0, 8.0), (0.0, 2.0, 4.0, 6.0)
_YEAR = re.compile(r"\((\d{4})\)\s*$")


@dataclass(frozen=True)
class Ratings:
    """Ratings of films by people.

    Attributes:
        person, film: numbers from 0.
        rating: 0 to 10.
        about: `(films, genres + decades)` of 0 and 1.
        titles: titles of the films.
    """

    person: np.ndarray
    film: np.ndarray
    rating: np.ndarray
    about: np.ndarray
    titles: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rating)


@dataclass(frozen=True)
class Measured:
    """Root mean squared errors of held-out ratings.

    Attributes:
        film_mean: error of the mean of the film's other ratings, or of all ratings if it has no other.
        no_space: error of attention by same film and same person only.
        attention: error of attention with the cosine in latent space.
        new_mean, new_attention: errors on ratings of folded-in films without other ratings.
        new: number of those ratings.
        chosen: a, b and c.
    """

    film_mean: float
    no_space: float
    attention: float
    new_mean: float
    new_attention: float
    new: int
    chosen: tuple[float, float, float]


def read(folder: Path) -> Ratings:
    """Read MovieTweetings: `ratings.dat.gz` of `person::film::rating::time`, `movies.dat.gz` of
    `film::title::genres`.

    Raises:
        DataError: a file is absent.
    """
    for name in ("ratings.dat.gz", "movies.dat.gz"):
        if not (folder / name).is_file():
            raise DataError(f"{str(folder)!r} must contain {name}. Name the folder of the ratings.")
    rows = [line.split("::") for line in _lines(folder / "ratings.dat.gz")]
    person = np.unique([row[0] for row in rows], return_inverse=True)[1]
    ids, film = np.unique([row[1] for row in rows], return_inverse=True)
    known = {row[0]: row[1:] for row in (line.split("::") for line in _lines(folder / "movies.dat.gz"))}
    titles = [known[id_][0] for id_ in ids]
    genres = [set(known[id_][1].split("|")) - {""} for id_ in ids]
    columns = sorted(set().union(*genres))
    decade = np.array([int(found[1]) // 10 if (found := _YEAR.search(title)) else 0 for title in titles])
    about = [[name in own for name in columns] for own in genres]
    decades = decade[:, None] == np.unique(decade)
    rating = np.array([float(row[2]) for row in rows])
    return Ratings(person, film, rating, np.hstack([np.array(about, float), decades]), tuple(titles))


class Films:
    """Latent vectors of films, both decomposed and folded in.

    Args:
        ratings: all ratings; only persons and films of `seen` are used, not the ratings themselves.
        seen: booleans of the ratings that may be used.
        known: booleans of the films that are decomposed; the others are folded in.
    """

    def __init__(self, ratings: Ratings, seen: np.ndarray, known: np.ndarray, components: int = 30) -> None:
        ones = np.ones(int(seen.sum()))
        shape = (len(ratings.titles), int(ratings.person.max()) + 1)
        people = sparse.csr_matrix((ones, (ratings.film[seen], ratings.person[seen])), shape=shape)
        people.data[:] = 1.0  # count a person who rated a film twice once
        rows = sparse.hstack([sparse.csr_matrix(ratings.about), people]).tocsr()
        self.semantics = LatentSemantics(components, weighting="tfidf").fit(rows[known])
        self.points = self.semantics.fold_in(rows)

    def like(self, film: int, top: int = 5) -> list[tuple[int, float]]:
        """Return the films with the largest cosine, without the film itself."""
        cosine = np.asarray(Cosine()(self.points[film : film + 1], self.points))[0]
        cosine[film] = -np.inf
        return [(int(place), float(cosine[place])) for place in np.argsort(-cosine, kind="stable")[:top]]


def measure(ratings: Ratings, seed: int) -> Measured:
    """Hold out a tenth of the ratings and a tenth of the films, and choose a, b and c on a tenth of the rest."""
    draw = np.random.default_rng(seed)
    test = draw.random(len(ratings)) < 0.1
    known = draw.random(len(ratings.titles)) >= 0.1
    # Half of the ratings of new films are predicted too, so that many new films have no other rating.
    test |= ~known[ratings.film] & (draw.random(len(ratings)) < 0.5)
    train = ~test
    valid = train & (draw.random(len(ratings)) < 0.1)
    chosen = _choose(ratings, train & ~valid, valid, known)
    points = Films(ratings, train, known).points
    asked, keys = (_records(ratings, points, where) for where in (test, train))
    value = ratings.rating[train][:, None]
    answers = {}
    for name, (a, b, c) in (("attention", chosen), ("no_space", (chosen[0], chosen[1], 0.0))):
        score = ByColumn((("film", Exact(), a), ("person", Exact(), b), ("point", Cosine(), c)))
        answers[name] = qkv.attend(asked, keys, value, score=score, normalizer=qkv.normalizers.Softmax())[:, 0]
    mean = _film_mean(ratings, train)[ratings.film[test]]
    counts = np.bincount(ratings.film[train], minlength=len(ratings.titles))
    new = (~known & (counts == 0))[ratings.film[test]]
    wanted = ratings.rating[test]
    return Measured(
        _rmse(mean, wanted),
        _rmse(answers["no_space"], wanted),
        _rmse(answers["attention"], wanted),
        _rmse(mean[new], wanted[new]),
        _rmse(answers["attention"][new], wanted[new]),
        int(new.sum()),
        chosen,
    )


def _choose(ratings: Ratings, train: np.ndarray, valid: np.ndarray, known: np.ndarray) -> tuple[float, float, float]:
    """Return the a, b and c with the smallest error on the validation ratings."""
    points = Films(ratings, train, known).points
    asked, keys = (_records(ratings, points, where) for where in (valid, train))
    film = Exact()(asked["film"][:, None], keys["film"][:, None])
    person = Exact()(asked["person"][:, None], keys["person"][:, None])
    near = Cosine()(asked["point"], keys["point"])
    best, chosen = np.inf, (_A[0], _B[0], _C[0])
    for a, b, c in itertools.product(_A, _B, _C):
        weights = qkv.normalizers.Softmax().weights(a * film + b * person + c * near)
        error = _rmse(weights @ ratings.rating[train], ratings.rating[valid])
        if error < best:
            best, chosen = error, (a, b, c)
    return chosen


def _records(ratings: Ratings, points: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Return person, film and latent vector of each rating in one array."""
    kind = [("film", float), ("person", float), ("point", float, (points.shape[1],))]
    records = np.empty(int(where.sum()), kind)
    records["film"], records["person"] = ratings.film[where], ratings.person[where]
    records["point"] = points[ratings.film[where]]
    return records


def _film_mean(ratings: Ratings, train: np.ndarray) -> np.ndarray:
    films = len(ratings.titles)
    count = np.bincount(ratings.film[train], minlength=films)
    total = np.bincount(ratings.film[train], ratings.rating[train], films)
    return np.where(count > 0, total / np.maximum(count, 1), ratings.rating[train].mean())


def _rmse(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.sqrt(np.square(found - wanted).mean())) if len(wanted) else float("nan")


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return [line.rstrip("\n") for line in stream if line.strip()]
