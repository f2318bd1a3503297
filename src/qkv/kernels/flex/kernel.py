"""Kernel for softmax of modified inner products on GPUs, which calls PyTorch's compiled FlexAttention.

It supports soft caps, ALiBi, biases, relative positions, and masks such as windows, documents and prefixes.

Source: Dong et al. (2024), Flex Attention, https://arxiv.org/abs/2412.05496, and
https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

from qkv.core import arrays
from qkv.core.arrays import asarray_like, is_array
from qkv.core.equation import BoundCall, TorchCall
from qkv.core.tile import Tile
from qkv.core.typing import Array, Num, OutputTensor, Shaped, Tensor
from qkv.kernels.fused.layout import Layout, layout_of
from qkv.kernels.runtime.context import no_autocast
from qkv.kernels.runtime.softmax_limits import softmax_limits
from qkv.masks import AllowedPairs, Blocks, Documents, Mask, Prefix
from qkv.masks.base import And, Not, Or
from qkv.masks.window import BandMask
from qkv.plan.kernel_protocol import Elsewhere, Kernel, Result
from qkv.plan.problem import Problem
from qkv.plan.time_model import amounts_of_work, visible_pairs
from qkv.scores import ALiBi, Biased, Dot, RelativePosition, ScaledDot, Score, Softcap
from qkv.scores.position_bias import bucket

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


ScoreFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
_Element = Callable[[Tensor, Tensor], Tensor]
_Key: TypeAlias = "tuple[object, ...] | None"
_MASKS = (BandMask, Prefix, Documents, AllowedPairs, Blocks)


def modifications_of(score: Score) -> tuple[Score, tuple[Score, ...]]:
    """Return the score within all modifications that FlexAttention can apply, and these, the innermost first."""
    found: list[Score] = []
    while isinstance(score, (Softcap, ALiBi, Biased, RelativePosition)):
        found.append(score)
        score = score.score
    return score, tuple(reversed(found))


def supports_mask(mask: Mask | None) -> bool:
    """Return whether `mask_function` can translate a mask."""
    if mask is None or mask.key_only or isinstance(mask, _MASKS):
        return True
    if isinstance(mask, (And, Or)):
        return supports_mask(mask.left) and supports_mask(mask.right)
    return isinstance(mask, Not) and supports_mask(mask.mask)


class BatchAxes:
    """Mapping of the two batch axes of FlexAttention to the batch axes of a call.

    Args:
        batch: batch axes of the call.
        heads: length of the second of the two axes, into which the last axes of `batch` are merged.
    """

    def __init__(self, batch: tuple[int, ...], heads: int) -> None:
        self.batch, self.heads = batch, heads

    def lookup(self, array: Shaped[Array, "*_"], core: int) -> tuple[Shaped[Tensor, "*_"], _Element]:
        """Return an array with one batch axis, and a function of b and h that returns the index along it."""
        tensor = cast("Tensor", array)
        own = tuple(tensor.shape[: tensor.ndim - core])
        flat = tensor.reshape(-1, *tensor.shape[tensor.ndim - core :])
        own = (1,) * (len(self.batch) - len(own)) + own
        heads, steps, after, stride = self.heads, [], 1, 1
        for length, mine in zip(reversed(self.batch), reversed(own), strict=True):
            if mine != 1:
                steps.append((after, length, stride))
                stride *= length
            after *= length

        def element(b: Tensor, h: Tensor) -> Tensor:
            if not steps:
                return b * 0
            if stride == after:
                return b * heads + h
            index = b * 0
            for divisor, length, step in steps:
                index = index + (b * heads + h) // divisor % length * step
            return index

        return flat, element


def score_function(
    modifications: tuple[Score, ...],
    tile: Tile,
    axes: BatchAxes,
    reference: Num[Tensor, "*_"],
    temperature: float,
    key_bias: Num[Tensor, "*_ k"] | None,
) -> ScoreFunction | None:
    """Return a function that modifies the inner products of a call, or None if nothing is to be changed.

    Args:
        modifications: from `modifications_of`.
        tile: the whole call.
        axes: the batch axes.
        reference: an array of the call.
        temperature: number by which the modified logits are divided.
        key_bias: 0 for each key, or NaN for a key or value that is not finite; None without a mask.
    """
    steps = [_step(each, tile, axes, reference) for each in modifications]
    bias, element = (None, None) if key_bias is None else axes.lookup(key_bias, 1)
    if not steps and bias is None and temperature == 1.0:
        return None

    def modified(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        for step in steps:
            score = step(score, b, h, q, k)
        if temperature != 1.0:
            score = score / temperature
        if bias is not None and element is not None:
            score = score + bias[element(b, h), k]
        return score

    return modified


def _step(score: Score, tile: Tile, axes: BatchAxes, reference: Num[Tensor, "*_"]) -> ScoreFunction:
    import torch

    if isinstance(score, Softcap):
        cap, element = axes.lookup(_scalar(score.cap, reference), 0)

        def softcap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            most = cap[element(b, h)]
            excluded = score == -math.inf
            capped = most * torch.tanh(torch.where(excluded, 0.0, score) / most)
            return torch.where(excluded, -math.inf, capped)

        return softcap
    if isinstance(score, Biased) and score.per_key is not None:
        per_key, element = axes.lookup(score.per_key, 1)
        last = per_key.shape[-1] != 1
        return lambda score, b, h, q, k: _clamped(score + per_key[element(b, h), k if last else k * 0])
    if isinstance(score, Biased):
        pairs, element = axes.lookup(cast("Array", score.bias), 2)
        rows, cols = (n != 1 for n in pairs.shape[-2:])
        return lambda score, b, h, q, k: _clamped(
            score + pairs[element(b, h), q if rows else q * 0, k if cols else k * 0]
        )
    offset, positioned = axes.lookup(_scalar(tile.offset(), reference, torch.int64), 0)
    if isinstance(score, ALiBi):
        slope, element = axes.lookup(_scalar(score.slope, reference), 0)
        return lambda score, b, h, q, k: score - slope[element(b, h)] * (k - q - offset[positioned(b, h)]).abs()
    assert isinstance(score, RelativePosition)
    table, element = axes.lookup(score.table, 1)
    options = table.shape[-1], score.bidirectional, score.max_distance
    return lambda score, b, h, q, k: score + table[element(b, h), _bucket(k - q - offset[positioned(b, h)], *options)]


def _clamped(score: Tensor) -> Tensor:
    """Return finite logits of at least two thirds of the lowest number: FlexAttention multiplies them by log₂ e."""
    import torch

    lowest = torch.finfo(score.dtype).min * 0.68
    return torch.where(score == -math.inf, score, torch.clamp(score, min=lowest))


def _bucket(relative: Tensor, buckets: int, bidirectional: bool, max_distance: int) -> Tensor:
    return cast("Tensor", bucket(cast("Array", relative), buckets, bidirectional, max_distance))


def mask_function(
    mask: Mask, tile: Tile, axes: BatchAxes, reference: Num[Tensor, "*_"]
) -> tuple[MaskFunction, bool, _Key]:
    """Return a mask as a function of indices, whether it depends on the batch, and a key that identifies it.

    The key is None if the mask depends on arrays.
    """
    import torch

    if mask.key_only:
        allowed, element = axes.lookup(mask.allowed(tile, cast("Array", reference)), 2)
        last = allowed.shape[-1] != 1
        return (lambda b, h, q, k: allowed[element(b, h), 0, k if last else k * 0]), allowed.shape[0] != 1, None
    if isinstance(mask, (And, Or)):
        left, right = (mask_function(side, tile, axes, reference) for side in (mask.left, mask.right))
        f, g = left[0], right[0]
        key: _Key = None if left[2] is None or right[2] is None else (type(mask).__name__, left[2], right[2])
        if isinstance(mask, And):
            return (lambda b, h, q, k: f(b, h, q, k) & g(b, h, q, k)), left[1] or right[1], key
        return (lambda b, h, q, k: f(b, h, q, k) | g(b, h, q, k)), left[1] or right[1], key
    if isinstance(mask, Not):
        inner, batched, key = mask_function(mask.mask, tile, axes, reference)
        return (lambda b, h, q, k: ~inner(b, h, q, k)), batched, None if key is None else ("Not", key)
    if isinstance(mask, Documents):
        queries, element = axes.lookup(mask.query_ids, 1)
        keys, key_element = axes.lookup(cast("Array", mask.key_ids), 1)
        batched = queries.shape[0] != 1 or keys.shape[0] != 1
        return (lambda b, h, q, k: queries[element(b, h), q] == keys[key_element(b, h), k]), batched, None
    if isinstance(mask, AllowedPairs):
        pairs, element = axes.lookup(mask.array, 2)
        rows, cols = (n != 1 for n in pairs.shape[-2:])
        batched = pairs.shape[0] != 1
        return (lambda b, h, q, k: pairs[element(b, h), q if rows else q * 0, k if cols else k * 0]), batched, None
    if isinstance(mask, Blocks):
        layout, element = axes.lookup(mask.layout, 2)
        size = mask.sizes
        return (lambda b, h, q, k: layout[element(b, h), q // size[0], k // size[1]]), layout.shape[0] != 1, None
    align = mask.align if isinstance(mask, BandMask) else None
    start = tile.offset(align)
    offset, positioned = axes.lookup(_scalar(start, reference, torch.int64), 0)
    batched = is_array(start) and offset.shape[0] != 1
    key = ("start", start) if isinstance(start, int) else None
    if isinstance(mask, Prefix):
        length, element = axes.lookup(_scalar(mask.length, reference, torch.int64), 0)
        batched |= length.shape[0] != 1
        key = (*key, "Prefix", mask.length) if key is not None and isinstance(mask.length, int) else None
        return (lambda b, h, q, k: (k < length[element(b, h)]) | (k <= q + offset[positioned(b, h)])), batched, key
    assert isinstance(mask, BandMask)
    before, after = mask.before, mask.after

    def inside(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        distance = k - q - offset[positioned(b, h)]
        allowed = distance == distance if after is None else distance <= after
        return allowed if before is None else allowed & (distance >= -before)

    return inside, batched, None if key is None else (*key, before, after)


def _scalar(x: Array | float, reference: Num[Tensor, "*_"], dtype: object = None) -> Shaped[Tensor, "*batch"]:
    """Return a number or an array as a tensor, which is filled on the device and not copied to it."""
    import torch

    if is_array(x):
        return cast("Tensor", asarray_like(cast("Array", reference), x))
    own = torch.float64 if reference.dtype == torch.float64 else torch.float32
    return torch.full((), cast("float", x), dtype=cast("torch.dtype", dtype) or own, device=reference.device)


_LEAST_WIDTH = 16
"""Smallest width of vectors that FlexAttention's compiled kernel supports."""
_MOST_BLOCK_MASKS = 64
_block_masks: dict[tuple[object, ...], BlockMask] = {}
"""Block masks that depend on no arrays, such as that of a window, by what they depend on."""


def flex_attend(call: TorchCall, compiled: bool) -> OutputTensor:
    """Return the output of a call whose score and mask FlexAttention can apply."""
    import torch
    from torch.nn.attention.flex_attention import AuxRequest

    inner, modifications = modifications_of(call.score)
    key_bias = None
    if call.mask is not None:
        call, key_bias = _without_nonfinite(call)
    with no_autocast(call.value):
        query, key, scale = _lift(call, inner)
        value, width = call.value, call.value.shape[-1]
        if not query.dtype == key.dtype == value.dtype:
            query, key, value = (x.to(torch.promote_types(query.dtype, torch.float32)) for x in (query, key, value))
        query, key, value = _padded(query), _padded(key), _padded(value)
        layout, (query, key, value) = _four_axes(call, query, key, value)
        temperature = cast("float", call.normalizer.temperature)
        if not modifications:
            scale, temperature = scale / temperature, 1.0
        axes = BatchAxes(call.tile.batch, layout.heads[1])
        modify = score_function(modifications, call.tile, axes, call.value, temperature, key_bias)
        blocks = None if call.mask is None else _block_mask(call, axes, layout, compiled)
        output, more = _flex_attention(compiled)(
            query,
            key,
            value,
            score_mod=modify,
            block_mask=blocks,
            scale=scale,
            enable_gqa=layout.grouped,
            return_aux=AuxRequest(lse=True),
        )
        # The output of rows without keys is not documented.
        output = torch.where((more.lse == -math.inf)[..., None], 0.0, output)
    return layout.output(output, width)


def _lift(call: TorchCall, score: Score) -> tuple[Num[Tensor, "*_ q lifted"], Num[Tensor, "*_ k lifted"], float]:
    tile = dataclasses.replace(call.tile, centre=score.centre(call.key))
    query, key, scale = score.scaled_lift(call.query, call.key, tile)
    return cast("Tensor", query), cast("Tensor", key), scale


def _padded(x: Num[Tensor, "*_ n width"]) -> Num[Tensor, "*_ n padded"]:
    import torch

    missing = _LEAST_WIDTH - x.shape[-1]
    return torch.nn.functional.pad(x, (0, missing)) if missing > 0 else x


def _four_axes(call: TorchCall, *sides: Num[Tensor, "*_"]) -> tuple[Layout, tuple[Num[Tensor, "b heads n width"], ...]]:
    batch = call.tile.batch
    layout = layout_of(batch, *(tuple(x.shape[:-2]) for x in sides))
    if layout is None:  # the lift broadcast the inputs to batch axes of the score's arrays
        sides = tuple(x.expand((*batch, *x.shape[-2:])) for x in sides)
        layout = layout_of(batch, batch, batch, batch)
        assert layout is not None
    query, key, value = sides
    return layout, layout.sides((query, key, value))


def _without_nonfinite(call: TorchCall) -> tuple[TorchCall, Num[Tensor, "*_ k"]]:
    """Return a call with keys and values that are not finite set to 0, and NaN for these keys and 0 for others."""
    import torch

    bias = (call.key.detach() * 0).sum(-1) + (call.value.detach() * 0).sum(-1)
    key, value = (torch.where(x.isfinite(), x, 0.0) for x in (call.key, call.value))
    dtype = torch.float64 if bias.dtype == torch.float64 else torch.float32
    return dataclasses.replace(call, key=key, value=value), bias.to(dtype)


def _block_mask(call: TorchCall, axes: BatchAxes, layout: Layout, compiled: bool) -> BlockMask:
    assert call.mask is not None
    function, batched, key = mask_function(call.mask, call.tile, axes, call.value)
    q, k, device = call.tile.q_total, call.tile.k_total, call.value.device
    known = None if key is None else (key, q, k, device, compiled)
    found = None if known is None else _block_masks.get(known)
    if found is None:
        b, h = layout.heads if batched else (None, None)
        found = _create_block_mask(compiled)(function, b, h, q, k, device)
        if known is not None:
            if len(_block_masks) >= _MOST_BLOCK_MASKS:
                _block_masks.clear()
            _block_masks[known] = found
    return found


@cache
def _flex_attention(compiled: bool) -> Any:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention


@cache
def _create_block_mask(compiled: bool) -> Callable[..., BlockMask]:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    return torch.compile(create_block_mask) if compiled else create_block_mask


_BLOCK = 128
"""Number of queries, and of keys, of a block of a block mask."""
_FIRST_RELEASE = (2, 9)
"""First release of PyTorch whose FlexAttention returns the log-sum-exp by `AuxRequest`."""


@dataclass(frozen=True)
class FlexKernel(Kernel):
    """Kernel that calls FlexAttention on lifted queries and keys.

    Args:
        eager: whether FlexAttention runs without a compiler on tensors of any device, for tests.
    """

    name: ClassVar[str] = "flex"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    runs_on_gpu: ClassVar[bool] = True
    eager: bool = False

    def limits(self, problem: Problem) -> Iterator[str]:
        axes = problem.axes
        inner, modifications = modifications_of(problem.score)
        if not (problem.device.is_gpu or self.eager):
            yield Elsewhere("it runs on GPUs")
        if inner.form.lift is None or inner.form.inner is not None:
            yield f"{problem.score} is not an inner product with a soft cap, positions or biases"
        if inner.form.lift != "exact" and any(isinstance(each, Softcap) for each in modifications):
            yield f"{inner} is an inner product only up to a term of the query, which a soft cap changes"
        yield from softmax_limits(problem.normalizer, number=True)
        if problem.readouts:
            yield "it does not support readouts"
        if problem.spec.dropout:
            yield "it does not support dropout"
        if problem.dtype == "float64" and not self.eager:
            yield "it computes in single precision"
        if not supports_mask(problem.spec.mask):
            yield f"the mask {problem.spec.mask} cannot be translated to a function of indices"
        if 0 in (axes.q, axes.k, axes.query_width, axes.key_width, axes.value_width, axes.batch_size):
            yield "an axis is empty"
        if max(inner.lifted_width(axes.query_width, axes.key_width), axes.value_width) > 256:
            yield "it supports vectors up to 256 wide"
        if layout_of(axes.batch, axes.query[:-2], axes.key[:-2], axes.value[:-2]) is None:
            yield "the batch axes cannot be mapped to two without a copy"
        if not _has_flex():
            yield f"PyTorch is older than {_FIRST_RELEASE[0]}.{_FIRST_RELEASE[1]}"

    def describe(self, problem: Problem) -> str:
        inner, modifications = modifications_of(problem.score)
        notes = ["compiled FlexAttention", inner.lift_description()]
        if modifications:
            notes.append(" and ".join(type(each).__name__ for each in modifications) + " applied to each logit")
        if problem.spec.mask is not None:
            notes.append(f"block mask of {_BLOCK} × {_BLOCK} pairs")
        return "; ".join(note for note in notes if note)

    def guards_of(self, problem: Problem) -> tuple[str, ...]:
        """Return what happens to data that is not finite, which is never read back."""
        if problem.spec.mask is None:
            return ()
        return ("NaN and infinity of keys and values are set to 0, and give NaN to queries that may attend to them",)

    def keeps_dtype(self, problem: Problem) -> bool:
        """Return whether queries and keys need no lift: FlexAttention accumulates in single precision."""
        return isinstance(modifications_of(problem.score)[0], (Dot, ScaledDot))

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of copies of lifted or padded inputs, of the output and of the block mask."""
        axes = problem.axes
        width = max(16, modifications_of(problem.score)[0].lifted_width(axes.query_width, axes.key_width))
        rows = axes.batch_size * (axes.q + axes.k)
        copies = (2 * rows * (width + axes.value_width)) * problem.itemsize
        if problem.spec.mask is not None:
            # Four lists of blocks, and their transposes, in 4 bytes for each block.
            copies += axes.batch_size * -(-axes.q // _BLOCK) * -(-axes.k // _BLOCK) * 4 * 4
        return copies * (2 if problem.gradient else 1) + 2**20

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the amounts of work; blocks of pairs that the mask excludes are skipped."""
        return amounts_of_work(problem, visible_pairs(problem, _BLOCK, _BLOCK))

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run FlexAttention, without reading anything back."""
        output = flex_attend(cast("TorchCall", call), compiled=not self.eager)
        return Result(arrays.cast(output, call.out_dtype))


def _has_flex() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2]) >= _FIRST_RELEASE
