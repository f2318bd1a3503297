"""Predicted tokens of a language model at each token of a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from qkv.core.typing import Float, Int
from qkv.look.quantize import jsonable
from qkv.look.token_text import is_byte_level, shown_bytes

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from qkv.core.typing import Tensor


COUNT = 10
"""Number of predicted tokens that a page shows."""

TargetKind = Literal["next", "own", "step"]
"""What a row predicts: the next token, the token at its own position, or the generated token of this step."""


class Targets(NamedTuple):
    """The tokens that the rows of a model's output should predict.

    Attributes:
        kind: the kind of the targets.
        ids: `(q,)`, id of the token that each query should predict; −1: none.
        tokenizer: the tokenizer, for the texts of predicted tokens.
    """

    kind: TargetKind
    ids: Int[np.ndarray, " q"]
    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True, eq=False)
class Predictions:
    """The most probable tokens at each query of a view, from the softmax of the model's logits.

    Attributes:
        kind: `"next"`: the tokens that may follow; `"own"`: the tokens that may be at this position, of a masked
            language model; `"step"`: the tokens from which a generated token was chosen.
        tokens: the most probable tokens of each query, by decreasing probability.
        probabilities: `(q, count)`, their probabilities.
        targets: the token that follows, is at this position or was generated; None if there is none.
        target_probabilities: `(q,)`, the probability of the target; NaN if there is none.
        target_ranks: `(q,)`, 1 + the number of more probable tokens; 0 if there is no target.
    """

    kind: TargetKind
    tokens: tuple[tuple[str, ...], ...]
    probabilities: Float[np.ndarray, "q count"]
    targets: tuple[str | None, ...]
    target_probabilities: Float[np.ndarray, " q"]
    target_ranks: Int[np.ndarray, " q"]

    @property
    def loss(self) -> float:
        """The mean of −log probability over the targets, in nats; NaN if there are none."""
        known = ~np.isnan(self.target_probabilities)
        with np.errstate(divide="ignore"):
            return float(-np.log(self.target_probabilities[known]).mean()) if known.any() else float("nan")

    def rows(self) -> list[dict[str, object]]:
        """Return the predictions of each query as a JSON-serializable dictionary."""
        names = ("tokens", "probabilities", "target", "probability", "rank")
        columns = (self.tokens, self.probabilities, self.targets, self.target_probabilities, self.target_ranks)
        return [jsonable(dict(zip(names, row, strict=True)), 4) for row in zip(*columns, strict=True)]


def predict(logits: Float[Tensor, "q vocabulary"], goal: Targets) -> Predictions:
    """Return the most probable tokens of each row of logits."""
    import torch

    # Rows at a time, because probabilities of all rows in float32 may be large.
    found: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]] = []
    targets = goal.ids
    goals = torch.as_tensor(targets, device=logits.device).clamp(min=0)
    for part, aim in zip(torch.split(logits, 64), torch.split(goals, 64), strict=True):
        shares = part.float().softmax(dim=-1)
        most, best = shares.topk(min(COUNT, shares.shape[-1]), dim=-1)
        own = shares.gather(1, aim[:, None])
        found.append((most, best, own[:, 0], (shares > own).sum(dim=-1) + 1))
    most_probable, numbers, own_shares, ranks = (torch.cat(parts).cpu().numpy() for parts in zip(*found, strict=True))
    names = token_names(goal.tokenizer, numbers.reshape(-1).tolist())
    target_names = token_names(goal.tokenizer, [max(0, int(target)) for target in targets])
    width = numbers.shape[1]
    return Predictions(
        goal.kind,
        tuple(tuple(names[i * width : (i + 1) * width]) for i in range(len(numbers))),
        most_probable,
        tuple(None if target < 0 else name for target, name in zip(targets, target_names, strict=True)),
        np.where(targets < 0, np.nan, own_shares),
        np.where(targets < 0, 0, ranks),
    )


def token_names(tokenizer: PreTrainedTokenizerBase, numbers: list[int]) -> list[str]:
    """Return the displayed text of token ids, as in the token axes of views."""
    raw = tokenizer.convert_ids_to_tokens(numbers)
    special = set(tokenizer.all_special_ids)
    shown = is_byte_level(tokenizer)
    # The vocabulary of a model may be padded with ids that its tokenizer does not know.
    return [
        f"[{number}]" if token is None else shown_bytes(token) if shown and number not in special else token
        for token, number in zip(raw, numbers, strict=True)
    ]
