"""Class `Problem`, which describes a call without its data and is the input of the planner."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, cast

from qkv.core.arrays import accumulation_dtype, dtype_name, itemsize, requires_gradient
from qkv.core.axes import Axes
from qkv.core.function_part import Verdict, key_of_code
from qkv.core.tile import Tile
from qkv.core.typing import Shaped, Tensor
from qkv.normalizers import Normalizer
from qkv.plan.devices import CPU, Device
from qkv.plan.spec import Spec
from qkv.readouts import Readout
from qkv.scores.base import GeneralScore, Score
from qkv.scores.custom import Custom
from qkv.scores.forms import Distance
from qkv.scores.wrapper import WrapperScore

if TYPE_CHECKING:
    import torch


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
    """
    while score.form.inner is not None:
        score = score.form.inner
    own = score
    while isinstance(own, WrapperScore):  # of projections
        own = own.score
    stated = own.elements if isinstance(own, Custom) else type(own).elements_per_logit is not _ASSUMED
    if stated or not isinstance(own, GeneralScore) or axes.text:
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


def _trial(score: Score, axes: Axes, dtype: str) -> int | None:
    import warnings

    import torch

    arrays = cast("tuple[Tensor, ...]", score.arrays())
    lengths = [n for shape in (axes.query, axes.key, *(x.shape for x in arrays)) for n in shape]
    free = [n for n in _LENGTHS if not any(m % n == 0 and m > 0 for m in lengths)]
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
    score: Score, query: Shaped[Tensor, "*_"], key: Shaped[Tensor, "*_"], tile: Tile, lengths: tuple[int, int]
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


@dataclass(frozen=True, eq=False)
class Problem:
    """Description of a call without its data, from which the planner chooses a kernel.

    Attributes:
        spec: score, normalizer, mask, positions and dropout.
        axes: shapes of query, key and value.
        library: "numpy", "torch", "jax" or "tensorflow".
        dtype: name of the floating-point dtype of the output.
        rounded_to: name of the narrower dtype to which the caller of a prepared function rounds the output; "": none.
        gradient: whether an array requires a gradient.
        readouts: readouts of the weights.
        memory: budget for scratch memory in bytes, that is, memory besides inputs, output and gradients.
        traced: "" if the arrays hold data, otherwise the kind of tracing: "export", "vmap" (also for
            `torch.func.grad`), "jvp" (forward-mode derivatives) or "twice" (higher derivatives).
        device: the processor on which the call runs.
        recomputes: whether kernels that do not save their statistics run the forward pass again in backward, as they
            do in the operator of `torch.compile`.
        trials: verdicts on score, normalizer and mask by the trial of parts that users write; () before it.
    """

    spec: Spec
    axes: Axes
    library: str = "numpy"
    dtype: str = "float32"
    gradient: bool = False
    readouts: tuple[Readout, ...] = ()
    memory: int = 512 * 2**20
    traced: str = ""
    device: Device = CPU
    rounded_to: str = ""
    recomputes: bool = False
    trials: tuple[Verdict | None, ...] = ()

    @property
    def score(self) -> Score:
        """The score of the call."""
        assert self.spec.score is not None
        return self.spec.score

    @property
    def normalizer(self) -> Normalizer:
        """The normalizer of the call."""
        assert self.spec.normalizer is not None
        return self.spec.normalizer

    @cached_property
    def tile(self) -> Tile:
        """The tile that covers the whole call."""
        return Tile.whole(self.axes.q, self.axes.k, self.axes.batch, self.spec.positions)

    @cached_property
    def itemsize(self) -> int:
        """Number of bytes of an element in the dtype of accumulation, which is at least float32."""
        return max(4, itemsize(self.dtype))

    @cached_property
    def elements_per_logit(self) -> int:
        """Number of array elements that the score holds in memory at once for each logit."""
        if self.library == "torch" and not self.traced:
            if isinstance(self.score.form, Distance):
                return 1
            found = elements_by_trial(self.score, self.axes, self.dtype)
            if found is not None:
                return found
        return max(1, self.score.elements_per_logit(self.axes.query_width, self.axes.key_width))

    @property
    def flop_per_pair(self) -> int:
        """Floating-point operations per pair of query and key, for the score, normalizer and weighted sum.

        The normalizer counts as 10 operations.
        """
        score = self.score.flop_per_logit(self.axes.query_width, self.axes.key_width)
        return score + 10 + 2 * self.axes.value_width

    @property
    def result_bytes(self) -> int:
        """Number of bytes of what every kernel returns: the output, and the gradients of all arrays of the call."""
        axes, width = self.axes, itemsize(self.dtype)
        size = math.prod(axes.output) * width
        if self.gradient:
            size += (math.prod(axes.query) + math.prod(axes.key) + math.prod(axes.value)) * width
            parts = (*self.score.arrays(), *self.normalizer.arrays())
            size += sum(
                math.prod(x.shape) * itemsize(dtype_name(x))
                for x in parts
                if requires_gradient(x) and None not in x.shape
            )
        return size

    @property
    def readout_bytes(self) -> int:
        """Number of bytes of the results of all readouts."""
        return sum(readout.total_elements(self.tile) for readout in self.readouts) * self.itemsize

    @property
    def cast_bytes(self) -> int:
        """Number of bytes of copies of half-precision arrays in the dtype of accumulation, and of their gradients."""
        axes = self.axes
        if itemsize(self.dtype) >= self.itemsize:
            return 0
        inputs = math.prod(axes.key) + math.prod(axes.query) + math.prod(axes.value)
        # The gradients in that dtype are cast one after the other, so that not all are there at the peak.
        return int((inputs * (1.5 if self.gradient else 1) + math.prod(axes.output)) * self.itemsize)
