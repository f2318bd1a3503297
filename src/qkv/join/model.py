"""What a join knows: how columns are compared and what each measure is worth. Kept as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.core.files import write_atomic
from qkv.errors import DataError
from qkv.join.agreement_levels import LEVELS, with_worth, worth_of
from qkv.join.compared_columns import KINDS, Kind
from qkv.join.comparison_vectors import ComparisonVectors

__all__ = ["JoinModel"]

_FORMAT = "qkv join"
_VERSION = 1


@dataclass(frozen=True, eq=False)
class JoinModel:
    """The score of a pair, less what a match needs.

    Fields:
        on: `(left name, right name)` of each compared column.
        kinds: what each is compared as, by its left name.
        worth: `(columns, levels)`, what each level of agreement is worth by the tables alone.
        learned: from labels, a weight for each measure and for the worth of each column; None without.
        bias: the log-odds of a pair of which nothing is known.
        threshold: the weight from which a pair is a match.
        notes: sentences about how it was made.
    """

    on: tuple[tuple[str, str], ...]
    kinds: dict[str, Kind]
    worth: np.ndarray
    learned: np.ndarray | None
    bias: float
    threshold: float
    notes: tuple[str, ...]

    def logits(self, measures: ComparisonVectors, found: np.ndarray) -> np.ndarray:
        """Log-odds of a match from `(pairs, measures)`: the score, "no match" having 0."""
        worth = worth_of(measures, found, self.worth)
        if self.learned is None:
            return np.asarray(worth.sum(axis=1) + self.bias)
        return np.asarray(with_worth(found, worth) @ self.learned + self.bias)

    def save(self, path: str | Path) -> None:
        """Write the model as JSON.

        Raises:
            DataError: it cannot be written.
        """
        content = {"format": _FORMAT, "version": _VERSION, **asdict(self), "worth": self.worth.tolist()}
        content["learned"] = None if self.learned is None else self.learned.tolist()
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        write_atomic(Path(path), text.encode() + b"\n", "the model")

    @staticmethod
    def load(path: str | Path) -> JoinModel:
        """Read what `save` wrote.

        Raises:
            DataError: there is no such file, or it is no model of a join.
        """
        name = str(path)
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(f"the model {name!r} cannot be read: {error.strerror}. Check the name.") from None
        except ValueError:
            raise DataError(f"{name!r} is no JSON. Give what `qkv fit join` wrote.") from None
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise DataError(f"{name!r} is no model of a join. Give what `qkv fit join` wrote.")
        if content.get("version") != _VERSION:
            raise DataError(
                f"the model {name!r} has version {content.get('version')!r}, and this qkv reads {_VERSION}. "
                "Fit it again, or use the qkv that wrote it."
            )
        try:
            return _built(content)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DataError(f"the model {name!r} is damaged ({error}). Fit it again.") from None


def _built(content: dict[str, Any]) -> JoinModel:
    model = JoinModel(
        on=tuple((str(left), str(right)) for left, right in content["on"]),
        kinds=dict(content["kinds"]),
        worth=np.array(content["worth"], np.float64),
        learned=None if content["learned"] is None else np.array(content["learned"], np.float64),
        bias=float(content["bias"]),
        threshold=float(content["threshold"]),
        notes=tuple(map(str, content["notes"])),
    )
    if set(model.kinds) != {left for left, _ in model.on} or not set(model.kinds.values()) <= set(KINDS):
        raise ValueError("its columns and their kinds do not fit")
    shape = (len(model.on), len(LEVELS) + 2)
    if model.worth.shape != shape:
        raise ValueError(f"its worth has the shape {model.worth.shape}, and {shape} is wanted")
    learned = np.zeros(0) if model.learned is None else model.learned
    count = ComparisonVectors.count([model.kinds[left] for left, _ in model.on]) + len(model.on)
    if model.learned is not None and learned.shape != (count,):
        raise ValueError(f"it holds {learned.shape} weights, and {count} are wanted")
    if not np.isfinite([*model.worth.ravel(), *learned, model.bias, model.threshold]).all():
        raise ValueError("a number in it is not finite")
    return model
