"""How far each column of a pair agrees, as one number: what is needed where nothing was learned.

    text     max(spelling, 0.95 · contained)       number   max(equal, 0.95 · ratio)
    code     spelling                              moment   max(equal, 0.95 · spelling)

The factor keeps 1 for cells that are equal. Agreement falls into levels, of which 0 is for missing cells.
"""

from typing import Any

import numpy as np

from qkv.join.comparison_vectors import ComparisonVectors

__all__ = ["LEVELS", "agreement", "agreement_levels", "mean_agreement", "with_worth", "worth_of"]

LEVELS = (0.6, 0.8, 0.92, 0.999)
"""Where a level ends and the next begins; the last is for cells that are equal."""
_NOT_EQUAL = 0.95
_WORTH_SCALE = 5.0
"""Worth is a logarithm of odds; so divided it is of the size of the measures, and is shrunk as they are."""


def agreement(measures: ComparisonVectors, found: np.ndarray) -> np.ndarray:
    """The agreement of each column, `(*pairs, columns)`; NaN where a cell is missing."""
    columns, start = [], 0
    for field in measures.fields:
        names = [measure for column, measure in measures.names if column == field.name]
        own: dict[str, Any] = {name: found[..., start + place] for place, name in enumerate(names)}
        start += len(names)
        agreed = {
            "text": lambda own: np.maximum(own["spelling"], _NOT_EQUAL * own["contained"]),
            "code": lambda own: own["spelling"],
            "number": lambda own: np.maximum(own["equal"], _NOT_EQUAL * own["ratio"]),
            "moment": lambda own: np.maximum(own["equal"], _NOT_EQUAL * own["spelling"]),
        }[field.kind](own)
        columns.append(np.where(own["missing"] > 0, np.nan, agreed))
    return np.stack(columns, axis=-1)


def agreement_levels(agreed: np.ndarray) -> np.ndarray:
    """Levels from 1, and 0 where a cell is missing, int8.

    Example:
        >>> agreement_levels(np.array([[np.nan, 0.1, 0.85, 1.0]])).tolist()
        [[0, 1, 3, 5]]
    """
    found = np.searchsorted(np.array(LEVELS), agreed, side="right") + 1
    return np.where(np.isnan(agreed), 0, found).astype(np.int8)


def mean_agreement(agreed: np.ndarray) -> np.ndarray:
    """The mean agreement, drawn to 0 by missing cells: by it candidates are ranked."""
    present = ~np.isnan(agreed)
    total = np.where(present, agreed, 0.0).sum(axis=-1)
    return np.asarray(total / (present.sum(axis=-1) + 1.0))


def worth_of(measures: ComparisonVectors, found: np.ndarray, worth: np.ndarray) -> np.ndarray:
    """What the level of each column is worth, `(pairs, columns)`, from a table `(columns, levels)`."""
    level = agreement_levels(agreement(measures, found))
    return np.stack([worth[column][level[:, column]] for column in range(level.shape[1])], axis=1)


def with_worth(found: np.ndarray, worth: np.ndarray) -> np.ndarray:
    """Measures and worth side by side, as they are learned from."""
    return np.concatenate([found, worth / _WORTH_SCALE], axis=1, dtype=np.float64)
