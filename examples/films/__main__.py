"""Print the errors on held-out ratings, and the films most similar to one; write the errors to a CSV file if named."""

import csv
import sys
from pathlib import Path

import numpy as np

from examples.films import Films, measure, read
from qkv.errors import QkvError

_SPLITS = 5


def main() -> int:
    """Run the example on the folder of ratings given as the first argument."""
    if len(sys.argv) not in (2, 3):
        print("usage: python -m examples.films FOLDER [RESULTS.csv]", file=sys.stderr)
        return 2
    try:
        ratings = read(Path(sys.argv[1]))
    except QkvError as error:
        print(f"films: {error}", file=sys.stderr)
        return 2
    people, films = ratings.person.max() + 1, len(ratings.titles)
    print(f"{len(ratings):,} ratings of {films:,} films by {people:,} people")
    everything = np.ones(len(ratings), bool)
    space = Films(ratings, everything, np.random.default_rng(0).random(films) >= 0.1)
    film = int(np.bincount(ratings.film).argmax())
    print(f"similar to {ratings.titles[film]}:")
    for other, cosine in space.like(film):
        print(f"    {cosine:.2f}  {ratings.titles[other]}")
    found = [measure(ratings, seed) for seed in range(_SPLITS)]
    print(f"root mean square error of held-out ratings, mean ± standard error of {_SPLITS} splits:")
    rows = [["prediction", "error", "standard_error"]]
    for name, said in (
        ("film_mean", "mean of the film"),
        ("no_space", "attention, same film and same person"),
        ("attention", "attention, and similar films"),
        ("new_mean", "films folded in, no rating known: mean of all"),
        ("new_attention", "films folded in, no rating known: attention"),
    ):
        errors = np.array([getattr(one, name) for one in found])
        mean, deviation = f"{errors.mean():.3f}", f"{errors.std(ddof=1) / np.sqrt(len(errors)):.3f}"
        rows.append([said, mean, deviation])
        print(f"    {mean} ± {deviation}  {said}")
    if len(sys.argv) == 3:
        with Path(sys.argv[2]).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    better = sum(one.attention < one.film_mean for one in found)
    print(f"    better than the mean of the film in {better} of {_SPLITS} splits; a, b, c of each:")
    print("    " + "  ".join(", ".join(f"{x:g}" for x in one.chosen) for one in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
