"""Class table with its numbers.

logit = score(q_i, k_j) + T[a_i, b_j]
"""

from __future__ import annotations

from typing import Any

import torch

from qkv import scores
from qkv.nn.scores.base import ScoreLike, WrapperScore

__all__ = ["ClassTable"]


class ClassTable(WrapperScore):
    """`scores.ClassTable` with a learned table, for classes that are the same in every call.

    Start: 0, so that it starts as the score within.

    Args:
        query_width, key_width, score, heads, device, dtype: as in `WrapperScore`.
        query_classes: of the queries, integers `(q,)`, such as the column each pixel stands in.
        key_classes: of the keys, integers `(k,)`; those of the queries where None.
        classes: how many classes of queries, and of keys, there are; one more than the largest where None.

    Example:
        >>> ClassTable(4, query_classes=torch.tensor([0, 1, 2, 0]), heads=2)().table.shape
        torch.Size([2, 3, 3])
    """

    query_classes: torch.Tensor
    key_classes: torch.Tensor

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        query_classes: torch.Tensor,
        key_classes: torch.Tensor | None = None,
        classes: tuple[int, int] | None = None,
        score: ScoreLike = None,
        heads: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(query_width, key_width, score=score, heads=heads, device=device, dtype=dtype)
        key_classes = query_classes if key_classes is None else key_classes
        if classes is None:
            classes = (int(query_classes.max()) + 1, int(key_classes.max()) + 1)
        self.register_buffer("query_classes", query_classes.to(device))
        self.register_buffer("key_classes", key_classes.to(device))
        self.table = self.parameter(*classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the class says."""
        self.reset_within()
        torch.nn.init.zeros_(self.table)

    def forward(self) -> scores.Score:
        """The score."""
        return scores.ClassTable(self.within(), self.table, self.query_classes, self.key_classes)
