"""Run example calls with a kernel or with the dense reference in any array library, and compute their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import qkv
from qkv.core.arrays import namespace
from qkv.core.equation import attend_dense
from qkv.core.typing import ArrayLike
from qkv.engine import Observation
from qkv.plan import Kernel
from qkv.testing.cases import Call, Case, floats, with_floats
from qkv.testing.gradients import in_torch
from qkv.testing.libraries import Setting, to_float64

Attend: TypeAlias = Callable[[Sequence[ArrayLike]], ArrayLike]
"""Function that returns the output, given the arrays that `inputs_of` returns."""

_ORACLE = Setting("torch", "float64")


class Outcome(NamedTuple):
    """Output and gradients of an example call, converted to float64 NumPy arrays.

    Attributes:
        output: output `(*batch, q, value_width)`.
        gradients: gradients of the arrays that `inputs_of` returns; empty if the call ran in NumPy.
    """

    output: ArrayLike
    gradients: tuple[ArrayLike, ...]


def rounded(call: Call, setting: Setting) -> Call:
    """Return a call whose floating-point arrays are rounded to the precision of `setting.dtype`, but stay float64."""
    return replace(
        call,
        query=setting.rounded(call.query),
        key=setting.rounded(call.key),
        value=setting.rounded(call.value),
        score=call.score.map_arrays(setting.rounded),
        normalizer=call.normalizer.map_arrays(setting.rounded),
    )


def run(call: Call, setting: Setting, kernel: Kernel | str | None) -> Outcome:
    """Run a call with a kernel, under `jax.jit` if the library is JAX, and return its output and gradients."""

    def attend(leaves: Sequence[ArrayLike]) -> ArrayLike:
        return qkv.observe(*leaves[:3], **parts_of(call, setting, leaves[3:]), kernel=kernel).output

    with setting.active():
        return _differentiated(attend, call, setting)


def oracle_of(call: Call, setting: Setting) -> Outcome:
    """Return the reference output and gradients of a call, computed densely in PyTorch with float64.

    The inputs are first rounded to the dtype of the setting.
    """
    rounding = replace(_ORACLE, dtype=setting.dtype)  # round in PyTorch, so that all libraries have the same reference
    call = rounded(call, rounding)

    def attend(leaves: Sequence[ArrayLike]) -> ArrayLike:
        return attend_dense(*leaves[:3], **parts_of(call, _ORACLE, leaves[3:])).output

    return _differentiated(attend, call, _ORACLE, rounding)


@lru_cache(maxsize=4096)
def oracle(case: Case, dtype: str) -> Outcome:
    """Return the reference output and gradients of a case, which are cached for the tests of all kernels."""
    return oracle_of(case.call(), Setting("torch", dtype))


def run_eagerly(call: Call, setting: Setting, kernel: Kernel | str | None, **options: Any) -> Observation:
    """Run a call with `qkv.observe`, without compilation and without gradients, and return its result."""
    with setting.active():
        query, key, value, *arrays = inputs_of(call, setting)
        return qkv.observe(query, key, value, **parts_of(call, setting, arrays), kernel=kernel, **options)


def inputs_of(call: Call, setting: Setting) -> list[ArrayLike]:
    """Return the arrays of a call in the library and dtype of a setting.

    They are query, key, value and the floating-point arrays of score and normalizer.
    """
    sides = [call.query, call.key, call.value]
    arrays = [setting.array(x) for x in (*floats(call.score), *floats(call.normalizer))]
    if not call.strided:
        return [*map(setting.array, sides), *arrays]
    transposed = [setting.array(np.ascontiguousarray(np.swapaxes(x, -1, -2))) for x in sides]
    return [namespace(x).matrix_transpose(x) for x in transposed] + arrays


def parts_of(call: Call, setting: Setting, arrays: Sequence[ArrayLike]) -> dict[str, Any]:
    """Return the parts and options of a call as keyword arguments of `qkv.observe`.

    Args:
        setting: the library and dtype.
        arrays: floating-point arrays of score and normalizer, which replace those of the call.
    """
    count = len(floats(call.score))
    return {
        "score": with_floats(setting.part(call.score), arrays[:count]),
        "normalizer": with_floats(setting.part(call.normalizer), arrays[count:]),
        "mask": None if call.mask is None else setting.part(call.mask),
        "positions": call.positions,
        "dropout": call.dropout,
        "seed": call.seed,
    }


def _differentiated(attend: Attend, call: Call, setting: Setting, rounding: Setting | None = None) -> Outcome:
    """Return the output of `attend` for a call, and the gradients of the sum of output · random factors."""
    leaves = inputs_of(call, setting)

    def factors(output: ArrayLike) -> ArrayLike:
        drawn = np.random.default_rng(8).normal(size=tuple(output.shape))
        # Round the factors as in the tested call, because cancellation amplifies differences.
        return setting.array(drawn if rounding is None else rounding.rounded(drawn))

    if setting.library == "numpy":
        return Outcome(to_float64(attend(leaves)), ())
    output, gradients = {"torch": in_torch, "jax": _in_jax, "tensorflow": _in_tensorflow}[setting.library](
        attend, leaves, factors
    )
    return Outcome(to_float64(output), tuple(map(to_float64, gradients)))


def _in_jax(attend: Attend, leaves: list[ArrayLike], factors: Attend) -> ArrayLike:
    import jax

    def both(leaves: list[ArrayLike]) -> ArrayLike:
        output, backward = jax.vjp(attend, leaves)
        return output, backward(factors(output))[0]

    return jax.jit(both)(leaves)


def _in_tensorflow(attend: Attend, leaves: list[ArrayLike], factors: Attend) -> ArrayLike:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(leaves)
        output = attend(leaves)
    return output, tape.gradient(
        output, leaves, output_gradients=factors(output), unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
