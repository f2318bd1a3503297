"""The type of a bound call whose arrays are PyTorch tensors, for annotations in kernels that run PyTorch alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkv.core.equation import BoundCall

__all__ = ["TensorCall"]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qkv.core.batch import BatchIndex
    from qkv.core.typing import Array, Tensor
    from qkv.scores.base import Score

    class TensorCall(BoundCall):
        """A `BoundCall` of PyTorch tensors."""

        query: Tensor
        key: Tensor
        value: Tensor

        def queries(self, rows: tuple[int, int]) -> Tensor: ...

        def select_batch(self, index: BatchIndex) -> TensorCall: ...

        def with_arrays(self, tensors: Sequence[Array]) -> TensorCall: ...

        def logits(
            self,
            rows: tuple[int, int],
            cols: tuple[int, int],
            query: Array | None = None,
            key: Array | None = None,
            score: Score | None = None,
        ) -> Tensor | None: ...

else:
    TensorCall = BoundCall
