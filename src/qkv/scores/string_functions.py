"""Functions that compare strings: those of RapidFuzz, or, in Pyodide, which lacks it, those in pure Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np

from qkv.core.extras import require_packages
from qkv.core.typing import Num, Shaped

__all__ = ["compare_all", "require_string_functions", "string_functions"]


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
    """Return the similarity of each query to each choice.

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
    cdist = string_functions().process.cdist
    out = np.asarray(cdist(queries, choices, scorer=scorer, score_cutoff=cutoff, dtype=dtype))
    missing = [at for at, query in enumerate(queries) if query is None]
    if missing:
        out[missing] = 0
    return out


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
