"""A table of the scores of attention heads for roles, with confidence intervals and baselines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.core.files import write_atomic
from qkv.errors import DataError
from qkv.look.figure import INK, new_figure
from qkv.look.views import HeadRole
from qkv.plan.cost import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["HeadScore", "RoleTable"]

_MIN_COUNT = 30
"""Minimum number of sentences or questions for a role."""
_MARGIN = 0.1


@dataclass(frozen=True)
class HeadScore:
    """The score of one attention head for one role, measured over a group of sentences.

    Attributes:
        role: name of the role.
        group: name of the group of sentences.
        layer, head: indices of the head.
        score: mean score.
        low, high: bounds of the 95 % confidence interval of the mean.
        count: number of sentences or questions.
        baseline: score of the best rule that needs no model.
        nearest, fixed: accuracy of the nearest candidate and of the best fixed offset; None for positional roles,
            whose baseline is uniform weights.
        neither: share of the questions in which another word than the candidates has a larger weight than each of
            them; None for roles without named candidates. The score still counts which candidate has more weight.
    """

    role: str
    group: str
    layer: int
    head: int
    score: float
    low: float
    high: float
    count: int
    baseline: float
    nearest: float | None = None
    fixed: float | None = None
    neither: float | None = None


@dataclass(frozen=True)
class RoleTable:
    """A table of the scores of all attention heads of a model for each role.

    Attributes:
        model: name of the model.
        sentences: number of sentences.
        rows: one score for each role, group and head.
    """

    model: str
    sentences: int
    rows: tuple[HeadScore, ...]

    def roles(self) -> list[str]:
        """Return the names of the roles, in the order in which they first occur in `rows`."""
        return list(dict.fromkeys(row.role for row in self.rows))

    def ranked(self, role: str, group: str = "all") -> list[HeadScore]:
        """Return the scores of all heads for a role over a group of sentences, in decreasing order of score."""
        scores = [row for row in self.rows if row.role == role and row.group == group]
        return sorted(scores, key=lambda row: -row.score)

    def groups(self, role: str) -> list[str]:
        """Return the names of the sentence groups that have scores for a role."""
        return list(dict.fromkeys(row.group for row in self.rows if row.role == role))

    def labels(self) -> dict[tuple[int, int], tuple[HeadRole, ...]]:
        """Return a dictionary from (layer, head) to the roles of the head. Heads without a role are left out.

        A head has a role if the lower end of its interval exceeds the baseline by at least 0.1, its score is at
        least 0.5, and at least 30 sentences or questions were counted. For the role `broad`, the lower end must be at
        least 0.9 instead.
        """
        labels: dict[tuple[int, int], list[HeadRole]] = {}
        for row in self.rows:
            if row.group != "all" or row.count < _MIN_COUNT:
                continue
            clear = row.low >= 0.9 if row.role == "broad" else row.low >= row.baseline + _MARGIN
            if clear and row.score >= 0.5:
                role = HeadRole(row.role, round(row.score, 3), round(row.baseline, 3), row.count)
                labels.setdefault((row.layer, row.head), []).append(role)
        return {place: tuple(roles) for place, roles in labels.items()}

    def to_text(self, best: int = 3, groups: bool = False) -> str:
        """Return a text table with the scores of the best heads of each role.

        Args:
            best: number of heads per role.
            groups: also include the scores of each group of sentences.
        """
        lines = [f"{self.model}, {counted(self.sentences, 'sentence', 'sentences')}; scores with 95 % intervals", ""]
        lines.append(
            f"{'role':<13}{'sentences':<14}{'head':<7}{'score':<7}{'interval':<13}{'baseline':<10}{'neither':<9}count"
        )
        for role in self.roles():
            for group in self.groups(role) if groups else ["all"]:
                lines += [
                    f"{role:<13}{group:<14}{f'{row.layer}.{row.head}':<7}{row.score:<7.3f}"
                    f"{f'{row.low:.3f}–{row.high:.3f}':<13}{row.baseline:<10.3f}"
                    f"{'' if row.neither is None else f'{row.neither:.3f}':<9}{row.count}"
                    for row in self.ranked(role, group)[:best]
                ]
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a JSON file atomically.

        Raises:
            DataError: the file cannot be written.
        """
        body = {"model": self.model, "sentences": self.sentences, "rows": [asdict(row) for row in self.rows]}
        write_atomic(Path(path), json.dumps(body, indent=0).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RoleTable:
        """Load a table from a file written by `save`.

        Raises:
            DataError: the file does not exist, or does not hold a table of roles.
        """
        try:
            body = json.loads(Path(path).read_bytes())
            return cls(body["model"], body["sentences"], tuple(HeadScore(**row) for row in body["rows"]))
        except OSError as error:
            raise DataError(
                f"the file must be readable, got {str(path)!r}, but reading failed: {error.strerror}. Check the path."
            ) from None
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"the file must hold a table of roles, got {str(path)!r}. Write one with RoleTable.save."
            ) from None

    def plot(self, roles: Iterable[str] | None = None) -> Figure:
        """Plot the scores of each role as a heatmap, with layers as rows and heads as columns.

        Args:
            roles: names of roles; None: all.

        Raises:
            MissingPackageError: matplotlib is not installed.
        """
        chosen = list(roles or self.roles())
        across = min(4, len(chosen))
        down = -(-len(chosen) // across)
        figure = new_figure((2.6 * across + 0.6, 2.2 * down + 0.4))
        grid = figure.subplots(down, across, squeeze=False)
        for axes in grid.flat[len(chosen) :]:
            axes.set_axis_off()
        for axes, role in zip(grid.flat, chosen, strict=False):
            rows = self.ranked(role)
            layers, heads = (1 + max(getattr(row, name) for row in rows) for name in ("layer", "head"))
            scores = [[float("nan")] * heads for _ in range(layers)]
            for row in rows:
                scores[row.layer][row.head] = row.score
            image = axes.imshow(scores, cmap="Reds", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
            axes.set_title(f"{role}\nbaseline {rows[0].baseline:.2f}", fontsize=9, color=INK)
            axes.set_xlabel("head", fontsize=8, color=INK)
            axes.set_ylabel("layer", fontsize=8, color=INK)
            axes.tick_params(labelsize=7, colors=INK)
        figure.colorbar(image, ax=grid, shrink=0.7, label="score")
        return figure
