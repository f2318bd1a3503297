"""Attention without maps: a score, a normalizer, a mask and dropout, as a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from qkv import scores
from qkv.core.positions import Positions
from qkv.engine import attend, observe
from qkv.errors import KindError, OptionError
from qkv.kernels.chunked.kernel import ChunkedTensor, attend_chunked, concat_chunks
from qkv.masks import Mask
from qkv.masks.base import require_mask
from qkv.nn.fitting import fitted
from qkv.nn.held import Held
from qkv.nn.protocols import Attended, Cache
from qkv.nn.scores.base import ScoreLike, made
from qkv.normalizers import Normalizer
from qkv.plan import Spec
from qkv.readouts import Readout

__all__ = ["Attention", "both", "probability", "run"]

Tensor = torch.Tensor


class Attention(torch.nn.Module):
    """The equation as a module: queries, keys and values are compared and mixed as they come.

        weights = normalize(score(query, key), mask)          output = weights @ value

    Args:
        spec: what is asked; the other arguments stand in for its fields.
        score: a score, or a learned one (`nn.Additive(64)`); one with heads wants heads as the last batch
            axis of the inputs.
        normalizer, mask: as in `qkv.attend`.
        dropout: probability of dropping a weight while training.
        kernel, memory: as in `qkv.attend`.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, key_width)`, value `(*batch, k, value_width)` ->
        `(*batch, q, value_width)`

    Example:
        >>> from qkv import nn
        >>> attention = nn.Attention(score=nn.Additive(4, 6))
        >>> attention(torch.randn(2, 3, 4), torch.randn(2, 5, 6)).shape
        torch.Size([2, 3, 6])
    """

    def __init__(
        self,
        spec: Spec | None = None,
        *,
        score: ScoreLike = None,
        normalizer: Normalizer | None = None,
        mask: Mask | None = None,
        dropout: float = 0.0,
        kernel: str | None = None,
        memory: int | str = "512 MiB",
    ) -> None:
        super().__init__()
        if spec is not None and not isinstance(spec, Spec):
            raise KindError(f"Attention was given a {type(spec).__name__} as its spec. Give qkv.Spec(…), or score=….")
        if spec is not None:
            score = spec.score if score is None else score
            normalizer = spec.normalizer if normalizer is None else normalizer
            mask = spec.mask if mask is None else mask
            dropout = dropout or spec.dropout
        portable = isinstance(score, type) and issubclass(score, scores.Score)
        if not (score is None or portable or isinstance(score, (scores.Score, torch.nn.Module))):
            name = getattr(score, "__name__", "Additive")
            raise KindError(
                f"Attention does not know the widths that {name} is to compare. Give an instance: "
                f"nn.{name}(query_width, key_width)."
            )
        self.score = made(score, 1, 1, getattr(score, "heads", None))
        self.normalizer = Held(normalizer)
        self.mask = Held(None if mask is None else require_mask(mask))
        self.positions = None if spec is None else spec.positions
        self.dropout = probability(dropout)
        self.kernel, self.memory = kernel, memory

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | None = None,
        cache: Cache | None = None,
        readouts: Sequence[Readout] = (),
        positions: Positions | None = None,
    ) -> Tensor | Attended:
        """The output, or with readouts `Attended`.

        Args:
            query: `(*batch, q, width)`
            key: the query where None.
            value: the key where None.
            mask: besides that of the module; its batch axes are those of the call.
            cache: earlier keys and values; those of this call are appended.
            readouts: what to read from the weights; the output stays the same.
            positions: how query positions relate to key positions, where that matters.
        """
        key = query if key is None else key
        value = key if value is None else value
        if cache is not None:
            key, value = cache.append(key, value)
            mask = both(mask, cache.mask)
            positions = cache.positions if positions is None else positions
        axes = max(query.ndim, key.ndim, value.ndim) - 3
        call = {
            "score": fitted(self.score(), max(axes, 0), None, True),
            "normalizer": self.normalizer(),
            "mask": both(self.mask(), mask),
            "positions": self.positions if positions is None else positions,
            "dropout": self.dropout if self.training else 0.0,
            "kernel": self.kernel,
            "memory": self.memory,
        }
        return run(query, key, value, readouts, call)

    def extra_repr(self) -> str:
        """Dropout, where there is any."""
        return f"dropout={self.dropout}" if self.dropout else ""


def run(query: Tensor, key: Any, value: Any, readouts: Sequence[Readout], call: dict[str, Any]) -> Tensor | Attended:
    """`attend`, or `observe` where something is to be read."""
    if isinstance(key, ChunkedTensor):  # of a cache
        asked = tuple([call[name] for name in ("score", "normalizer", "mask", "positions", "dropout")])
        memory = call["memory"]
        if call["kernel"] is None and (found := attend_chunked(query, key, value, asked, readouts, memory)):
            result, plan = found
            return Attended(result.output, result.readouts, plan) if readouts else result.output
        key, value = concat_chunks(key), concat_chunks(value)
    if not readouts:
        output: Tensor = attend(query, key, value, **call)
        return output
    seen = observe(query, key, value, readouts=readouts, **call)
    return Attended(seen.output, seen.readouts, seen.plan)


def both(one: Mask | None, other: Mask | None) -> Mask | None:
    """Pairs that both masks allow; None allows all."""
    if other is None:
        return one
    return require_mask(other) if one is None else one & require_mask(other)


def probability(dropout: float) -> float:
    """The number, if it is a probability of dropping.

    Raises:
        OptionError: it is not in [0, 1).
    """
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise OptionError(f"dropout is {dropout!r}. It must be a number from 0 up to, not including, 1.")
    return float(dropout)
