"""Groups of rows with equal texts, categories and identifiers, and Gaussian logits with a bandwidth per group."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from qkv.core.typing import Float, Int
from qkv.database.keys.bandwidth import Bandwidth
from qkv.database.keys.columns import Column
from qkv.database.keys.comparisons import DistanceComparison, GroupedDistanceComparison
from qkv.scores import Custom, Gaussian

__all__ = ["gaussian_of_keys", "group_rows", "with_group_bandwidths"]


def gaussian_of_keys(
    query: Float[np.ndarray, "q columns"], key: Float[np.ndarray, "k columns"], bandwidth: Float[np.ndarray, ""]
) -> Float[np.ndarray, "q k"]:
    """Return Gaussian logits with a bandwidth for each key, whose inverse factor is the last column of `key`."""
    squares = np.square(query[:, None, :-1] - key[None, :, :-1]).sum(axis=-1)
    return np.asarray(-0.5 * squares * np.square(key[:, -1] / bandwidth))


def group_rows(columns: list[Column]) -> Int[np.ndarray, " rows"] | None:
    """Return the index of the group of each row, whose cells in all columns are equal, or None without columns."""
    if not columns:
        return None
    codes: dict[object, int] = {}
    cells = [column.cells.tolist() for column in columns]
    rows = zip(*cells, strict=True) if len(cells) > 1 else cells[0]
    return np.array([codes.setdefault(row, len(codes)) for row in rows], np.intp)


def with_group_bandwidths(
    numbers: DistanceComparison,
    chosen: Bandwidth | None,
    groups: Int[np.ndarray, " rows"] | None,
    columns: Sequence[Column],
    indices: tuple[int, ...],
) -> DistanceComparison:
    """Return a comparison with the bandwidth that was chosen for each group, or `numbers` if all are the same.

    Args:
        numbers: the comparison of the numbers among the keys.
        chosen: the chosen bandwidth.
        groups: the group of each row, numbered in the order in which they occur; None without groups.
        columns: the key columns.
        indices: the indices of the columns whose equal cells are a group.
    """
    score = numbers.score
    if chosen is None or groups is None or not chosen.factors or not isinstance(score, Gaussian):
        return numbers
    _, first = np.unique(groups, return_index=True)
    cells = {tuple(columns[index].cells[first[group]] for index in indices): factor for group, factor in chosen.factors}
    least, most = min(cells.values()), max(cells.values())
    note = f"bandwidth multiplied by {least:.3g} to {most:.3g} for {len(cells):,} groups with other errors"
    by_key = Custom(gaussian_of_keys, (np.asarray(score.bandwidth),), numbers.key.shape[1] + 2, "any")
    fields = {f.name: getattr(numbers, f.name) for f in dataclasses.fields(numbers)}
    fields.update(score=by_key, notes=(*numbers.notes, note), group_columns=indices, factors=cells)
    return GroupedDistanceComparison(**fields).with_rows(columns)
