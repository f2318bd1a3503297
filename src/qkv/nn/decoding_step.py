"""Decoding step of an attention module with a key-value cache: one query per sequence, which attends to all its keys.

The last query of a sequence precedes no key, so that a causal mask allows all keys, and a window the last ones. The
step needs no positions, unless the score does, and at most a mask of padding. The same plan therefore serves steps with
different numbers of keys (`plan/step_cache.py`), and softmax of scaled dot products needs no plan
(`kernels/chunked/last_query.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from qkv.core.positions import Positions
from qkv.core.typing import Float
from qkv.engine import attend
from qkv.kernels.chunked.kernel import ChunkedTensor
from qkv.kernels.chunked.last_query import attend_last, share_keys
from qkv.kernels.chunked.reach import ALL_KEYS, last_keys
from qkv.masks import Lengths, Mask
from qkv.nn.align_batch import align_batch
from qkv.nn.cache import KeyValueCache, PagedCache
from qkv.nn.part_module import current_part
from qkv.nn.protocols import Cache
from qkv.normalizers import Normalizer
from qkv.scores import Score

__all__ = ["attend_step"]

_LAST = Positions(align="end")


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
    """Return the output of a decoding step, or None if the call is not a plain decoding step.

    Args:
        cache: the cache, to which the keys of the queries were appended.
        query: queries.
        key: all keys of the cache.
        value: all values of the cache.
        score: module that returns the score.
        normalizer: module that returns the normalizer.
        mask: module that returns the mask.
        memory: budget for scratch memory, as in `qkv.attend`.
    """
    if not isinstance(cache, (KeyValueCache, PagedCache)):
        return None
    if not (isinstance(key, ChunkedTensor) and isinstance(value, ChunkedTensor)):
        return None
    if query.shape[-2] != 1 or torch.compiler.is_compiling():
        return None
    parts = current_part(score), current_part(normalizer), current_part(mask)
    output = attend_last(query, key, value, *parts, cache.window, cache.lengths)
    return _attend_one_chunk(cache, query, key, value, *parts, memory) if output is None else output


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
