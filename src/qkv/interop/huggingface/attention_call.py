"""Translation of a call of transformers' attention interface into the arguments of `qkv.attend`.

    logits = cap · tanh(scaling · <q, k> / cap) + position bias + float mask      weights = softmax(logits)

The query has shape `(batch, heads, q, width)`, key and value `(batch, key_heads, k, …)`. In grouped-query
attention, the heads that share a key become an additional batch axis along which key and value broadcast, so that
keys and values are not repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Literal, TypedDict, TypeVar, cast

import torch

from qkv.core.batch import take_batch
from qkv.core.checks import describe
from qkv.core.parts import Part, array_field
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.core.tracing import tracing_mode
from qkv.core.typing import Array, Bool, Float, Int, Shaped, Tensor
from qkv.errors import KindError, OptionError, RefusedError, ShapeError
from qkv.interop.huggingface.learned_parts import LearnedOption, layer_normalizer, layer_score
from qkv.interop.huggingface.mask_interface import LazyMask
from qkv.interop.huggingface.saved_parts import Json, describe_part
from qkv.masks import AllowedKeys, AllowedPairs, Causal, Window
from qkv.masks.base import And, Mask, and_masks
from qkv.normalizers import Normalizer, Softmax
from qkv.scores import Biased, ScaledDot, Score, Softcap


@dataclass(frozen=True, eq=False)
class IndexedMask(Mask):
    """Mask that allows query i to attend to key j if ⌊j / size⌋ is in `indices[i]`.

    Args:
        indices: integers `(*batch, q, n)`; negative entries are ignored.
        size: number of keys per block.

    Example:
        >>> from qkv.core.tile import Tile
        >>> IndexedMask(torch.tensor([[0, -1], [1, 0]]), size=2).allowed(Tile.whole(2, 4), torch.zeros(()))
        tensor([[ True,  True, False, False],
                [ True,  True,  True,  True]])
    """

    indices: Array = array_field("q", "n")
    size: int = 1

    def allowed(self, tile: Tile, reference: Array) -> Bool[Tensor, "*batch #q k"]:
        """Return a boolean array that is True for the allowed pairs of a tile."""
        indices = cast(torch.Tensor, self.indices)
        first, last = tile.cols[0] // self.size, (tile.cols[1] - 1) // self.size
        count = last - first + 1
        column = indices.to(torch.int64) - first
        # Blocks outside the tile go to one extra column, which is then cut off.
        column = torch.where((column < 0) | (column >= count) | (indices < 0), count, column)
        table = torch.zeros((*column.shape[:-1], count + 1), dtype=torch.bool, device=column.device)
        table = table.scatter(-1, column, True)
        blocks = torch.arange(*tile.cols, device=column.device) // self.size - first
        return table[..., blocks]


P = TypeVar("P", bound=Part)
ScoreFactory = Callable[[torch.nn.Module], Score]
NormalizerFactory = Callable[[torch.nn.Module], Normalizer]


@dataclass(frozen=True)
class Registration:
    """Options that `register` stores for one attention implementation of transformers.

    Attributes:
        score: replaces the scaled dot product: a score, a learned score, or a function from the attention layer to a
            score.
        normalizer: replaces softmax: a normalizer, or a function from the attention layer to a normalizer.
        kernel: as in `qkv.attend`.
        memory: as in `qkv.attend`; None allows memory that is linear in the inputs.
    """

    score: Score | ScoreFactory | LearnedOption | None = None
    normalizer: Normalizer | NormalizerFactory | None = None
    kernel: str | None = None
    memory: int | str | None = None

    @property
    def replaces_parts(self) -> bool:
        """Whether the result differs from the model's own attention, because score or normalizer are replaced."""
        return self.score is not None or self.normalizer is not None

    def describe(self) -> dict[str, Json]:
        """Return the description of score and normalizer that is saved with a model."""
        return {"score": describe_part(self.score), "normalizer": describe_part(self.normalizer)}


def _of_layer(
    name: Literal["score", "normalizer"], option: P | Callable[[torch.nn.Module], P] | None, module: torch.nn.Module
) -> P | None:
    """Return the score or normalizer of an attention layer, which a function of the layer may return; None if unset."""
    if option is None or isinstance(option, Part):
        return option
    found = option(module)
    if found is not None and not isinstance(found, Score if name == "score" else Normalizer):
        raise KindError(
            f"{name} of {type(module).__name__} must be a {name} of qkv.{name}s, got {describe(found)}. Change the "
            f"function that was passed to register as {name}."
        )
    return found


class _AttendOptions(TypedDict):
    """Keyword arguments that are passed to `qkv.attend`."""

    score: Score
    normalizer: Normalizer | None
    mask: Mask | None
    positions: Positions | None
    kernel: str | None
    memory: int | str


@dataclass(frozen=True)
class AttentionCall:
    """Arguments of one call of `qkv.attend`, with batch axes (batch, heads) or (batch, key_heads, group)."""

    query: Float[Tensor, "*batch q width"]
    key: Float[Tensor, "*batch k width"]
    value: Float[Tensor, "*batch k value_width"]
    options: _AttendOptions
    heads: int

    @classmethod
    def from_interface(
        cls,
        registration: Registration,
        module: torch.nn.Module,
        query: Float[Tensor, "batch heads q width"],
        key: Float[Tensor, "batch key_heads k width"],
        value: Float[Tensor, "batch key_heads k value_width"],
        attention_mask: Shaped[Tensor, "*_ keys"] | None,
        *,
        scaling: float | Float[Tensor, "*_"] | None = None,
        is_causal: bool | None = None,
        softcap: float | None = None,
        position_bias: Float[Tensor, "*_ #q bias_keys"] | None = None,
        s_aux: Float[Tensor, "*_"] | None = None,
        sinks: Float[Tensor, "*_"] | None = None,
        indices: Int[Tensor, "batch q n"] | None = None,
        block_indices: Int[Tensor, "batch index_heads q n"] | None = None,
        **ignored: object,
    ) -> AttentionCall:
        """Create a call from the arguments that transformers passes to an attention function.

        The mask already accounts for the arguments in `ignored`, such as sliding windows and sequence lengths.

        Raises:
            ShapeError: the number of query heads is not a multiple of the number of key heads.
            OptionError: the model has attention sinks, and the registered normalizer does not support them.
            RefusedError: the model has a different sink for each query.
        """
        heads, key_heads = query.shape[1], key.shape[1]
        if heads % key_heads:
            raise ShapeError(
                f"the number of query heads must be a multiple of the number of key heads, {key_heads}, got {heads}. "
                "Check num_attention_heads and num_key_value_heads in the config of the model."
            )
        layout = _HeadLayout(heads, key_heads)
        score = layer_score(module, registration.score, query.shape[-1], layout.groups)
        if score is None:
            score = _of_layer("score", cast("Score | ScoreFactory | None", registration.score), module)
        if score is None:
            if isinstance(scaling, torch.Tensor):
                query, scaling = query * scaling, 1.0
            scale = None if scaling is None else float(scaling)
            score = ScaledDot(scale=None if scale == 1 / math.sqrt(max(1, query.shape[-1])) else scale)
        if softcap is not None:
            score = Softcap(score, cap=float(softcap))
        mask, positions, float_mask = _parse_mask(attention_mask, module, is_causal, query.shape[2], key.shape[2])
        for bias in (position_bias, float_mask):
            if bias is not None:
                score = Biased(score, bias=layout.split_pairs(bias[..., : key.shape[2]].to(query.dtype)))
        if score.positional and positions is None:
            positions = Positions(align="end")
        normalizer = layer_normalizer(module, registration.normalizer, layout.groups)
        if normalizer is None:
            normalizer = _of_layer("normalizer", registration.normalizer, module)
        sink = sinks if s_aux is None else s_aux
        if sink is not None:
            if normalizer is not None and not isinstance(normalizer, Softmax):
                raise OptionError(
                    f"normalizer must be Softmax for {type(module).__name__}, which has attention sinks, got "
                    f"{normalizer}. Register Softmax() for this layer with register(normalizer=lambda layer: …)."
                )
            if sink.numel() not in (1, heads):
                raise RefusedError(
                    f"sinks of {type(module).__name__} must have one element for each of the {heads} heads, got shape "
                    f"{tuple(sink.shape)}. Choose another attn_implementation for this model, such as 'eager'."
                )
            temperature = 1.0 if normalizer is None else normalizer.temperature
            normalizer = Softmax(temperature, layout.split_heads(sink.to(query.dtype).reshape(1, -1).expand(1, heads)))
        if mask is not None and layout.group_size > 1:
            per_head_mask = isinstance(mask, AllowedPairs) and mask.array.shape[1] != 1
            mask = mask.map_arrays(layout.split_heads if per_head_mask else lambda x: torch.unsqueeze(x, 2))  # type: ignore[arg-type]
        if indices is not None:
            mask = and_masks(mask, IndexedMask(layout.split_pairs(indices[:, None])))
        if block_indices is not None:
            per_head = block_indices.repeat_interleave(heads // block_indices.shape[1], dim=1)
            block_size = int(module.indexer.block_size)  # type: ignore[union-attr, arg-type]
            mask = and_masks(mask, IndexedMask(layout.split_pairs(per_head), block_size))
        return cls.of(
            layout.split_heads(query),
            layout.split_keys(key),
            layout.split_keys(value),
            heads,
            score=score,
            normalizer=normalizer,
            mask=mask,
            positions=positions,
            kernel=registration.kernel,
            memory=registration.memory,
        )

    @classmethod
    def of(
        cls,
        query: Float[Tensor, "*#batch q width"],
        key: Float[Tensor, "*#batch k width"],
        value: Float[Tensor, "*#batch k value_width"],
        heads: int,
        score: Score,
        normalizer: Normalizer | None = None,
        mask: Mask | None = None,
        positions: Positions | None = None,
        *,
        kernel: str | None = None,
        memory: int | str | None = None,
    ) -> AttentionCall:
        """Return a call, with memory that is linear in the inputs unless a limit is given."""
        options = _AttendOptions(
            score=score,
            normalizer=normalizer,
            mask=mask,
            positions=positions,
            kernel=kernel,
            memory=memory or linear_memory(query.nbytes + key.nbytes + value.nbytes),
        )
        return cls(query, key, value, options, heads)

    @property
    def grouped(self) -> bool:
        """Whether the heads are split into two batch axes, (key_heads, group)."""
        return self.query.ndim == 5

    def merge_heads(self, x: Shaped[Tensor, "batch ..."]) -> Shaped[Tensor, "batch ..."]:
        """Return an array `(batch, key_heads, group, …)` of a grouped call reshaped to `(batch, heads, …)`.

        An array of a call that is not grouped is returned unchanged.
        """
        return x.flatten(1, 2) if self.grouped else x

    def ungrouped(self) -> AttentionCall:
        """Return an equivalent call with keys expanded to all heads, so that heads are one batch axis."""
        if not self.grouped:
            return self
        heads = self.query.shape[1:3]

        def merge(array: torch.Tensor) -> torch.Tensor:
            return array.expand((array.shape[0], *heads, *array.shape[3:])).flatten(1, 2)

        def merge_field(array: torch.Tensor, names: tuple[str, ...] | None) -> torch.Tensor:
            if names is None or array.ndim - len(names) != 3:
                return array
            return array[:, 0] if array.shape[1] == array.shape[2] == 1 else merge(array)

        return self._map(merge, lambda part: part._map(merge_field), self.heads)

    def select_head(self, head: int) -> AttentionCall:
        """Return the call restricted to one head, whose only batch axis is (batch,)."""
        index = (slice(None), *(divmod(head, self.query.shape[2]) if self.grouped else (head,)))
        return self._map(lambda x: take_batch(x, index, 2), lambda part: part.select_batch(index), 1)

    def detached(self) -> AttentionCall:
        """Return the same call with all tensors detached from the autograd graph."""
        detach = torch.Tensor.detach
        return self._map(detach, lambda part: part.map_arrays(detach), self.heads)  # type: ignore[arg-type]

    def _map(
        self,
        array: Callable[[Float[Tensor, "*batch rows columns"]], Float[Tensor, "*new_batch rows columns"]],
        part: Callable[[Part], Part],
        heads: int,
    ) -> AttentionCall:
        options = {name: part(x) if isinstance(x, Part) else x for name, x in self.options.items()}
        query, key, value = map(array, (self.query, self.key, self.value))
        return AttentionCall(query, key, value, cast(_AttendOptions, options), heads)


@dataclass(frozen=True)
class _HeadLayout:
    """Conversion of arrays `(batch, heads, …)` to `(batch, key_heads, group, …)` in grouped-query attention."""

    heads: int
    key_heads: int

    @property
    def group_size(self) -> int:
        return self.heads // self.key_heads

    @property
    def groups(self) -> tuple[int, int] | None:
        return (self.key_heads, self.group_size) if self.group_size > 1 else None

    def split_heads(
        self, x: Shaped[Tensor, "batch heads *rest"]
    ) -> Shaped[Tensor, "batch heads *rest"] | Shaped[Tensor, "batch key_heads group *rest"]:
        if self.group_size == 1:
            return x
        return x.reshape(x.shape[0], self.key_heads, self.group_size, *x.shape[2:])

    def split_keys(
        self, x: Shaped[Tensor, "batch key_heads *rest"]
    ) -> Shaped[Tensor, "batch key_heads *rest"] | Shaped[Tensor, "batch key_heads 1 *rest"]:
        return x[:, :, None] if self.group_size > 1 else x

    def split_pairs(self, x: Shaped[Tensor, "*axes rows columns"]) -> Shaped[Tensor, "*split_axes rows columns"]:
        """Split the head axis of an array that broadcasts to `(batch, heads, q, k)`.

        Leading axes may be absent.
        """
        x = x[(None,) * (4 - x.ndim)]
        if self.group_size == 1:
            return x
        return x.unsqueeze(2) if x.shape[1] == 1 else self.split_heads(x)


def linear_memory(size: int) -> int:
    """Return a budget for scratch memory that is linear in the size of the inputs, both in bytes.

    It is rounded up to a power of two, because steps of a decoding loop share plans only if their budgets are equal.
    """
    return 1 << (2**28 + 16 * size).bit_length()


def _parse_mask(
    mask: Shaped[Tensor, "*_ keys"] | None, module: torch.nn.Module, causal: bool | None, q: int, k: int
) -> tuple[Mask | None, Positions | None, Float[Tensor, "#batch #heads #q k"] | None]:
    """Return the mask, the positions, and the float mask to add to the logits. Each may be None."""
    if mask is None:
        causal = causal if causal is not None else bool(getattr(module, "is_causal", False))
        if not causal or q == 1:
            return None, None, None
        # As in transformers' `sdpa`: query 0 has position 0; later keys are unused slots of a static cache.
        return Causal(align="start"), Positions(align="start"), None
    if isinstance(mask, LazyMask):
        cropped = mask if mask.shape[-1] == k else mask[:, :, :, :k]
        if isinstance(cropped, LazyMask) and cropped.array is None:
            return *cropped.parts(), None
        mask = cropped.dense() if isinstance(cropped, LazyMask) else cropped
    if mask.ndim == 2:
        return AllowedKeys(mask[:, None, :k].to(torch.bool)), None, None
    mask = mask[..., :k]
    mask = mask[(None,) * (4 - mask.ndim)]
    if mask.dtype == torch.bool:
        return AllowedPairs(mask), None, None
    if not mask.requires_grad and not tracing_mode(mask):
        # A float mask that only holds 0 and very negative elements is converted to a boolean mask, so that masked
        # values are never read.
        allowed = mask == 0
        if bool((allowed | (mask <= torch.finfo(mask.dtype).min / 2)).all()):
            return AllowedPairs(allowed), None, None
    return None, None, mask


def is_causal(mask: Mask | None) -> bool:
    """Return whether a mask is known to exclude all keys after the position of each query."""
    if isinstance(mask, And):
        return is_causal(mask.left) or is_causal(mask.right)
    if isinstance(mask, Causal):
        return True
    if isinstance(mask, Window):
        return mask.after == 0
    if isinstance(mask, AllowedPairs):
        q, k = mask.array.shape[-2:]
        return q > 1 and q <= k and not bool(mask.array.triu(1 + k - q).any())  # type: ignore[attr-defined]
    return False


def key_padding(mask: Mask | None) -> Bool[Tensor, "#batch k"] | None:
    """Return a boolean array that is True for keys that are not padding, or None without a mask of keys."""
    if isinstance(mask, And):
        found = [x for x in (key_padding(mask.left), key_padding(mask.right)) if x is not None]
        return reduce(torch.logical_and, found) if found else None
    if not isinstance(mask, AllowedKeys):
        return None
    array = cast(torch.Tensor, mask.array)
    return array.reshape(array.shape[0], array.shape[-1]) if array.ndim > 1 else array[None]
