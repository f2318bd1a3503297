"""PyTorch module for attention without projections, with any score, normalizer, mask and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from qkv.cache.kernel import ChunkedTensor, attend_chunked, concat_chunks
from qkv.core.arrays import is_array
from qkv.core.checks import check_probability, describe
from qkv.core.map_batch import align_batch
from qkv.core.positions import Positions
from qkv.core.typing import Float
from qkv.engine import attend, observe
from qkv.errors import KindError, RefusedError
from qkv.masks import Mask
from qkv.masks.base import and_masks, require_mask
from qkv.nn.cache import StateCache
from qkv.nn.checks import require_cache
from qkv.nn.decoding_step import append_and_attend, attend_step
from qkv.nn.part_module import PartModule
from qkv.nn.protocols import COLLECT, AttentionOutput, Cache, CallInputs
from qkv.nn.scores.base import ScoreLike, wrap_score
from qkv.nn.torch_interop import explain_torch_arguments
from qkv.normalizers import Normalizer
from qkv.normalizers.base import require_normalizer
from qkv.plan import Spec
from qkv.plan.checks import as_readouts
from qkv.plan.spec import CallOptions
from qkv.readouts import Readout
from qkv.scores import ScaledDot


@explain_torch_arguments
class Attention(torch.nn.Module):
    """Attention over queries, keys and values without projections.

        weights = normalize(score(query, key), mask)          output = weights @ value

    Args:
        spec: a `qkv.Spec`; the other arguments override its fields.
        score: a score, or a learned one (`nn.Additive(64)`). A learned score with heads expects the heads as
            the last batch axis of the inputs.
        normalizer: as in `qkv.attend`.
        mask: as in `qkv.attend`.
        dropout: probability of dropping a weight during training.
        kernel: as in `qkv.attend`.
        memory: as in `qkv.attend`.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, key_width)`, value `(*batch, k, value_width)` ->
        `(*batch, q, value_width)`

    Raises:
        KindError: if `spec` is not a `Spec`, or `score` is a class of learned scores instead of an instance.

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
        memory: int | str | None = None,
    ) -> None:
        super().__init__()
        if spec is not None and not isinstance(spec, Spec):
            raise KindError(
                f"spec must be a qkv.Spec, got a {type(spec).__name__}. Pass a score as the keyword argument score."
            )
        if spec is not None:
            score = spec.score if score is None else score
            normalizer = spec.normalizer if normalizer is None else normalizer
            mask = spec.mask if mask is None else mask
            dropout = dropout or spec.dropout
        self.score = wrap_score(score)
        self.normalizer = PartModule(None if normalizer is None else require_normalizer(normalizer))
        self.mask = PartModule(None if mask is None else require_mask(mask))
        self.positions = None if spec is None else spec.positions
        self.dropout = check_probability(dropout)
        self.kernel, self.memory = kernel, memory

    def forward(
        self,
        query: Float[Tensor, "*#batch q width"],
        key: Float[Tensor, "*#batch k key_width"] | ChunkedTensor | None = None,
        value: Float[Tensor, "*#batch k value_width"] | ChunkedTensor | None = None,
        *,
        mask: Mask | None = None,
        cache: Cache | None = None,
        readouts: Sequence[Readout] = (),
        positions: Positions | None = None,
    ) -> Float[Tensor, "*batch q value_width"] | AttentionOutput:
        """Return the attention output, or an `AttentionOutput` if readouts are requested.

        Args:
            query: queries.
            key: keys, also those of a cache (`KeyValueCache.key_value`); None means the query.
            value: values; None means the key.
            mask: further mask, combined with the module's own. Its batch axes are those of the call.
            cache: keys and values of earlier calls; those of this call are appended.
            readouts: quantities to read from the weights. The output does not change.
            positions: positions of the queries among the keys, as in `qkv.attend`.
        """
        key = query if key is None else key
        value = key if value is None else value
        for name, x in (("query", query), ("key", key), ("value", value)):
            if not is_array(x) and (name == "query" or cache is not None or not isinstance(x, ChunkedTensor)):
                raise KindError(f"{name} must be a tensor, got {describe(x)}. Convert it with torch.as_tensor.")
        plain = mask is None and positions is None and self.positions is None and not readouts
        step = plain and self.kernel is None and not (self.dropout and self.training)
        keys, values = key, value
        if cache is not None:
            new = cast(Tensor, key), cast(Tensor, value)
            parts = self.score, self.normalizer, self.mask
            output = append_and_attend(cache, query, *new, parts) if step else None
            if output is not None:
                return output
            keys, values = require_cache(cache).append(*new)
        if step:
            output = attend_step(cache, query, keys, values, self.score, self.normalizer, self.mask, self.memory)
            if output is not None:
                return output
        mask, positions = add_cache_mask(cache, mask, positions)
        axes = max(query.ndim, keys.ndim, values.ndim) - 3
        options: CallOptions = {
            "score": align_batch(self.score(), max(axes, 0), None, True),
            "normalizer": self.normalizer(),
            "mask": and_masks(self.mask(), mask),
            "positions": self.positions if positions is None else positions,
            "dropout": self.dropout if self.training else 0.0,
            "kernel": self.kernel,
            "memory": self.memory,
        }
        return run_attention(query, keys, values, readouts, options, cache)

    def extra_repr(self) -> str:
        """Return the dropout probability as text for `print`, or "" if it is 0."""
        return f"dropout={self.dropout}" if self.dropout else ""


def add_cache_mask(
    cache: Cache | None, mask: Mask | None, positions: Positions | None
) -> tuple[Mask | None, Positions | None]:
    """Return the mask and the positions of a call, with those of the cache, if any."""
    if cache is None:
        return mask, positions
    return and_masks(mask, cache.mask), cache.positions if positions is None else positions


def run_attention(
    query: Float[Tensor, "*#batch q width"],
    key: Float[Tensor, "*#batch k key_width"] | ChunkedTensor,
    value: Float[Tensor, "*#batch k value_width"] | ChunkedTensor,
    readouts: Sequence[Readout],
    options: CallOptions,
    cache: Cache | None = None,
) -> Float[Tensor, "*batch q value_width"] | AttentionOutput:
    """Compute attention with the chunked kernel if it supports the call, otherwise with `attend` or `observe`.

    A `StateCache` computes the attention itself.
    """
    readouts = as_readouts(readouts)
    if readouts and not torch.compiler.is_compiling():
        collect = COLLECT.get()
        if collect is not None:
            collect(CallInputs(query, key, value, options))
    if isinstance(cache, StateCache):
        if readouts or options["dropout"]:
            asked = "readouts" if readouts else "dropout"
            raise RefusedError(
                f"{asked} must not be given with a StateCache, which has no weights, got {asked}. "
                "Use a KeyValueCache, which keeps the keys."
            )
        assert isinstance(key, Tensor)  # as append returns them
        assert isinstance(value, Tensor)
        score, normalizer, mask = options["score"], options["normalizer"], options["mask"]
        return cache.attend(query, key, value, score=score or ScaledDot(), normalizer=normalizer, mask=mask)
    if isinstance(key, ChunkedTensor) and isinstance(value, ChunkedTensor):
        if options["kernel"] is None:
            spec = Spec(
                options["score"], options["normalizer"], options["mask"], options["positions"], options["dropout"]
            )
            found = attend_chunked(query, key, value, spec, readouts, options["memory"])
            if found is not None:
                result, plan = found
                output = cast(Tensor, result.output)
                return AttentionOutput(output, result.readouts, plan) if readouts else output
        key, value = concat_chunks(key), concat_chunks(value)
    if not readouts:
        return cast(Tensor, attend(query, key, value, **options))
    observed = observe(query, key, value, readouts=readouts, **options)
    return AttentionOutput(cast(Tensor, observed.output), observed.readouts, observed.plan)
