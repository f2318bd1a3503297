"""Define the fitted model of a soft join, and save it with checksums."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.core.container import Container, read_container, write_container
from qkv.core.typing import Float
from qkv.errors import DataError
from qkv.join.compared_columns import COMPARED_AS, ComparedAs, PairNumbers
from qkv.join.comparison_vectors import LEVELS, ComparisonVectors, append_log_odds, level_log_odds, log_odds_weights

_CONTENT = "a join model"
_VERSION = 3
_REMEDY = "Fit the model again, or restore the file from a copy."


@dataclass(frozen=True, eq=False)
class JoinModel:
    """Fitted model of a soft join, which maps the comparison vector of a pair to the log odds of a match.

    Attributes:
        on: `(left name, right name)` of each compared column.
        kinds: kind of each compared column, by its name in the left table.
        log_odds: unsupervised log odds of each agreement level, `(columns, levels)`.
        learned: weights of the comparison vector and of each column's log odds, from labels or of a single text
            column; None if the log odds are the score.
        bias: prior log odds.
        threshold: smallest weight of a match.
        notes: sentences about how the model was fitted.
    """

    on: tuple[tuple[str, str], ...]
    kinds: dict[str, ComparedAs]
    log_odds: Float[np.ndarray, "columns levels"]
    learned: Float[np.ndarray, " weights"] | None
    bias: float
    threshold: float
    notes: tuple[str, ...]

    def logits(self, measures: ComparisonVectors, found: Float[np.ndarray, "pairs similarities"]) -> PairNumbers:
        """Return the log odds of a match for each comparison vector in `found`, `(pairs,)`."""
        return self.logits_of(append_log_odds(found, level_log_odds(measures, found, self.log_odds)))

    def logits_of(self, vectors: Float[np.ndarray, "pairs measures"]) -> PairNumbers:
        """Return the log odds of a match for comparison vectors with the log odds of each column appended."""
        weights = self.learned
        if weights is None:
            columns = len(self.log_odds)
            weights = log_odds_weights(vectors.shape[1] - columns, columns)
        return np.asarray(vectors @ weights + self.bias)

    def save(self, path: str | Path) -> None:
        """Write the model to a file atomically, with checksums.

        Raises:
            DataError: the file cannot be written.
        """
        settings = {"version": _VERSION, **asdict(self)}
        parts = {"log_odds": settings.pop("log_odds")}
        if settings.pop("learned") is not None:
            parts["learned"] = self.learned
        write_container(Path(path), _CONTENT, settings, parts, "the model")

    @staticmethod
    def load(path: str | Path) -> JoinModel:
        """Load a model from a file that `save` wrote.

        Raises:
            DataError: the file does not exist, or contains no join model.
            DamagedError: the file is damaged.
        """
        return _from_container(read_container(Path(path), _CONTENT, _REMEDY, "the join model"))


def _from_container(container: Container) -> JoinModel:
    fields = container.fields()
    if fields.integer("version", 1) != _VERSION:
        raise DataError(
            f"the model {str(container.path)!r} must have version {_VERSION}, got {fields.integer('version')}. Fit the "
            "model again, or load it with the version of qkv that saved it."
        )
    content = dict(fields.fields)
    content["log_odds"] = container.array("log_odds", 2)
    content["learned"] = container.array("learned", 1) if "learned" in container else None
    try:
        return _from_content(content)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise container.damaged("hold an intact model", f"{error}") from None


def _from_content(content: dict[str, Any]) -> JoinModel:
    model = JoinModel(
        on=tuple((str(left), str(right)) for left, right in content["on"]),
        kinds=dict(content["kinds"]),
        log_odds=np.array(content["log_odds"], np.float64),
        learned=None if content["learned"] is None else np.array(content["learned"], np.float64),
        bias=float(content["bias"]),
        threshold=float(content["threshold"]),
        notes=tuple(map(str, content["notes"])),
    )
    if set(model.kinds) != {left for left, _ in model.on} or not set(model.kinds.values()) <= set(COMPARED_AS):
        raise ValueError(
            f"kinds must map each compared column to one of {', '.join(COMPARED_AS)}, got {model.kinds} for "
            f"the columns {', '.join(left for left, _ in model.on)}"
        )
    shape = (len(model.on), len(LEVELS) + 2)
    if model.log_odds.shape != shape:
        raise ValueError(f"log_odds must have shape (columns, levels) = {shape}, got shape {model.log_odds.shape}")
    learned = np.zeros(0) if model.learned is None else model.learned
    count = ComparisonVectors.count([model.kinds[left] for left, _ in model.on]) + len(model.on)
    if model.learned is not None and learned.shape != (count,):
        raise ValueError(f"learned must have shape ({count},), got shape {learned.shape}")
    if not np.isfinite([*model.log_odds.ravel(), *learned, model.bias, model.threshold]).all():
        raise ValueError("log_odds, learned, bias and threshold must be finite, got NaN or infinity")
    return model
