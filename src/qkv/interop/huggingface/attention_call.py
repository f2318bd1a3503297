"""A call of transformers' attention interface, said in the words of the engine.

query `(batch, heads, q, width)`, key and value `(batch, key_heads, k, …)`: heads that share a key become one
more batch axis along which key and value are broadcast, so nothing is repeated.

    logits = cap · tanh(scaling · <q, k> / cap) + position bias + float mask      weights = softmax(logits)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from qkv.core.batch import take_batch
from qkv.core.parts import Part
from qkv.core.positions import Positions
from qkv.core.tracing import tracing_mode
from qkv.errors import OptionError, RefusedError, ShapeError
from qkv.interop.huggingface.indexed_mask import IndexedMask
from qkv.interop.huggingface.lazy_mask import LazyMask
from qkv.masks import Causal, Keys, Pairs, Window
from qkv.masks.base import And, Mask
from qkv.normalizers import Normalizer, Softmax
from qkv.scores import Biased, ScaledDot, Score, Softcap

__all__ = ["Registration", "AttentionCall", "is_causal", "padding_mask"]


@dataclass(frozen=True)
class Registration:
    """What a name was registered with.

    Attributes:
        score: instead of the scaled dot product: a score, or a function of the layer that gives one.
        normalizer: instead of softmax: a normalizer, or a function of the layer that gives one.
        kernel, memory: as in `qkv.attend`; without memory, what is linear in the inputs.
    """

    score: Score | Callable[[Any], Score] | None = None
    normalizer: Normalizer | Callable[[Any], Normalizer] | None = None
    kernel: str | None = None
    memory: int | str | None = None

    def score_of(self, module: Any) -> Score | None:
        """The score of a layer."""
        return self.score if self.score is None or isinstance(self.score, Score) else self.score(module)

    def normalizer_of(self, module: Any) -> Normalizer | None:
        """The normalizer of a layer."""
        given = self.normalizer
        return given if given is None or isinstance(given, Normalizer) else given(module)


@dataclass(frozen=True)
class AttentionCall:
    """One call: arrays and parts, with the batch axes (batch, heads) or (batch, key_heads, heads of each).

    Attributes:
        query, key, value: as the engine takes them.
        options: score, normalizer, mask, positions, kernel and memory of `qkv.attend`.
        heads: how many there are.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    options: dict[str, Any]
    heads: int

    @classmethod
    def of(
        cls,
        asked: Registration,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        scaling: Any = None,
        is_causal: bool | None = None,
        softcap: float | None = None,
        position_bias: torch.Tensor | None = None,
        sink: torch.Tensor | None = None,
        indices: torch.Tensor | None = None,
        block_indices: torch.Tensor | None = None,
    ) -> AttentionCall:
        """Read what the model gave.

        Raises:
            ShapeError: query heads are no multiple of key heads.
            OptionError: the model has sinks, and the normalizer that was registered has none.
            RefusedError: the model has another sink for each query.
        """
        heads, key_heads = query.shape[1], key.shape[1]
        if heads % key_heads:
            raise ShapeError(
                f"there are {heads} heads of queries and {key_heads} of keys. The first must be a multiple "
                "of the second."
            )
        split = _HeadLayout(heads, key_heads)
        score = asked.score_of(module)
        if score is None:
            if isinstance(scaling, torch.Tensor):
                query, scaling = query * scaling, 1.0
            score = _dot(scaling, query.shape[-1])
        if softcap is not None:
            score = Softcap(score, cap=float(softcap))
        mask, positions, added = _parse_mask(attention_mask, module, is_causal, query.shape[2], key.shape[2])
        for bias in (position_bias, added):
            if bias is not None:
                score = Biased(score, bias=split.pairs(bias[..., : key.shape[2]].to(query.dtype)))
        if score.positional and positions is None:
            positions = Positions(align="end")
        normalizer = asked.normalizer_of(module)
        if sink is not None:
            if normalizer is not None and not isinstance(normalizer, Softmax):
                raise OptionError(
                    f"{type(module).__name__} has attention sinks, {normalizer} cannot hold them. Register "
                    "Softmax() there: register(normalizer=lambda layer: …)."
                )
            if sink.numel() not in (1, heads):
                raise RefusedError(
                    f"{type(module).__name__} gives sinks of shape {tuple(sink.shape)}; the engine knows one "
                    f"for each of the {heads} heads. Run this model on its own attention."
                )
            temperature = 1.0 if normalizer is None else normalizer.temperature
            normalizer = Softmax(temperature, split.each(sink.to(query.dtype)))
        if mask is not None and split.groups > 1:
            mask = mask.map_arrays(split.queries if _per_head(mask) else split.one)
        if indices is not None:
            mask = _both(mask, IndexedMask(split.pairs(indices[:, None])))
        if block_indices is not None:
            of_each = block_indices.repeat_interleave(heads // block_indices.shape[1], dim=1)
            mask = _both(mask, IndexedMask(split.pairs(of_each), module.indexer.block_size))
        memory = asked.memory or 2**28 + 16 * (query.nbytes + key.nbytes + value.nbytes)
        return cls(
            split.queries(query),
            split.keys(key),
            split.keys(value),
            {
                "score": score,
                "normalizer": normalizer,
                "mask": mask,
                "positions": positions,
                "kernel": asked.kernel,
                "memory": memory,
            },
            heads,
        )

    @property
    def grouped(self) -> bool:
        """Whether heads that share a key stand on an axis of their own."""
        return self.query.ndim == 5

    def per_head(self, x: torch.Tensor) -> torch.Tensor:
        """`(batch, key_heads, heads of each, …)` as `(batch, heads, …)`."""
        return x.flatten(1, 2) if self.grouped else x

    def ungrouped(self) -> AttentionCall:
        """The same call with keys repeated, so that heads are the last batch axis."""
        if not self.grouped:
            return self
        batch, each = self.query.shape[:3], self.query.shape[2]
        key, value = (x.expand((x.shape[0], batch[1], each, *x.shape[3:])) for x in (self.key, self.value))

        def flat(array: torch.Tensor, names: tuple[str, ...] | None) -> torch.Tensor:
            own = array.ndim - len(names or ())
            if names is None or own != 3:
                return array
            if array.shape[1] == array.shape[2] == 1:
                return array[:, 0]
            return array.expand((array.shape[0], batch[1], each, *array.shape[3:])).flatten(1, 2)

        parts = self._parts(lambda part: part._map(flat))
        return AttentionCall(self.query.flatten(1, 2), key.flatten(1, 2), value.flatten(1, 2), parts, self.heads)

    def select_head(self, head: int) -> AttentionCall:
        """The call of one head alone; (batch,) is its batch axis."""
        each = self.query.shape[2] if self.grouped else 1
        index = (slice(None), head // each, head % each) if self.grouped else (slice(None), head)
        query, key, value = (take_batch(x, index, 2) for x in (self.query, self.key, self.value))
        return AttentionCall(query, key, value, self._parts(lambda part: part.select_batch(index)), 1)

    def detached(self) -> AttentionCall:
        """The same call, which no gradient comes back from."""
        query, key, value = (x.detach() for x in (self.query, self.key, self.value))
        parts = self._parts(lambda part: part.map_arrays(lambda x: x.detach()))
        return AttentionCall(query, key, value, parts, self.heads)

    def _parts(self, function: Callable[[Any], Any]) -> dict[str, Any]:
        return {name: function(x) if isinstance(x, Part) else x for name, x in self.options.items()}


@dataclass(frozen=True)
class _HeadLayout:
    """Where heads go: (batch, heads, …) or (batch, key_heads, groups, …)."""

    heads: int
    key_heads: int

    @property
    def groups(self) -> int:
        return self.heads // self.key_heads

    def queries(self, x: torch.Tensor) -> torch.Tensor:
        if self.groups == 1:
            return x
        return x.reshape(x.shape[0], self.key_heads, self.groups, *x.shape[2:])

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, None] if self.groups > 1 else x

    def one(self, x: torch.Tensor) -> torch.Tensor:
        """What is the same for all heads, (batch, 1, …)."""
        return x.unsqueeze(2)

    def pairs(self, x: torch.Tensor) -> torch.Tensor:
        """`(batch or 1, heads or 1, q, k)`, or fewer axes."""
        while x.ndim < 4:
            x = x[None]
        if self.groups == 1:
            return x
        return self.one(x) if x.shape[1] == 1 else self.queries(x)

    def each(self, x: torch.Tensor) -> torch.Tensor:
        """A number for each head."""
        x = x.reshape(1, -1)
        if x.shape[1] == 1:
            x = x.expand(1, self.heads)
        return self.queries(x)


def _dot(scaling: float | None, width: int) -> Score:
    own = 1 / math.sqrt(max(1, width))
    return ScaledDot() if scaling is None or float(scaling) == own else ScaledDot(scale=float(scaling))


def _parse_mask(
    mask: Any, module: Any, causal: bool | None, q: int, k: int
) -> tuple[Mask | None, Positions | None, torch.Tensor | None]:
    """Mask, positions and what is added to the logits."""
    if mask is None:
        causal = causal if causal is not None else getattr(module, "is_causal", False)
        if not causal or q == 1:
            return None, None, None
        # As transformers' `sdpa`: query 0 stands at key 0, what follows is room in a static cache.
        return Causal(align="start"), Positions(align="start"), None
    if isinstance(mask, LazyMask):
        shown: Any = mask if mask.shape[-1] == k else mask[:, :, :, :k]
        if isinstance(shown, LazyMask) and shown.array is None:
            return *shown.parts(), None
        mask = shown.dense() if isinstance(shown, LazyMask) else shown
    if mask.ndim == 2:
        return Keys(mask[:, None, :k].to(torch.bool)), None, None
    mask = mask[..., :k]
    while mask.ndim < 4:
        mask = mask[None]
    if mask.dtype == torch.bool:
        return Pairs(mask), None, None
    if not mask.requires_grad and not tracing_mode(mask):
        # Only 0 and what excludes: then it is a mask, and what is masked is not read.
        allowed = mask == 0
        if bool((allowed | (mask <= torch.finfo(mask.dtype).min / 2)).all()):
            return Pairs(allowed), None, None
    return None, None, mask


def _per_head(mask: Mask) -> bool:
    return isinstance(mask, Pairs) and mask.array.shape[1] != 1


def _both(mask: Mask | None, other: Mask) -> Mask:
    return other if mask is None else And(mask, other)


def is_causal(mask: Mask | None, positions: Positions | None) -> bool:
    """Whether the mask keeps every query from what follows it."""
    if isinstance(mask, And):
        return is_causal(mask.left, positions) or is_causal(mask.right, positions)
    if isinstance(mask, Causal):
        return True
    if isinstance(mask, Window):
        return mask.after == 0
    if isinstance(mask, Pairs):
        q, k = mask.array.shape[-2:]
        return q > 1 and q <= k and not bool(mask.array.triu(1 + k - q).any())
    return False


def padding_mask(mask: Mask | None) -> torch.Tensor | None:
    """Which keys are real, `(batch, k)`, where the mask says so for all queries."""
    if isinstance(mask, And):
        found = [x for x in (padding_mask(mask.left), padding_mask(mask.right)) if x is not None]
        return reduce(torch.logical_and, found) if found else None
    if not isinstance(mask, Keys):
        return None
    array: torch.Tensor = mask.array
    return array.reshape(array.shape[0], array.shape[-1]) if array.ndim > 1 else array[None]
