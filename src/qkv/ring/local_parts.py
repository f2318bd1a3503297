"""Parts and problems of one rank, and of one chunk of queries and one chunk of keys, in which indices count from 0.

Arrays of a part are sharded like query and key: an array with an axis for queries alone holds those of this rank, and
one with an axis for keys alone those of the rank that holds the keys. An array of pairs has this rank's queries and all
keys, in the order of the whole sequence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from qkv.core.arrays import is_array, namespace
from qkv.core.axes import Axes
from qkv.core.parts import Part
from qkv.core.positions import Align
from qkv.core.tile import Tile
from qkv.core.typing import Array, DType, Shaped
from qkv.errors import PositionError, RefusedError, ShapeError
from qkv.masks import AllowedKeys, AllowedPairs, Blocks, Causal, Custom, Documents, Lengths, Mask, Prefix, Window
from qkv.masks.base import And, Not, Or
from qkv.plan.problem import Problem
from qkv.ring.layout import Limits


def check_mergeable(problem: Problem) -> None:
    """Raise an error if the partial results of a problem cannot be merged around a ring.

    Raises:
        ShapeError: the score does not support the widths of query and key.
        RefusedError: the normalizer selects or samples keys, or needs whole rows, or a decay per key is given.
    """
    problem.score.check_widths(problem.axes.query_width, problem.axes.key_width)
    normalizer = problem.normalizer
    mergeable = normalizer.online and not (normalizer.selects_keys or normalizer.stochastic or normalizer.top_k)
    if not (mergeable or (normalizer.power in (1, 2) and normalizer.scale is not None)):
        raise RefusedError(
            "normalizer must be Softmax, Sum, Mean, Identity, Sigmoid, Sparsemax or Entmax15 in sharded attention, got "
            f"{normalizer}. Choose one of these, or gather all keys and call qkv.attend."
        )
    for part in problem.score.parts():
        if "positions" in {name for _, names in part.array_fields() for name in names or ()}:
            raise RefusedError(
                f"log_decay_per_key must be None in sharded attention, got {problem.score}. Pass log_decay, one number "
                "per head."
            )


AnyPart = TypeVar("AnyPart", bound=Part)
Names = tuple[str, ...] | None
_SUPPORTED = (Causal, Window, AllowedKeys, AllowedPairs, Documents, Lengths, Prefix, Custom, Blocks)


def travels(names: Names) -> bool:
    """Return whether an array with the given axes has one element per key, and moves with the keys around the ring."""
    return names is not None and "k" in names and "q" not in names


def slice_part(part: AnyPart, rows: Limits, cols: Limits, whole_cols: Limits) -> AnyPart:
    """Return a part with its arrays restricted to a chunk of queries and a chunk of keys.

    Args:
        part: part whose arrays of keys are those of the rank that holds the chunk of keys.
        rows: range of the queries in the arrays of this rank.
        cols: range of the keys in the arrays of the rank that holds them.
        whole_cols: range of the keys in the whole sequence.
    """

    def cut(array: Array, names: Names) -> Array:
        if not names or not ({"q", "k"} & set(names)):
            return array
        limits = {"q": rows, "k": cols if travels(names) else whole_cols}
        index: list[object] = [...]
        for name, length in zip(names, array.shape[array.ndim - len(names) :], strict=True):
            index.append(slice(*limits[name]) if name in limits and length != 1 else slice(None))
        sliced: Array = array[tuple(index)]
        return sliced

    return part._map(cut)


def bind_local(part: AnyPart, value: Shaped[Array, "*_"], axes: Axes, dtype: DType) -> tuple[AnyPart, int]:
    """Return a part bound to the call of this rank, and the number of all keys to which its arrays of pairs belong.

    Arrays with one element per key get no axes of length 1, because all ranks must know their length. The number is 0
    without arrays of pairs. It does for arrays that are sharded what `Part.bind` does with the lengths of a call.

    Raises:
        ShapeError: an array does not have the axes that `slice_part` expects.
        KindError: an array belongs to another library than the values.
    """
    pairs = _check_lengths(part, axes.q, axes.k)

    def expanded(array: Array, names: Names) -> Array:
        if names is None or not travels(names):
            return array
        shape = list(array.shape)
        shape[names.index("k") - len(names)] = axes.k
        return namespace(array).broadcast_to(array, tuple(shape))

    return part.bind(value, axes.batch, dtype)._map(expanded), pairs


def chunk_problem(problem: Problem, q: int, k: int) -> Problem:
    """Return the problem of a chunk of `q` queries and a chunk of `k` keys, without mask and positions."""
    axes, spec = problem.axes, problem.spec
    query, key, value = ((*of[:-2], n, of[-1]) for of, n in ((axes.query, q), (axes.key, k), (axes.value, k)))
    return dataclasses.replace(problem, axes=Axes.of(query, key, value), spec=spec.with_(mask=None, positions=None))


def _check_lengths(part: Part, q: int, k: int) -> int:
    """Return the number of all keys to which the arrays of pairs of a part belong, or 0 if it has none.

    Raises:
        ShapeError: an array does not have the axes that `slice_part` expects.
    """
    totals = {0}
    for array, names in part.array_fields():
        if not names or array.ndim < len(names):
            continue
        local_lengths = {"q": q, "k": k} if travels(names) or "k" not in names else {"q": q}
        for name, length in zip(names, array.shape[array.ndim - len(names) :], strict=True):
            if length not in (1, local_lengths.get(name, length)):
                raise ShapeError(
                    f"axis {name} of the arrays of {type(part).__name__} must have length {local_lengths[name]}, as "
                    f"this rank has, got shape {tuple(array.shape)}. Divide the array with qkv.distributed.shard as "
                    "its queries and keys; an array of pairs is divided along its queries alone."
                )
            if name not in local_lengths and name == "k" and length != 1:
                totals.add(length)
    if len(totals) > 2:
        raise ShapeError(
            f"arrays of pairs must have one column for each key of all ranks, got {sorted(totals - {0})} columns. "
            "Divide them along their queries alone."
        )
    return max(totals)


def check_pair_lengths(totals: list[int], k_total: int) -> None:
    """Raise a `ShapeError` if arrays of pairs of some rank do not have a column for each of `k_total` keys."""
    for rank, total in enumerate(totals):
        if total not in (0, k_total):
            raise ShapeError(
                f"arrays of pairs must have {k_total} columns, one for each key of all ranks, got {total} on rank "
                f"{rank}. Divide them along their queries alone."
            )


def query_offset(score: Part, mask: Mask | None, tile: Tile, positional: bool) -> int:
    """Return the position of the first query of the whole sequence.

    Raises:
        PositionError: positions are required but not given, or parts align queries and keys differently.
        RefusedError: the positions differ between batch elements.
    """
    parts = [part for each in (score, mask) if each is not None for part in each.parts()]
    aligns: set[Align | None] = {align for part in parts if (align := getattr(part, "align", None)) is not None}
    offsets = [tile.offset(align) for align in aligns]
    if positional:
        offsets.append(tile.offset())
    if any(is_array(offset) for offset in offsets):
        raise RefusedError(
            "query_start must be an integer in sharded attention, got an array. Call it once for each batch element."
        )
    if len(set(offsets)) > 1:
        raise PositionError(
            f"all masks and the positions of a call must align queries and keys in the same way in sharded attention, "
            f"got first positions {sorted(offsets)}. Pass the same align to all."
        )
    return int(offsets[0]) if offsets else 0


def local_mask(
    mask: Mask, first_query: int, first_key: int, cut: Callable[[Mask], Mask], bind: Callable[[Mask], Mask]
) -> Mask:
    """Return a mask for a chunk of queries and a chunk of keys, whose indices count from 0.

    Args:
        mask: the mask of the whole sequence.
        first_query: index of the first query of the chunk in the whole sequence.
        first_key: index of the first key of the chunk in the whole sequence.
        cut: function that restricts the arrays of a mask to the chunks.
        bind: function that binds a mask to the call.

    Raises:
        RefusedError: the mask is of a class whose chunks are not defined.
    """
    if isinstance(mask, (And, Or)):
        left, right = (local_mask(each, first_query, first_key, cut, bind) for each in (mask.left, mask.right))
        return type(mask)(left, right)
    if isinstance(mask, Not):
        return Not(local_mask(mask.mask, first_query, first_key, cut, bind))
    if isinstance(mask, Causal):
        return Causal()
    if isinstance(mask, (Window, AllowedKeys, AllowedPairs, Documents)):
        return cut(mask)
    if isinstance(mask, (Lengths, Prefix)):
        length = mask.lengths if isinstance(mask, Lengths) else mask.length
        if isinstance(length, int):
            return type(mask)(max(0, length - first_key))
        return mask.replace_arrays([length - first_key])  # a negative number allows no key of the chunk
    if isinstance(mask, Custom):
        return bind(_shifted(mask, first_key))
    if isinstance(mask, Blocks):
        return _blocks(mask, first_query, first_key)
    names = ", ".join(kind.__name__ for kind in _SUPPORTED)
    raise RefusedError(
        f"mask must consist of {names} in sharded attention, got {mask}. Write it as masks.Custom, a function of the "
        "positions of query and key."
    )


def _shifted(mask: Custom, first_key: int) -> Custom:
    """Return a mask that calls the function of `mask` with positions in the whole sequence."""
    function = mask.function

    def shifted(query: Shaped[Array, "*_"], key: Shaped[Array, "*_"], *parameters: Shaped[Array, "*_"]) -> Array:
        return function(query + first_key, key + first_key, *parameters)

    moved = mask.map_arrays(lambda x: x)  # a copy that knows which axes of the parameters are batch axes
    object.__setattr__(moved, "function", shifted)
    object.__setattr__(moved, "align", None)
    return moved


def _blocks(mask: Blocks, first_query: int, first_key: int) -> Blocks:
    size_q, size_k = mask.sizes
    if first_query % size_q or first_key % size_k:
        raise RefusedError(
            f"chunks must start at multiples of the block size {mask.sizes} of masks.Blocks in sharded attention, got "
            f"a chunk of queries at {first_query} and one of keys at {first_key}. Pad the sequence so that each rank "
            "holds whole blocks."
        )
    return dataclasses.replace(mask, layout=mask.layout[..., first_query // size_q :, first_key // size_k :])
