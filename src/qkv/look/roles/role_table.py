"""Heads by roles, with intervals and baselines; as text, JSON, a picture, and labels for the page."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qkv.core.files import write_atomic
from qkv.look.figure import INK, new_figure
from qkv.look.views import HeadRole

__all__ = ["Row", "Table"]

_FEWEST = 30
"""Sentences that a label wants at least."""
_MARGIN = 0.1


@dataclass(frozen=True)
class Row:
    """A head's score for a role over the sentences of a group.

    Fields:
        role, group: what was asked, of which sentences.
        layer, head: counted from 0.
        score, low, high: the mean, and its 95 % interval.
        count: sentences, or questions.
        baseline: the better of the rules without a model.
        nearest, fixed: accuracy of the nearest candidate and of the best fixed offset; None for roles of
            position, whose baseline is uniform weights.
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


@dataclass(frozen=True)
class Table:
    """Every row, of one model."""

    model: str
    sentences: int
    rows: tuple[Row, ...]

    def roles(self) -> list[str]:
        """The roles there are, in the order of the rows."""
        return list(dict.fromkeys(row.role for row in self.rows))

    def of(self, role: str, group: str = "all") -> list[Row]:
        """The heads for a role, best first."""
        found = [row for row in self.rows if row.role == role and row.group == group]
        return sorted(found, key=lambda row: -row.score)

    def groups(self, role: str) -> list[str]:
        """The groups of sentences of a role."""
        return list(dict.fromkeys(row.group for row in self.rows if row.role == role))

    def labels(self) -> dict[tuple[int, int], tuple[HeadRole, ...]]:
        """Heads with a role, for the badges of a page.

        A head has a role where the lower end of its interval is above the baseline by a tenth, its score is
        at least one half, and there were 30 sentences or more. `broad` heads come within a tenth of uniform.
        """
        found: dict[tuple[int, int], list[HeadRole]] = {}
        for row in self.rows:
            if row.group != "all" or row.count < _FEWEST:
                continue
            clear = row.low >= 0.9 if row.role == "broad" else row.low >= row.baseline + _MARGIN
            if clear and row.score >= 0.5:
                role = HeadRole(row.role, round(row.score, 3), round(row.baseline, 3))
                found.setdefault((row.layer, row.head), []).append(role)
        return {place: tuple(roles) for place, roles in found.items()}

    def text(self, best: int = 3, groups: bool = False) -> str:
        """The best heads of each role, as lines.

        Args:
            best: how many heads of each role.
            groups: also for each group of sentences.
        """
        counted = f"{self.sentences:,} sentence{'s' * (self.sentences != 1)}"
        lines = [f"{self.model}, {counted}; scores with 95 % intervals", ""]
        lines.append(f"{'role':<14}{'sentences':<18}{'head':<8}{'score':<8}{'interval':<16}{'baseline':<10}count")
        for role in self.roles():
            for group in self.groups(role) if groups else ["all"]:
                lines += [
                    f"{role:<14}{group:<18}{f'{row.layer}.{row.head}':<8}{row.score:<8.3f}"
                    f"{f'{row.low:.3f}–{row.high:.3f}':<16}{row.baseline:<10.3f}{row.count}"
                    for row in self.of(role, group)[:best]
                ]
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write every row as JSON.

        Raises:
            DataError: the file cannot be written.
        """
        body = {"model": self.model, "sentences": self.sentences, "rows": [asdict(row) for row in self.rows]}
        write_atomic(Path(path), json.dumps(body, indent=0).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Table:
        """Read what `save` wrote."""
        body = json.loads(Path(path).read_bytes())
        return cls(body["model"], body["sentences"], tuple(Row(**row) for row in body["rows"]))

    def draw(self, roles: Iterable[str] | None = None) -> Any:
        """A matplotlib figure: for each role a map of layers by heads, dark where the role is strong.

        Raises:
            MissingPackageError: matplotlib is not installed.
        """
        shown = list(roles or self.roles())
        across = min(4, len(shown))
        down = -(-len(shown) // across)
        figure = new_figure((2.6 * across + 0.6, 2.2 * down + 0.4))
        grid = figure.subplots(down, across, squeeze=False)
        for axes in grid.flat[len(shown) :]:
            axes.set_axis_off()
        for axes, role in zip(grid.flat, shown, strict=False):
            rows = self.of(role)
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
