"""A pairwise covering design of the random calls: each pair of values of two features occurs in one of its rows.

Kernels choose their code by the kind of the score and of the normalizer, so that the combination of kernel and both
kinds is a feature too, called "path": each path occurs with each value of each other feature. Pairs that a kernel
refuses are left out; `Design.count` returns the numbers of both.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["FEATURES", "NONNEGATIVE", "WRAPPERS", "Design", "Row", "fits"]

Row = dict[str, Any]

SCORE_KINDS = {
    "product": ("Dot", "ScaledDot", "Bilinear", "SeparableGate", "Cosine", "Features"),
    "additive": ("Additive",),
    "gated": ("Gated",),
    "distance": ("Gaussian", "Laplace", "Boxcar", "Epanechnikov", "Triangular"),
    "general": ("Constant", "Exact", "Custom", "Projected", "SumOf"),
    "offset": ("Biased", "ALiBi", "QuadraticPosition", "RelativePosition", "ClassTable"),
    "capped": ("Softcap",),
}
NORMALIZER_KINDS = {
    "softmax": ("Softmax",),
    "selecting": ("Hard", "TopK"),
    "sparse": ("Sparsemax", "Entmax15", "Entmax"),
    "linear": ("Sum", "Identity"),
    "other": ("Mean", "Sigmoid", "Custom"),
}
FEATURES: Mapping[str, tuple[Any, ...]] = {
    "score": tuple(itertools.chain(*SCORE_KINDS.values())),
    "inner": ("ScaledDot", "Additive", "Laplace", "Cosine", "Softcap"),  # of a score that wraps another
    "normalizer": tuple(itertools.chain(*NORMALIZER_KINDS.values())),
    "mask": (
        *(
            None,
            "Causal",
            "Window",
            "AllowedKeys",
            "Lengths",
            "AllowedPairs",
            "Prefix",
            "Documents",
            "Blocks",
            "Custom",
        ),
        *("and", "or", "not"),
    ),
    "dtype": ("float32", "float64", "float16", "bfloat16"),
    "gradient": (
        *("none", "all", "query", "key", "value", "score", "normalizer", "any"),  # of which inputs
        *("not query", "not key", "not value", "not score", "not normalizer"),
    ),
    "length": ("empty", "one query", "short", "medium", "chosen"),
    "magnitude": ("ordinary", "tiny", "huge", "offset", "grid", "parameters"),
    "layout": ("contiguous", "transposed", "strided", "heads last", "broadcast"),
    "readout": (None, "Entropy", "LogSumExp", "MeanDistance"),
    "dropout": (0.0, 0.3),
    "batch": ("none", "heads", "broadcast", "grouped", "values", "two axes", "no elements"),
}
"""The features besides the kernel, with their values. `chosen` is a length at which the planner chooses the kernel."""
PATH = ("kernel", "score", "inner", "normalizer")
PLAIN = {
    "mask": None,
    "dtype": "float32",
    "gradient": "all",
    "length": "short",
    "magnitude": "ordinary",
    "layout": "contiguous",
    "readout": None,
    "dropout": 0.0,
    "batch": "heads",
}
"""What every kernel accepts with some score and normalizer."""
REFUSED = ("readout", "dropout", "mask", "batch", "length")
NONNEGATIVE = ("Features", "Constant", "Exact")
"""Scores that the normalizer `Sum` accepts."""
WRAPPERS = ("Softcap", *SCORE_KINDS["offset"], "Projected", "SumOf")


def kind(kinds: Mapping[str, tuple[str, ...]], name: str) -> str:
    return next(kind for kind, names in kinds.items() if name in names)


def score_kind(row: Row) -> str:
    own = kind(SCORE_KINDS, row["score"])
    return f"{own} of {kind(SCORE_KINDS, row['inner'])}" if row["score"] in WRAPPERS else own


class Design:
    """Rows that cover the pairs of the values of features, in the order in which a greedy search finds them.

    Args:
        features: the values of each feature, among them the kernel.
        accepts: returns whether the kernel of a row accepts its call.
        tries: kernels, scores and normalizers that are tried for a pair before it counts as refused.
    """

    def __init__(self, features: Mapping[str, Sequence[Any]], accepts: Callable[[Row], bool], tries: int = 8) -> None:
        self.tries = tries
        self.features, self.accepts, self.rng = dict(features), accepts, np.random.default_rng(0)
        every = [dict(zip(PATH, values, strict=True)) for values in itertools.product(*(features[n] for n in PATH))]
        self.every = [row for row in every if fits(row)]
        self.paths: dict[Any, list[Row]] = {}  # the kernels, scores and normalizers of each path
        for row in self.every:
            self.paths.setdefault(path_of(row), []).append(row)
        items = [(name, x) for name, values in self.features.items() for x in values]
        items += [("path", path) for path in self.paths]
        self.items = {item: n for n, item in enumerate(items)}
        of = np.array([[*self.features, "path"].index(name) for name, _ in items])
        self.wanted = of[:, None] < of  # pairs of values of two features
        for name in PATH:  # are given by the path
            self.wanted[of == list(self.features).index(name), -len(self.paths) :] = False
        self.covered = np.zeros_like(self.wanted)
        self.refused = np.zeros_like(self.wanted)
        self.used: Counter[Any] = Counter()  # rows of each path

    def rows(self, groups: int = 3) -> Iterator[Row]:
        """Yield rows until each pair of some groups is covered, or the kernel refused it in each of some rows.

        Args:
            groups: 1: each path without gradients of the score's arrays, or without any gradient if none are drawn;
                2: also all pairs without paths; 3: all pairs.
        """
        items = list(self.items)
        goals = self.rng.permutation(np.argwhere(self.wanted))
        frozen = self.items["gradient", "not score" if "not score" in self.features["gradient"] else "none"]
        of_path = goals[:, 1] >= len(items) - len(self.paths)
        first = of_path & (goals[:, 0] == frozen)
        for a, b in np.concatenate([goals[first], goals[~of_path], goals[of_path]][:groups]):
            if self.covered[a, b]:
                continue
            for start in self._starts((items[a], items[b])):
                row = self._complete(dict(start))
                for name in REFUSED:  # what a kernel may refuse besides scores and normalizers
                    if not self.accepts(row):
                        row |= {name: PLAIN[name]} if name not in start else {}
                if self.accepts(row):
                    found = self._indices(row)
                    self.covered[found[:, None], found] = True
                    self.used[path_of(row)] += 1
                    yield dict(row)
                    break
            else:
                self.refused[a, b] = True

    def count(self) -> tuple[int, int]:
        """Return the numbers of pairs that the rows so far cover, and of those that a kernel refuses."""
        return int((self.covered & self.wanted).sum()), int((self.refused & ~self.covered).sum())

    def _starts(self, pair: tuple[tuple[str, Any], ...]) -> Iterator[Row]:
        """Yield a pair with kernels, scores and normalizers that accept them in an otherwise plain call."""
        given = dict(pair)
        path = given.pop("path", None)
        rows = self.every if path is None else self.paths[path]
        rows = [row for row in rows if all(row[name] == given[name] for name in PATH if name in given)]
        order = sorted(self.rng.permutation(len(rows)), key=lambda n: self.used[path_of(rows[n])])
        for row in [rows[n] for n in order[: self.tries]]:
            if self.accepts(PLAIN | row) and self.accepts(PLAIN | row | given):
                yield row | given
            else:
                self.used[path_of(row)] += 1

    def _indices(self, row: Row) -> Any:
        given = [(name, x) for name, x in row.items()] + [("path", path_of(row))]
        return np.array(sorted(self.items[item] for item in given if item in self.items))

    def _complete(self, row: Row) -> Row:
        """Return a row with values of the other features, each of which covers the most pairs with those before."""
        for name in map(str, self.rng.permutation([name for name in self.features if name not in row])):
            values = self.features[name]
            before = [self.items[item] for item in row.items()]
            own = [self.items[name, x] for x in values]
            done = self.covered | self.refused
            new = ~(done[np.ix_(own, before)] | done[np.ix_(before, own)].T)
            row[name] = values[int(np.argmax(new.sum(1) + self.rng.random(len(values))))]
        return {name: row[name] for name in self.features}


def path_of(row: Row) -> tuple[str, str, str]:
    return row["kernel"], score_kind(row), kind(NORMALIZER_KINDS, row["normalizer"])


def fits(row: Row) -> bool:
    """Return whether a row describes a call: `Sum` needs logits that are not negative."""
    return row["normalizer"] != "Sum" or row["score"] in NONNEGATIVE
