"""Compute how well the two cells of a pair of rows agree in each column, as a number in [0, 1] and as a level.

    text     max(spelling, 0.95 · contained)       number   max(equal, 0.95 · ratio)
    code     spelling                              date     max(equal, 0.95 · spelling)

The factor 0.95 reserves 1 for equal cells. Levels are intervals of the agreement; level 0 means that a cell is
missing.
"""

from __future__ import annotations

import numpy as np

from qkv.core.typing import Float, Int
from qkv.join.comparison_vectors import ComparisonVectors

__all__ = ["LEVELS", "agreement", "agreement_levels", "rarity", "append_log_odds", "level_log_odds", "log_odds_weights"]

LEVELS = (0.6, 0.8, 0.92, 0.999)
"""Boundaries of the levels; the last level is for equal cells."""
_NOT_EQUAL = 0.95
_BEYOND = 1e-3
_LOG_ODDS_SCALE = 5.0
"""Divisor that brings log odds to the scale of the comparison vectors, so that both are regularized equally."""


def agreement(
    measures: ComparisonVectors, found: Float[np.ndarray, "*pairs similarities"]
) -> Float[np.ndarray, "*pairs columns"]:
    """Return the agreement of each pair of rows in each column, `(*pairs, columns)`, which is NaN for missing cells."""
    columns, start = [], 0
    for field in measures.fields:
        names = [measure for column, measure in measures.names if column == field.name]
        own: dict[str, Float[np.ndarray, "*pairs"]] = {
            name: found[..., start + place] for place, name in enumerate(names)
        }
        start += len(names)
        agreed = {
            "text": lambda own: np.maximum(own["spelling"], _NOT_EQUAL * own["contained"]),
            "code": lambda own: own["spelling"],
            "number": lambda own: np.maximum(own["equal"], _NOT_EQUAL * own["ratio"]),
            "date": lambda own: np.maximum(own["equal"], _NOT_EQUAL * own["spelling"]),
        }[field.kind](own)
        columns.append(np.where(own["missing"] > 0, np.nan, agreed))
    return np.stack(columns, axis=-1)


def agreement_levels(agreed: Float[np.ndarray, "*pairs columns"]) -> Int[np.ndarray, "*pairs columns"]:
    """Return the level of each agreement as int8, from 1 to 5. Missing cells (NaN) have level 0.

    Example:
        >>> agreement_levels(np.array([[np.nan, 0.1, 0.85, 1.0]])).tolist()
        [[0, 1, 3, 5]]
    """
    found = np.searchsorted(np.array(LEVELS), agreed, side="right") + 1
    return np.where(np.isnan(agreed), 0, found).astype(np.int8)


def rarity(
    agreed: Float[np.ndarray, "pairs columns"], random: Float[np.ndarray, "random columns"]
) -> Float[np.ndarray, " pairs"]:
    """Return Σ −log(share of random pairs that agree at least as well) over the columns (Fisher's method).

    A column in which unrelated rows often agree, such as a price or a town, thus counts less than a title. A missing
    cell counts 1, the mean over random pairs. Beyond the rarest agreement of random pairs, the agreement decides.

    Example:
        >>> random = np.linspace(0, 1, 101)[:, None]
        >>> rarity(np.array([[0.5], [0.9], [np.nan]]), random).round(2).tolist()
        [0.67, 2.14, 1.0]
    """
    total = np.zeros(len(agreed))
    for column, known in zip(agreed.T, random.T, strict=True):
        ordered = np.sort(known[~np.isnan(known)])
        above = len(ordered) - np.searchsorted(ordered, column, side="left")
        own = np.log((len(ordered) + 1) / (above + 1)) + column * _BEYOND
        total += np.where(np.isnan(column), 1.0, own)
    return total


def level_log_odds(
    measures: ComparisonVectors,
    found: Float[np.ndarray, "pairs similarities"],
    log_odds: Float[np.ndarray, "columns levels"],
) -> Float[np.ndarray, "pairs columns"]:
    """Return the log odds of the agreement of each pair in each column, `(pairs, columns)`.

    Args:
        measures: comparison of the two tables.
        found: comparison vectors of the pairs.
        log_odds: log odds of each agreement level, `(columns, levels)`.
    """
    level = agreement_levels(agreement(measures, found))
    return np.stack([log_odds[column][level[:, column]] for column in range(level.shape[1])], axis=1)


def append_log_odds(
    found: Float[np.ndarray, "pairs similarities"], log_odds: Float[np.ndarray, "pairs columns"]
) -> Float[np.ndarray, "pairs similarities+columns"]:
    """Return the comparison vectors `found` followed by `log_odds / 5`, `(pairs, similarities + columns)`."""
    return np.concatenate([found, log_odds / _LOG_ODDS_SCALE], axis=1, dtype=np.float64)


def log_odds_weights(similarities: int, columns: int) -> Float[np.ndarray, " weights"]:
    """Return the weights of such vectors for which the score is the sum of the log odds of all columns.

    Example:
        >>> log_odds_weights(2, 1).tolist()
        [0.0, 0.0, 5.0]
    """
    return np.concatenate([np.zeros(similarities), np.full(columns, _LOG_ODDS_SCALE)])
