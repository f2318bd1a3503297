"""What was seen of one call of one layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from qkv.core.equation import bind_call
from qkv.errors import OptionError
from qkv.interop.huggingface.attention_call import AttentionCall
from qkv.interop.huggingface.model_layers import AttentionKind
from qkv.normalizers import Softmax

__all__ = ["SavedCall", "AttentionRecord"]


@dataclass(frozen=True)
class SavedCall:
    """Query, key and the logarithm of each row's total, from which any tile of the weights comes exactly."""

    call: AttentionCall
    log_sum_exp: torch.Tensor

    def tile(self, element: int, head: int, rows: tuple[int, int], cols: tuple[int, int]) -> torch.Tensor:
        """Weights `(rows, cols)`: e^(logit − log-sum-exp)."""
        one, options = self.call.select_head(head), self.call.select_head(head).options
        normalizer = options["normalizer"] or Softmax()
        bound = bind_call(
            one.query, one.key, one.value, score=options["score"], normalizer=normalizer,
            mask=options["mask"], positions=options["positions"],
        ).select_batch((element,))  # fmt: skip
        logits = bound.logits(rows, cols)
        if logits is None:
            return self.log_sum_exp.new_zeros((rows[1] - rows[0], cols[1] - cols[0]))
        total = self.log_sum_exp[element, head, rows[0] : rows[1], None]
        found = torch.exp(bound.normalizer.prepare(logits) - torch.where(total == -torch.inf, 0.0, total))
        return found.to(self.log_sum_exp.dtype)


@dataclass(frozen=True)
class AttentionRecord:
    """One call of one layer.

    Attributes:
        call: number of the model's forward in which it ran; in `generate`, the step.
        kind: "self", or "cross" where queries look at another sequence.
        causal: whether the mask keeps queries from what follows them; at a single query it has nothing to.
        output_shape: of the layer's output, (batch, queries, heads, width).
        readouts: one result for each readout, in the order asked, with the axes (batch, heads, …).
        heads: which heads were read.
        queries, keys: how many.
        query_start: position of the first query among the keys.
        key_mask: `(batch, keys)`, which keys are no padding; None: all.
        plan: how it ran; None where the model computed its weights itself.
        saved: what tiles are made of, where that was asked for.
    """

    call: int
    kind: AttentionKind
    causal: bool
    output_shape: tuple[int, ...]
    readouts: tuple[Any, ...]
    heads: tuple[int, ...]
    queries: int
    keys: int
    query_start: int = 0
    key_mask: torch.Tensor | None = None
    plan: Any = field(default=None, repr=False)
    saved: SavedCall | None = field(default=None, repr=False)

    @property
    def exact(self) -> bool:
        """Whether it was read by the engine, and not from weights that the model made."""
        return self.plan is not None

    def tile(
        self,
        rows: tuple[int, int],
        cols: tuple[int, int],
        *,
        element: int = 0,
        head: int = 0,
    ) -> torch.Tensor:
        """The exact weights of some queries and keys, `(rows, cols)`, at any time after the run.

        Args:
            rows, cols: first, and one past the last.
            element: of the batch.
            head: of the layer.

        Raises:
            OptionError: nothing was kept: `record(…, save_inputs=True)` does.
        """
        if self.saved is None:
            raise OptionError(
                "query and key of this call were not kept. Record with save_inputs=True, or ask for the readouts "
                "Rows or Dense."
            )
        return self.saved.tile(element, head, rows, cols)
