"""The compiled JAX function of a call, compiled once for each signature of calls that the kernels share."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from qkv.core.arrays import statically_known_true
from qkv.core.equation import BoundCall
from qkv.core.guard import is_traced
from qkv.core.parts import Part
from qkv.core.positions import Positions
from qkv.core.threefry import seed_words
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, DType, KeyArray, OutputArray, QueryArray, Shaped, ValueArray
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.plan.kernel_protocol import Result
from qkv.plan.problem import Problem
from qkv.readouts import Readout
from qkv.scores.base import Score

_Parts = tuple[Score, Normalizer, Mask | None, Positions | None]
_Seed = tuple[Shaped[Array, ""], Shaped[Array, ""]] | None
_Run = Callable[[BoundCall, tuple[Readout, ...]], Result]


@dataclass(frozen=True)
class _StaticCall:
    """Static argument of the compiled function: everything in a call but its arrays."""

    run: _Run
    lengths: tuple[int, int]
    batch: tuple[int, ...]
    dropout: float
    finite: tuple[bool, bool] | None
    out_dtype: DType
    readouts: tuple[Readout, ...] = field(compare=False)
    signatures: tuple[Hashable, ...]
    """Signatures of the readouts, which are compared in place of the readouts because those hold no arrays."""


def compilable(value: object) -> bool:
    """Return whether a part can be compiled: it and the parts in its fields are of qkv and hold no function.

    Example:
        >>> from qkv.scores import Custom, Dot, SumOf
        >>> compilable(SumOf((Dot(), Dot()))), compilable(SumOf((Dot(), Custom(lambda query, key: query @ key.mT))))
        (True, False)
    """
    if isinstance(value, tuple):
        return all(compilable(each) for each in value)
    if not isinstance(value, Part):
        return not callable(value)
    if not type(value).__module__.startswith("qkv."):
        return False
    return all(compilable(getattr(value, each.name)) for each in dataclasses.fields(value))


def run_compiled(
    call: BoundCall,
    problem: Problem,
    run: _Run,
    finite: tuple[bool, bool] | None,
    around: Callable[..., Any] = lambda function, *arguments: function(*arguments),
) -> Result:
    """Run `run(call, readouts)` as a function that is compiled once for each signature of a call.

    Args:
        problem: the problem of the call.
        run: function that computes output and readouts, compared by equality.
        finite: `BoundCall.finite` of the compiled call.
        around: function that is called with the compiled function and its arguments, and returns its result.
    """
    tile = call.tile
    seed = None
    if tile.seed is not None:
        # Arrays, so that the compiled function takes the words of the seed as arguments.
        low, high = (np.uint32(x) if isinstance(x, int) else x for x in seed_words(tile.seed))
        seed = low, high
    static = _StaticCall(
        run,
        (tile.q_total, tile.k_total),
        tile.batch,
        call.dropout,
        finite,
        call.out_dtype,
        tuple(problem.readouts),
        tuple(readout.signature() for readout in problem.readouts),
    )
    parts = call.score, call.normalizer, call.mask, tile.positions
    output, read = around(partial(_functions()[0], static), call.query, call.key, call.value, parts, seed)
    return Result(output, tuple(read))


def known_finite(call: BoundCall) -> tuple[bool, bool] | None:
    """Return whether query and key are known to be finite, and whether value is, by one compiled function.

    Query and key are checked only if there is a mask, because the check has no use otherwise. If the arrays are traced,
    return None.
    """
    if call.finite is not None:
        return call.finite
    if is_traced(call.query, call.key, call.value):
        return None
    sides = (call.query, call.key) if call.mask is not None else ()
    *of_sides, of_value = _functions()[1]((*sides, call.value))
    return bool(sides) and all(statically_known_true(x) for x in of_sides), statically_known_true(of_value)


@cache
def _functions() -> tuple[Callable[..., tuple[Array, tuple[object, ...]]], Callable[..., tuple[Bool[Array, ""], ...]]]:
    """Return the compiled function of a call, and that which checks arrays; on first use, because JAX is optional."""
    import jax
    import jax.numpy as jnp

    def all_finite(arrays: tuple[Shaped[Array, "*_"], ...]) -> tuple[Bool[Array, ""], ...]:
        return tuple(typing.cast("Array", jnp.all(jnp.isfinite(x))) for x in arrays)

    return jax.jit(_attend, static_argnums=0), jax.jit(all_finite)


def _attend(
    static: _StaticCall, query: QueryArray, key: KeyArray, value: ValueArray, parts: _Parts, seed: _Seed
) -> tuple[OutputArray, tuple[object, ...]]:
    score, normalizer, mask, positions = parts
    tile = Tile.whole(*static.lengths, static.batch, positions, seed=seed)
    call = BoundCall(
        query, key, value, score, normalizer, mask, tile, static.dropout, static.out_dtype, finite=static.finite
    )
    result = static.run(call, static.readouts)
    return result.output, result.readouts
