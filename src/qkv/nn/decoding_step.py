"""Decoding step of an attention module with a key-value cache: one query per sequence, which attends to all its keys.

The last query of a sequence precedes no key, so that a causal mask allows all keys, and a window the last ones. The
step needs no positions, unless the score does, and at most a mask of padding. The same plan therefore serves steps with
different numbers of keys (`plan/step_cache.py`), and softmax of scaled dot products needs no plan
(`cache/last_query.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, cast

import torch
from torch import Tensor

from qkv.cache.kernel import ChunkedTensor
from qkv.cache.last_query import ALL_KEYS, attend_last, attend_rows, last_keys, prepare_step, share_keys
from qkv.cache.projected_keys import attend_projected
from qkv.core.map_batch import align_batch
from qkv.core.positions import Positions
from qkv.core.typing import Float
from qkv.engine import attend
from qkv.masks import Lengths, Mask
from qkv.nn.cache import KeyValueCache, PagedCache
from qkv.nn.checks import check_width
from qkv.nn.part_module import PartModule, current_part
from qkv.nn.protocols import Cache
from qkv.normalizers import Normalizer
from qkv.scores import Score
from qkv.scores.forms import ScaledProduct

_Parts: TypeAlias = tuple[Callable[[], Score], Callable[[], Normalizer | None], Callable[[], Mask | None]]
"""Modules that return the score, the normalizer and the mask of an attention module."""

_LAST = Positions(align="end")


class _Projections(Protocol):
    """Projections of `nn.MultiHeadAttention`, which a decoding step needs."""

    width: int
    key_width: int
    value_width: int
    heads: int
    key_heads: int
    query_map: torch.nn.Linear | None
    key_map: torch.nn.Linear | None
    value_map: torch.nn.Linear | None


def decode(
    cache: Cache, query: Float[Tensor, "*_ q width"], module: _Projections, parts: _Parts
) -> Float[Tensor, "batch heads 1 head_width"] | None:
    """Project one token per sequence, append its key to the cache and return the heads' outputs, or None.

    None means that the call needs another path, and leaves the cache unchanged. This function is written for speed: at
    batch 1 and width 512 each call of a Python function takes about 1 % of a step.
    """
    if type(cache) is not KeyValueCache or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    if query.ndim != 3 or query.shape[1] != 1 or not module.width == module.key_width == module.value_width:
        return None
    query_map, key_map, value_map = module.query_map, module.key_map, module.value_map
    rows, step = cache.step_rows(), _prepared(*parts)
    if rows is None or step is None or query_map is None or key_map is None or value_map is None:
        return None
    batch, heads, key_heads = check_width("query", query, module.width).shape[0], module.heads, module.key_heads
    left = query_map(query).view(batch, heads, 1, -1)
    key = key_map(query).view(batch, key_heads, 1, -1)
    value = value_map(query).view(batch, key_heads, 1, -1)
    return _append_and_attend(cache, rows, left, key, value, step)


def append_and_attend(
    cache: Cache,
    query: Float[Tensor, "*batch q width"],
    key: Float[Tensor, "*_ k key_width"],
    value: Float[Tensor, "*_ k value_width"],
    parts: _Parts,
) -> Float[Tensor, "*batch 1 value_width"] | None:
    """Append the key of a decoding step to the cache and return the output, or return None and append nothing.

    Supported are softmax of scaled dot products over the keys of one chunk, and data that are finite.
    """
    if type(cache) is not KeyValueCache or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    if not query.shape[-2] == key.shape[-2] == value.shape[-2] == 1:
        return None
    rows, step = cache.step_rows(), _prepared(*parts)
    return None if rows is None or step is None else _append_and_attend(cache, rows, query, key, value, step)


def _prepared(
    score: Callable[[], Score], normalizer: Callable[[], Normalizer | None], mask: Callable[[], Mask | None]
) -> tuple[Score, Normalizer | None, Mask | None] | None:
    """Return the parts of modules if a step can be prepared for them, whatever the width, else None."""
    if not (type(score) is PartModule and type(normalizer) is PartModule and type(mask) is PartModule):
        return None
    if score.arrays or normalizer.arrays or mask.arrays or not isinstance(score.part.form, ScaledProduct):
        return None
    return score.part, normalizer.part, mask.part


def _append_and_attend(
    cache: KeyValueCache,
    rows: tuple[Float[Tensor, "*batch size width"], Float[Tensor, "*batch size value_width"], int],
    query: Float[Tensor, "*_ 1 query_width"],
    key: Float[Tensor, "*_ 1 width"],
    value: Float[Tensor, "*_ 1 value_width"],
    parts: tuple[Score, Normalizer | None, Mask | None],
) -> Float[Tensor, "*_ 1 value_width"] | None:
    """Do as `append_and_attend`, given the memory of the cache and the number of its rows that hold tokens."""
    keys, values, n = rows
    shape, cached = key.shape, keys.shape
    if shape != value.shape or cached != values.shape or shape[:-2] != cached[:-2] or shape[-1] != cached[-1]:
        return None
    if not query.dtype == key.dtype == value.dtype == keys.dtype or query.shape[-1] != shape[-1]:
        return None
    step = prepare_step(*parts, shape[-1])
    if step is None:
        return None
    keys, values = keys.narrow(-2, 0, n + 1), values.narrow(-2, 0, n + 1)
    keys.narrow(-2, n, 1).copy_(key)
    values.narrow(-2, n, 1).copy_(value)
    output = attend_rows(query, keys, values, (key, value), step, cache.window)
    if output is not None:
        cache.commit_row()
    return output


def attend_step(
    cache: Cache | None,
    query: Float[Tensor, "*batch q width"],
    key: Float[Tensor, "*_ k key_width"] | ChunkedTensor,
    value: Float[Tensor, "*_ k value_width"] | ChunkedTensor,
    score: Callable[[], Score],
    normalizer: Callable[[], Normalizer | None],
    mask: Callable[[], Mask | None],
    memory: int | str | None = None,
) -> Float[Tensor, "*batch 1 value_width"] | None:
    """Return the output of a decoding step, or None if the call is not a plain decoding step."""
    if not isinstance(cache, (KeyValueCache, PagedCache)):
        return None
    if not (isinstance(key, ChunkedTensor) and isinstance(value, ChunkedTensor)):
        return None
    if query.shape[-2] != 1 or torch.compiler.is_compiling():
        return None
    parts = current_part(score), current_part(normalizer), current_part(mask)
    output = attend_last(query, key, value, *parts, cache.window, cache.lengths)
    if output is None and isinstance(cache, KeyValueCache) and cache.keeps_projections:
        output = _attend_projected(cache, query, key, value, *parts)
    return _attend_one_chunk(cache, query, key, value, *parts, memory) if output is None else output


def _attend_projected(
    cache: KeyValueCache,
    query: Float[Tensor, "*batch q width"],
    key: ChunkedTensor,
    value: ChunkedTensor,
    score: Score,
    normalizer: Normalizer | None,
    mask: Mask | None,
) -> Float[Tensor, "*batch 1 value_width"] | None:
    """Return the output if the cache can keep the projections of the keys by the score, else None."""
    reach, grouped = last_keys(mask), share_keys(query, key.shape)
    if reach is None or grouped is None or (torch.is_grad_enabled() and query.requires_grad):
        return None
    if torch.is_autocast_enabled(query.device.type):
        return None
    if query.ndim == 3:
        grouped = query
    elif grouped is not query and (score.arrays() or (normalizer is not None and normalizer.arrays())):
        return None
    found = attend_projected(
        cache.projected,
        grouped,
        key,
        value,
        cache.first_position,
        align_batch(score, query.ndim - 3, None, True),
        align_batch(normalizer, query.ndim - 3, None, True),
        reach if cache.window is None else min(reach, cache.window),
    )
    if found is None:
        return None
    output, cache.projected = found
    return output.reshape(*query.shape[:-1], output.shape[-1])


def _attend_one_chunk(
    cache: KeyValueCache | PagedCache,
    query: Float[Tensor, "*batch q width"],
    key: ChunkedTensor,
    value: ChunkedTensor,
    score: Score,
    normalizer: Normalizer | None,
    mask: Mask | None,
    memory: int | str | None,
) -> Float[Tensor, "*batch 1 value_width"] | None:
    """Return the output if all keys and values are in one chunk and need no mask but that of padding, else None."""
    reach, lengths = last_keys(mask), cache.lengths
    if len(key.chunks) != 1 or key.scales[0] is not None or reach is None:
        return None
    keys, values = key.chunks[0], value.chunks[0]
    reach = reach if cache.window is None else min(reach, cache.window)
    k = keys.shape[-2]
    if query.ndim not in (3, 4) or keys.ndim != query.ndim or query.shape[0] != keys.shape[0]:
        return None
    padding, positions = None, _LAST if score.positional else None
    if lengths is not None:
        if reach != ALL_KEYS or score.positional:
            return None
        padding = Lengths(lengths if query.ndim == 3 else lengths[:, None])
    elif reach < k:
        if score.positional:
            return None
        keys, values = keys.narrow(-2, k - reach, reach), values.narrow(-2, k - reach, reach)
    shared = query
    if query.ndim == 4 and query.shape[1] != keys.shape[1]:  # heads that share a key are rows of one matrix
        grouped = None if score.positional else share_keys(query, keys.shape)
        if grouped is None or score.arrays() or (normalizer is not None and normalizer.arrays()):
            return None
        shared = grouped
    output = attend(
        shared,
        keys,
        values,
        score=align_batch(score, query.ndim - 3, None, True),
        normalizer=align_batch(normalizer, query.ndim - 3, None, True),
        mask=padding,
        positions=positions,
        memory=memory,
    )
    return cast("Tensor", output).reshape(*query.shape[:-1], values.shape[-1])
