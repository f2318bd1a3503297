"""Functions that compare strings: those of RapidFuzz, or, in Pyodide, which lacks it, those in pure Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from qkv.core.extras import require_packages
from qkv.core.progress import checkpoint, current_check
from qkv.core.typing import Num, Shaped

__all__ = ["compare_all", "require_string_functions", "string_functions"]

_PAIRS, _LETTERS = 2**16, 10**8
"""The most pairs of texts, and of letters, that are compared between two checkpoints, in some 30 ms."""
_SAMPLED = 256
"""For fewer letters of queries, and more choices, the number of letters is estimated."""
_QUADRATIC = (
    "distance.OSA.normalized_similarity",
    "distance.Levenshtein.normalized_similarity",
    "distance.LCSseq.similarity",
    "fuzz.token_set_ratio",
)
"""The similarities of which a single pair of texts can take longer."""


@cache
def string_functions() -> Any:
    """Return the package `rapidfuzz`, or on Emscripten without it an object with the parts of it that scores use.

    Raises:
        MissingPackageError: RapidFuzz is not installed, on another platform.

    Example:
        >>> string_functions().distance.OSA.distance("ab", "ba")
        1
    """
    if _needs_python():
        return _python_functions()
    require_string_functions()
    import rapidfuzz

    return rapidfuzz


def require_string_functions() -> None:
    """Raise a `MissingPackageError` if strings cannot be compared on this platform."""
    if not _needs_python():
        require_packages("text scores need", "ask", "rapidfuzz")


def _needs_python() -> bool:
    return sys.platform == "emscripten" and find_spec("rapidfuzz") is None


def _python_functions() -> SimpleNamespace:
    from qkv.scores import string_distances as distance

    return SimpleNamespace(
        distance=distance,
        fuzz=SimpleNamespace(token_set_ratio=distance.token_set_ratio),
        process=SimpleNamespace(cdist=_cdist),
    )


def compare_all(
    queries: Sequence[str | None] | Shaped[np.ndarray, " q"],
    choices: Sequence[str | None] | Shaped[np.ndarray, " k"],
    *,
    scorer: Callable[..., float],
    dtype: str,
    cutoff: float | None = None,
) -> Num[np.ndarray, "q k"]:
    """Return the similarity of each query to each choice, computed between checkpoints that may end it.

    RapidFuzz 3.14 leaves the rows of queries that are None uninitialized, so they are set to 0 here.

    Args:
        queries: texts, or None for missing ones.
        choices: texts, or None for missing ones, whose similarity is 0.
        scorer: a similarity of `string_functions()`.
        dtype: dtype of the result.
        cutoff: similarities below it may be returned as 0.

    Example:
        >>> similarity = string_functions().distance.OSA.normalized_similarity
        >>> compare_all(["ab", None], ["ba", None], scorer=similarity, dtype="float64").tolist()
        [[0.5, 0.0], [0.0, 0.0]]
    """
    if len(queries) * len(choices) <= _PAIRS and _letters(queries, choices) <= _LETTERS:
        out = _compare_block(queries, choices, scorer, dtype, cutoff)
    else:
        out = np.empty((len(queries), len(choices)), dtype)
        _compare_blocks(queries, choices, scorer, cutoff, out)
    missing = [at for at, query in enumerate(queries) if query is None]
    if missing:
        out[missing] = 0
    return out


_Texts: TypeAlias = Sequence[str | None] | Shaped[np.ndarray, " n"]


def _compare_blocks(
    queries: _Texts, choices: _Texts, scorer: Callable[..., float], cutoff: float | None, out: Num[np.ndarray, "q k"]
) -> None:
    """Write similarities to an array, in halves until a block is small."""
    if out.size == 1 and _letters(queries, choices) > 2 * _LETTERS and current_check() is not None:
        # The functions in Python take several times as long, but have checkpoints.
        name = next((name for name in _QUADRATIC if attrgetter(name)(string_functions()) == scorer), None)
        if name is not None:
            out[:] = [[attrgetter(name)(_python_functions())(queries[0], choices[0])]]
            return
    if out.size == 1 or (out.size <= _PAIRS and _letters(queries, choices) <= _LETTERS):
        out[:] = _compare_block(queries, choices, scorer, out.dtype, cutoff)
    elif len(queries) > len(choices):
        half = len(queries) // 2
        _compare_blocks(queries[:half], choices, scorer, cutoff, out[:half])
        _compare_blocks(queries[half:], choices, scorer, cutoff, out[half:])
    else:
        half = len(choices) // 2
        _compare_blocks(queries, choices[:half], scorer, cutoff, out[:, :half])
        _compare_blocks(queries, choices[half:], scorer, cutoff, out[:, half:])


def _compare_block(
    queries: _Texts, choices: _Texts, scorer: Callable[..., float], dtype: DTypeLike, cutoff: float | None
) -> Num[np.ndarray, "q k"]:
    checkpoint()
    cdist = string_functions().process.cdist
    return np.asarray(cdist(queries, choices, scorer=scorer, score_cutoff=cutoff, dtype=dtype))


def _letters(queries: _Texts, choices: _Texts) -> int:
    """Return the number of pairs of letters, estimated from every 64th of many choices if the queries are short."""
    try:
        own = sum(map(len, queries))
        if own < _SAMPLED < len(choices):
            return own * 64 * sum(map(len, choices[::64]))
        return own * sum(map(len, choices))
    except TypeError:  # a text is None
        return _letters([text or "" for text in queries], [text or "" for text in choices])


def _cdist(
    queries: Sequence[str | None],
    choices: Sequence[str | None],
    *,
    scorer: Callable[[str, str], float],
    dtype: str,
    score_cutoff: float | None,
) -> Num[np.ndarray, "q k"]:
    from qkv.scores.string_distances import similarities

    out = np.array(similarities(queries, choices, scorer), dtype=dtype).reshape(len(queries), len(choices))
    return out if score_cutoff is None else np.where(out < score_cutoff, 0, out)
