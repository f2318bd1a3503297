"""Define the fitted model of a soft join, and save it as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.core.files import write_atomic
from qkv.core.typing import Float
from qkv.errors import DataError
from qkv.join.agreement_levels import LEVELS, append_log_odds, level_log_odds
from qkv.join.compared_columns import KINDS, Kind
from qkv.join.comparison_vectors import ComparisonVectors

__all__ = ["JoinModel"]

_FORMAT = "qkv join"
_VERSION = 2


@dataclass(frozen=True, eq=False)
class JoinModel:
    """Fitted model of a soft join, which maps the comparison vector of a pair to the log odds of a match.

    Attributes:
        on: `(left name, right name)` of each compared column.
        kinds: kind of each compared column, by its name in the left table.
        log_odds: unsupervised log odds of each agreement level, `(columns, levels)`.
        learned: supervised weights of the comparison vector and of each column's log odds; None without labels.
        bias: prior log odds.
        threshold: smallest weight of a match.
        notes: sentences about how the model was fitted.
    """

    on: tuple[tuple[str, str], ...]
    kinds: dict[str, Kind]
    log_odds: Float[np.ndarray, "columns levels"]
    learned: Float[np.ndarray, " weights"] | None
    bias: float
    threshold: float
    notes: tuple[str, ...]

    def logits(
        self, measures: ComparisonVectors, found: Float[np.ndarray, "pairs similarities"]
    ) -> Float[np.ndarray, " pairs"]:
        """Return the log odds of a match for each comparison vector in `found`, `(pairs,)`."""
        log_odds = level_log_odds(measures, found, self.log_odds)
        if self.learned is None:
            return np.asarray(log_odds.sum(axis=1) + self.bias)
        return np.asarray(append_log_odds(found, log_odds) @ self.learned + self.bias)

    def save(self, path: str | Path) -> None:
        """Write the model to a JSON file.

        Raises:
            DataError: the file cannot be written.
        """
        content = {"format": _FORMAT, "version": _VERSION, **asdict(self), "log_odds": self.log_odds.tolist()}
        content["learned"] = None if self.learned is None else self.learned.tolist()
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        write_atomic(Path(path), text.encode() + b"\n", "the model")

    @staticmethod
    def load(path: str | Path) -> JoinModel:
        """Load a model from a file that `save` wrote.

        Raises:
            DataError: the file does not exist, or contains no join model.
        """
        name = str(path)
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(
                f"the join model must be a readable file, got {name!r}: {error.strerror}. Check the path."
            ) from None
        except ValueError:
            raise DataError(
                f"{name!r} must be a join model, got a file that is not JSON. Pass a file that `qkv fit join` wrote."
            ) from None
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise DataError(f"{name!r} must be a join model, got other JSON. Pass a file that `qkv fit join` wrote.")
        if content.get("version") != _VERSION:
            raise DataError(
                f"the model {name!r} must have version {_VERSION}, got {content.get('version')!r}. Fit the "
                "model again, or load it with the version of qkv that saved it."
            )
        try:
            return _from_json(content)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DataError(
                f"the join model {name!r} must be undamaged, but reading it failed: {error}. Fit the model again."
            ) from None


def _from_json(content: dict[str, Any]) -> JoinModel:
    model = JoinModel(
        on=tuple((str(left), str(right)) for left, right in content["on"]),
        kinds=dict(content["kinds"]),
        log_odds=np.array(content["log_odds"], np.float64),
        learned=None if content["learned"] is None else np.array(content["learned"], np.float64),
        bias=float(content["bias"]),
        threshold=float(content["threshold"]),
        notes=tuple(map(str, content["notes"])),
    )
    if set(model.kinds) != {left for left, _ in model.on} or not set(model.kinds.values()) <= set(KINDS):
        raise ValueError(
            f"kinds must map each compared column to one of {', '.join(KINDS)}, got {model.kinds} for the columns "
            f"{', '.join(left for left, _ in model.on)}"
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
