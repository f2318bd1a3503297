"""The question that runs the model of a view again: what changes if heads are ablated or scaled."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Float
from qkv.errors import DataError, OptionError
from qkv.look.predictions import COUNT, Predictions, Targets, predict, token_names
from qkv.look.recorded_layers import call_module

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from qkv.core.typing import Shaped, Tensor


_LOCK = threading.RLock()
"""Held while a model runs, because the server answers several requests at once and hooks change the model."""


@dataclass(frozen=True, eq=False)
class Effect:
    """Outputs of a model before and after a change of heads.

    Attributes:
        before: `(q, vocabulary)` logits, or `(q, width)` vectors of the last layer of a model without language model
            head.
        after: the same with changed heads.
        predictions: predictions of the unchanged and of the changed model; None without language model head.
        divergence: `(q,)`, Kullback-Leibler divergence Σ p log(p / p′) of the changed from the unchanged distribution,
            in nats; for vectors the relative change ‖after − before‖ / ‖before‖.
        tokenizer: tokenizer of the model; None without language model head.
    """

    before: Float[Tensor, "q outputs"] = field(repr=False)
    after: Float[Tensor, "q outputs"] = field(repr=False)
    predictions: tuple[Predictions, Predictions] | None
    divergence: Float[np.ndarray, " q"]
    tokenizer: PreTrainedTokenizerBase | None = field(default=None, repr=False)

    def tokens(self, query: int, count: int = COUNT) -> list[tuple[str, float, float]]:
        """Return the most probable tokens at a query with their probabilities before and after the change.

        The list is the union of the `count` most probable tokens before and of those after, by decreasing probability
        before. It is empty for a model without language model head.
        """
        if self.tokenizer is None:
            return []
        before, after = (logits[query].softmax(dim=-1).cpu().numpy() for logits in (self.before, self.after))
        listed = {int(i) for shares in (before, after) for i in np.argsort(-shares, kind="stable")[:count]}
        order = sorted(listed, key=lambda i: -before[i])
        names = token_names(self.tokenizer, order)
        return [(name, float(before[i]), float(after[i])) for name, i in zip(names, order, strict=True)]

    @property
    def loss(self) -> tuple[float, float] | None:
        """Mean −log probability of the targets before and after, in nats; None without language model head."""
        return None if self.predictions is None else (self.predictions[0].loss, self.predictions[1].loss)


@dataclass(frozen=True, eq=False)
class LiveModel:
    """A model with the inputs of one view.

    Attributes:
        module: the model.
        inputs: inputs of its `forward`: keyword arguments as a mapping, positional arguments as a tuple or list, or one
            tensor.
        layers: name of the attention module of each layer of the view.
        first_row: row of the model's output that belongs to the first query of the view.
        targets: what the logits of the queries predict; None: the outputs are not logits.
        element: index into the batch.
        queries: number of queries of the view, which must be that of the rows of the output; None: not checked.
    """

    module: torch.nn.Module
    inputs: object
    layers: tuple[str, ...]
    first_row: int = 0
    targets: Targets | None = None
    element: int = 0
    queries: int | None = None
    _last: dict[tuple[tuple[tuple[int, int], float], ...], Effect] = field(default_factory=dict, repr=False)

    def effect(self, factors: Mapping[tuple[int, int], float]) -> Effect:
        """Run the model with scaled heads, and compare its output with that of the unchanged model.

        Args:
            factors: factor of the output of each head, by index of layer and head in the view; 0 ablates a head.

        Raises:
            OptionError: a layer or head does not exist.
            DataError: a layer does not use the attention interface of transformers.
        """
        key = tuple(sorted(factors.items()))
        with _LOCK:
            # Imports are within the lock, because threads of Python 3.11 must not parse source at the same time.
            from qkv.interop import scale_heads

            if key not in self._last:
                if wrong := [layer for layer, _ in factors if not 0 <= layer < len(self.layers)]:
                    most = len(self.layers) - 1
                    raise OptionError(
                        f"layer must be between 0 and {most}, got {wrong[0]}. Maps over all heads have no model."
                    )
                before = self._rows()
                with scale_heads(self.module, {(self.layers[i], head): one for (i, head), one in factors.items()}):
                    after = self._rows()
                # One change at a time is in memory: its rows are requested one after the other.
                self._last.clear()
                self._last[key] = self._compare(before, after)
            return self._last[key]

    def predict(self, output: object) -> Predictions | None:
        """Return the predicted tokens of an output of the model; None if it has no logits."""
        if self.targets is None:
            return None
        return predict(output_rows(output, self.first_row, self.element)[: len(self.targets.ids)], self.targets)

    def _rows(self) -> Float[Tensor, "q outputs"]:
        import torch

        with torch.no_grad():
            rows = output_rows(call_module(self.module, self.inputs), self.first_row, self.element)
        if self.queries is not None and len(rows) != self.queries:
            raise DataError(
                f"the model must return one row for each query of the view, {self.queries}, got {len(rows)} rows. "
                "Choose a view of the layers from which the output is computed."
            )
        return rows if self.targets is None else rows[: len(self.targets.ids)]

    def _compare(self, before: Float[Tensor, "q outputs"], after: Float[Tensor, "q outputs"]) -> Effect:
        if self.targets is None:
            change = (after - before).norm(dim=-1) / before.norm(dim=-1).clamp(min=1e-30)
            return Effect(before, after, None, change.double().cpu().numpy())
        logs, changed = before.log_softmax(dim=-1), after.log_softmax(dim=-1)
        divergence = (logs.exp() * (logs - changed)).sum(dim=-1).clamp(min=0)
        both = predict(before, self.targets), predict(after, self.targets)
        return Effect(before, after, both, divergence.double().cpu().numpy(), self.targets.tokenizer)


def output_rows(output: object, first_row: int = 0, element: int = 0) -> Float[Tensor, "q outputs"]:
    """Return the logits of a model's output, or the vectors of its last layer, of one batch element in float32."""
    import torch

    found: Shaped[torch.Tensor, "*_"] | None = output if isinstance(output, torch.Tensor) else None
    for name in ("logits", "last_hidden_state"):
        found = getattr(output, name, None) if found is None else found
    if found is None or found.ndim != 3:
        raise DataError(
            "the model must return logits or last_hidden_state of shape (batch, tokens, …), got "
            f"{type(output).__name__}. Use a model whose output has one row for each token."
        )
    return found[element, first_row:].float()
