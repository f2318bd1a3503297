"""Number of array elements per logit that a score written by a user holds in memory, from a trial on a few rows.

The function of the score is called once for each signature, on 11 to 31 queries and keys with made-up elements, and the
shapes of all arrays that PyTorch's operators return are recorded. Both lengths are primes that no other axis of the
arguments is a multiple of, so that an axis of pairs is known by its length.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, cast

from qkv.core.arrays import accumulation_dtype
from qkv.core.axes import Axes
from qkv.core.function_part import key_of_code
from qkv.core.tile import Tile
from qkv.core.typing import Shaped, Tensor
from qkv.scores.base import GeneralScore, Score
from qkv.scores.custom import Custom

if TYPE_CHECKING:
    import torch

__all__ = ["elements_by_trial"]

_LENGTHS = (11, 13, 17, 19, 23, 29, 31)
_MIN_ELEMENTS = 2**18
"""Smallest number of pairs times assumed elements for which a trial is made: below, tiles and memory do not matter."""
_MAX_ELEMENTS = 2**22
"""Largest number of elements that an array of a trial may be expected to have."""
_MAX_TRIALS = 256
_ASSUMED = GeneralScore.elements_per_logit
"""The method that assumes a number, which classes of users may replace by one that states it."""
_TRIALS: OrderedDict[Hashable, int | None] = OrderedDict()
_LOCK = Lock()


def elements_by_trial(score: Score, axes: Axes, dtype: str) -> int | None:
    """Return the largest number of array elements per logit while a score is computed in PyTorch, or None.

    It is None if the score states the number by itself, if the call is small, or if the trial failed: then the number
    that `Score.elements_per_logit` assumes is the best estimate.

    Args:
        score: the score of a call.
        axes: the shapes of the call.
        dtype: name of the dtype of query and key.
    """
    while score.inner is not None:
        score = score.inner
    stated = score.elements if isinstance(score, Custom) else type(score).elements_per_logit is not _ASSUMED
    if stated or not isinstance(score, GeneralScore) or axes.text:
        return None
    if axes.pairs * max(axes.query_width, axes.key_width) < _MIN_ELEMENTS:
        return None
    lead = axes.query[:-2], axes.key[:-2]
    signature = (key_of_code(score), lead, axes.query_width, axes.key_width, dtype)
    with _LOCK:
        if signature in _TRIALS:
            return _TRIALS[signature]
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    if _get_current_dispatch_mode_stack():  # a counter of operations, for example, must not count the trial
        return None
    elements = _trial(score, axes, dtype)
    with _LOCK:
        _TRIALS[signature] = elements
        if len(_TRIALS) > _MAX_TRIALS:
            _TRIALS.popitem(last=False)
    return elements


def _trial(score: GeneralScore, axes: Axes, dtype: str) -> int | None:
    import warnings

    import torch

    arrays = cast("tuple[Tensor, ...]", score.arrays())
    taken = [n for shape in (axes.query, axes.key, *(x.shape for x in arrays)) for n in shape]
    free = [n for n in _LENGTHS if not any(m % n == 0 and m > 0 for m in taken)]
    if len(free) < 2:
        return None
    q, k = free[:2]
    device = arrays[0].device if arrays and isinstance(arrays[0], torch.Tensor) else torch.device("cpu")
    lead, batch = (axes.query[:-2], axes.key[:-2]), axes.batch
    if axes.batch_size * q * k * max(axes.query_width, axes.key_width) > _MAX_ELEMENTS:
        # One batch element. A function that needs all of them fails, or returns logits of a wrong shape.
        lead, batch = ((1,) * len(lead[0]), (1,) * len(lead[1])), (1,) * len(batch)
    query = _made_up((*lead[0], q, axes.query_width), dtype, device)
    key = _made_up((*lead[1], k, axes.key_width), dtype, device) + 0.5
    try:
        with (
            warnings.catch_warnings(),
            torch.random.fork_rng(devices=[]),
            torch.no_grad(),
            torch.autocast(device.type, enabled=False),
        ):
            warnings.simplefilter("ignore")
            kind = accumulation_dtype(query)
            if not score.keeps_dtype:
                query, key = query.to(kind), key.to(kind)
            bound = score.bind(query, batch, kind, {"q": q, "k": k})
            recorded = _record_pair_bytes(bound, query, key, Tile.whole(q, k, batch), (q, k))
    except Exception:  # the function may fail on made-up rows; the call itself reports what is wrong
        return None
    return max(1, math.ceil(recorded / (math.prod(batch) * q * k * int(kind.itemsize))))


def _made_up(shape: Sequence[int], dtype: str, device: torch.device) -> Shaped[Tensor, "*_"]:
    """Return an array of distinct numbers between −1 and 1, without using a random number generator."""
    import torch

    count = math.prod(shape)
    return torch.arange(count, device=device).sin().reshape(tuple(shape)).to(getattr(torch, dtype))


def _record_pair_bytes(
    score: GeneralScore, query: Shaped[Tensor, "*_"], key: Shaped[Tensor, "*_"], tile: Tile, lengths: tuple[int, int]
) -> int:
    """Return the size in bytes of the largest array with an axis of queries and an axis of keys."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    largest = 0

    def holds_pairs(shape: Sequence[int]) -> bool:
        q, k = lengths
        return any(n % (q * k) == 0 for n in shape if n) or (
            any(n % q == 0 for n in shape if n) and any(n % k == 0 for n in shape if n)
        )

    class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            for x in tree_leaves(result):
                if isinstance(x, torch.Tensor) and holds_pairs(x.shape):
                    largest = max(largest, x.untyped_storage().nbytes())  # of a view: that of the array it shows
            return result

    with Recorder():  # type: ignore[no-untyped-call]
        score.logits(query, key, tile)
    return largest
