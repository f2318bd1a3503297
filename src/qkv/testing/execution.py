"""Execution of example calls, with gradients, by a kernel in some array library or by the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

import qkv
from qkv.core.arrays import namespace
from qkv.core.equation import attend_dense
from qkv.core.typing import ArrayLike
from qkv.engine import Observation
from qkv.plan import Kernel, Plan
from qkv.readouts import Readout
from qkv.testing.cases import Call, Case
from qkv.testing.examples import floats, with_floats
from qkv.testing.libraries import Setting, to_float64

__all__ = ["Outcome", "oracle", "oracle_of", "run", "run_eagerly"]

Attend: TypeAlias = Callable[[Sequence[ArrayLike]], tuple[ArrayLike, tuple[ArrayLike, ...]]]

ORACLE = Setting("torch", "float64")


@dataclass(frozen=True)
class Outcome:
    """Result of a call in float64 NumPy.

    Attributes:
        output: output `(*batch, q, value_width)`.
        gradients: gradients of query, key, value and the floating arrays of score and normalizer; empty for NumPy.
        readouts: results of the readouts, unconverted.
        plan: the plan; None for the oracle.
    """

    output: ArrayLike
    gradients: tuple[ArrayLike, ...]
    readouts: tuple[ArrayLike, ...] = ()
    plan: Plan | None = None


def rounded(call: Call, setting: Setting) -> Call:
    """Return the call in float64 NumPy, rounded to the dtype: the input of the oracle."""
    return replace(
        call,
        query=setting.rounded(call.query),
        key=setting.rounded(call.key),
        value=setting.rounded(call.value),
        score=call.score.map_arrays(setting.rounded),
        normalizer=call.normalizer.map_arrays(setting.rounded),
    )


def run(
    call: Call,
    setting: Setting,
    kernel: Kernel | str | None,
    readouts: Sequence[Readout] = (),
    gradient_of: ArrayLike = None,
    memory: int | str = "512 MiB",
) -> Outcome:
    """Run a call with a kernel, compiled by `jax.jit` for JAX, with gradients if the library has them.

    Args:
        call: the call.
        setting: array library and dtype.
        kernel: the kernel; it runs or raises.
        readouts: readouts to compute; not for JAX.
        gradient_of: weights of the output in the differentiated sum; None for random ones.
        memory: memory limit.
    """
    plans: list[ArrayLike] = []

    def attend(leaves: Sequence[ArrayLike]) -> tuple[ArrayLike, tuple[ArrayLike, ...]]:
        parts = _parts(call, setting, leaves[3:])
        seen = qkv.observe(*leaves[:3], **parts, readouts=readouts, kernel=kernel, memory=memory)
        plans.append(seen.plan)
        return seen.output, seen.readouts

    with setting.active():
        return replace(_differentiated(attend, call, setting, gradient_of), plan=plans[-1])


def oracle_of(call: Call, setting: Setting, gradient_of: ArrayLike = None) -> Outcome:
    """Run the dense equation in float64 PyTorch on numbers rounded to the setting's dtype."""
    rounding = replace(ORACLE, dtype=setting.dtype)  # the same numbers in every library
    call = rounded(call, rounding)

    def attend(leaves: Sequence[ArrayLike]) -> tuple[ArrayLike, tuple[ArrayLike, ...]]:
        return attend_dense(*leaves[:3], **_parts(call, ORACLE, leaves[3:])).output, ()

    return _differentiated(attend, call, ORACLE, gradient_of, rounding)


@lru_cache(maxsize=4096)
def oracle(case: Case, dtype: str) -> Outcome:
    """Return `oracle_of` the case's call, cached for all kernels."""
    return oracle_of(case.call(), Setting("torch", dtype))


def run_eagerly(call: Call, setting: Setting, kernel: Kernel | str | None, **options: Any) -> Observation:
    """Return `qkv.observe`, not compiled and without gradients."""
    with setting.active():
        leaves = [_laid(setting, x, call.strided) for x in (call.query, call.key, call.value)]
        arrays = [setting.array(x) for x in _held(call)]
        query, key, value = leaves
        return qkv.observe(query, key, value, **_parts(call, setting, arrays), kernel=kernel, **options)


def _held(call: Call) -> list[ArrayLike]:
    return floats(call.score) + floats(call.normalizer)


def _parts(call: Call, setting: Setting, arrays: Sequence[ArrayLike]) -> dict[str, Any]:
    """Return the parts in the setting's library with replaced floating arrays."""
    count = len(floats(call.score))
    return {
        "score": with_floats(setting.part(call.score), arrays[:count]),
        "normalizer": with_floats(setting.part(call.normalizer), arrays[count:]),
        "mask": None if call.mask is None else setting.part(call.mask),
        "positions": call.positions,
        "dropout": call.dropout,
        "seed": call.seed,
    }


def _laid(setting: Setting, x: ArrayLike, strided: bool) -> ArrayLike:
    if not strided:
        return setting.array(x)
    turned = setting.array(np.ascontiguousarray(np.swapaxes(x, -1, -2)))
    return namespace(turned).matrix_transpose(turned)


def _differentiated(
    attend: Attend, call: Call, setting: Setting, gradient_of: ArrayLike, rounding: Setting | None = None
) -> Outcome:
    leaves = [_laid(setting, x, call.strided) for x in (call.query, call.key, call.value)]
    leaves += [setting.array(x) for x in _held(call)]
    if setting.library == "numpy":
        output, readouts = attend(leaves)
        return Outcome(to_float64(output), (), readouts)
    if setting.library == "jax":
        return _in_jax(attend, leaves, setting, gradient_of)
    if setting.library == "tensorflow":
        return _in_tensorflow(attend, leaves, setting, gradient_of)
    import torch

    leaves = [leaf.requires_grad_() for leaf in leaves]
    output, readouts = attend(leaves)
    # Rounded as in the tested call, since cancellation amplifies differences.
    weight = _weight(tuple(output.shape), gradient_of)
    weight = setting.array(weight if rounding is None else rounding.rounded(weight))
    found: Sequence[ArrayLike] = [None] * len(leaves)
    if output.requires_grad:
        found = torch.autograd.grad(output, leaves, weight, allow_unused=True)
    gradients = tuple(
        to_float64(torch.zeros_like(leaf) if gradient is None else gradient)
        for leaf, gradient in zip(leaves, found, strict=True)
    )
    return Outcome(to_float64(output), gradients, readouts)


def _in_jax(attend: Attend, leaves: list[ArrayLike], setting: Setting, gradient_of: ArrayLike) -> Outcome:
    import jax

    shape = jax.eval_shape(lambda leaves: attend(leaves)[0], leaves).shape
    weight = setting.array(_weight(shape, gradient_of))

    def both(leaves: ArrayLike, weight: ArrayLike) -> ArrayLike:
        output, back = jax.vjp(lambda leaves: attend(leaves)[0], leaves)
        return output, back(weight)[0]

    output, gradients = setting.call(both, leaves, weight)
    return Outcome(to_float64(output), tuple(to_float64(gradient) for gradient in gradients))


def _in_tensorflow(attend: Attend, leaves: list[ArrayLike], setting: Setting, gradient_of: ArrayLike) -> Outcome:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(leaves)
        output, readouts = attend(leaves)
    weight = setting.array(_weight(tuple(output.shape), gradient_of))
    zero = tf.UnconnectedGradients.ZERO
    found = tape.gradient(output, leaves, output_gradients=weight, unconnected_gradients=zero)
    return Outcome(to_float64(output), tuple(to_float64(gradient) for gradient in found), readouts)


def _weight(shape: tuple[int, ...], given: ArrayLike) -> ArrayLike:
    if given is not None:
        return np.broadcast_to(np.asarray(given, dtype=np.float64), shape)
    return np.random.default_rng(8).normal(size=shape)
