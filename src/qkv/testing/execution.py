"""Running an example call: with a kernel in an array library and dtype, or by the oracle, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

import qkv
from qkv.core.arrays import namespace
from qkv.core.equation import attend_dense
from qkv.plan import Kernel
from qkv.readouts import Readout
from qkv.testing.cases import Call, Case
from qkv.testing.examples import floats, with_floats
from qkv.testing.libraries import Setting, to_float64

__all__ = ["Outcome", "oracle", "oracle_of", "run", "run_eagerly"]

ORACLE = Setting("torch", "float64")


@dataclass(frozen=True)
class Outcome:
    """What a call gave, as float64 NumPy.

    Attributes:
        output: `(*batch, q, value_width)`.
        gradients: of query, key, value, the score's and the normalizer's floating arrays; empty for NumPy.
        readouts: results as they came.
        plan: how it ran; None for the oracle.
    """

    output: Any
    gradients: tuple[Any, ...]
    readouts: tuple[Any, ...] = ()
    plan: Any = None


def rounded(call: Call, setting: Setting) -> Call:
    """The call with all numbers rounded to the dtype, in float64 NumPy: what the oracle must be given."""
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
    gradient_of: Any = None,
    memory: int | str = "512 MiB",
) -> Outcome:
    """Run with a kernel, compiled as a whole in JAX; gradients where the library has them.

    Args:
        call: what to run.
        setting: array library and dtype.
        kernel: which one; it runs or raises.
        readouts: what to read; not under JAX's compiler.
        gradient_of: weight of each number of the output in what is differentiated; None: normal numbers.
        memory: what is allowed.
    """
    plans: list[Any] = []

    def attend(leaves: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
        parts = _parts(call, setting, leaves[3:])
        seen = qkv.observe(*leaves[:3], **parts, readouts=readouts, kernel=kernel, memory=memory)
        plans.append(seen.plan)
        return seen.output, seen.readouts

    with setting.active():
        return replace(_differentiated(attend, call, setting, gradient_of), plan=plans[-1])


def oracle_of(call: Call, setting: Setting, gradient_of: Any = None) -> Outcome:
    """The call by the dense equation in float64 PyTorch, on numbers rounded to the setting's dtype."""
    rounding = replace(ORACLE, dtype=setting.dtype)  # the same numbers in every library
    call = rounded(call, rounding)

    def attend(leaves: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
        return attend_dense(*leaves[:3], **_parts(call, ORACLE, leaves[3:])).output, ()

    return _differentiated(attend, call, ORACLE, gradient_of, rounding)


@lru_cache(maxsize=4096)
def oracle(case: Case, dtype: str) -> Outcome:
    """`oracle_of` the case's call, remembered for the next kernel."""
    return oracle_of(case.call(), Setting("torch", dtype))


def run_eagerly(call: Call, setting: Setting, kernel: Kernel | str | None, **options: Any) -> Any:
    """`qkv.observe`, not compiled and without gradients."""
    with setting.active():
        leaves = [_laid(setting, x, call.strided) for x in (call.query, call.key, call.value)]
        arrays = [setting.array(x) for x in _held(call)]
        query, key, value = leaves
        return qkv.observe(query, key, value, **_parts(call, setting, arrays), kernel=kernel, **options)


def _held(call: Call) -> list[Any]:
    return floats(call.score) + floats(call.normalizer)


def _parts(call: Call, setting: Setting, arrays: Sequence[Any]) -> dict[str, Any]:
    """The parts in the setting's library, their floating arrays replaced."""
    count = len(floats(call.score))
    return {
        "score": with_floats(setting.part(call.score), arrays[:count]),
        "normalizer": with_floats(setting.part(call.normalizer), arrays[count:]),
        "mask": None if call.mask is None else setting.part(call.mask),
        "positions": call.positions,
        "dropout": call.dropout,
        "seed": call.seed,
    }


def _laid(setting: Setting, x: Any, strided: bool) -> Any:
    if not strided:
        return setting.array(x)
    turned = setting.array(np.ascontiguousarray(np.swapaxes(x, -1, -2)))
    return namespace(turned).matrix_transpose(turned)


def _differentiated(
    attend: Any, call: Call, setting: Setting, gradient_of: Any, rounding: Setting | None = None
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
    # Rounded as the tested call has it: sums that cancel make much of a little.
    weight = _weight(tuple(output.shape), gradient_of)
    weight = setting.array(weight if rounding is None else rounding.rounded(weight))
    found: Any = [None] * len(leaves)
    if output.requires_grad:
        found = torch.autograd.grad(output, leaves, weight, allow_unused=True)
    gradients = tuple(
        to_float64(torch.zeros_like(leaf) if gradient is None else gradient)
        for leaf, gradient in zip(leaves, found, strict=True)
    )
    return Outcome(to_float64(output), gradients, readouts)


def _in_jax(attend: Any, leaves: list[Any], setting: Setting, gradient_of: Any) -> Outcome:
    import jax

    shape = jax.eval_shape(lambda leaves: attend(leaves)[0], leaves).shape
    weight = setting.array(_weight(shape, gradient_of))

    def both(leaves: Any, weight: Any) -> Any:
        output, back = jax.vjp(lambda leaves: attend(leaves)[0], leaves)
        return output, back(weight)[0]

    output, gradients = setting.call(both, leaves, weight)
    return Outcome(to_float64(output), tuple(to_float64(gradient) for gradient in gradients))


def _in_tensorflow(attend: Any, leaves: list[Any], setting: Setting, gradient_of: Any) -> Outcome:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(leaves)
        output, readouts = attend(leaves)
    weight = setting.array(_weight(tuple(output.shape), gradient_of))
    zero = tf.UnconnectedGradients.ZERO
    found = tape.gradient(output, leaves, output_gradients=weight, unconnected_gradients=zero)
    return Outcome(to_float64(output), tuple(to_float64(gradient) for gradient in found), readouts)


def _weight(shape: tuple[int, ...], given: Any) -> Any:
    if given is not None:
        return np.broadcast_to(np.asarray(given, dtype=np.float64), shape)
    return np.random.default_rng(8).normal(size=shape)
