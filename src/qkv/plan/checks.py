"""The problem and the seed of a call, and checks that parts and readouts match its shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.core.arrays import dtype_name, is_array, is_text, library, requires_gradient, result_dtype
from qkv.core.axes import Axes
from qkv.core.typing import Array
from qkv.errors import KindError, OptionError, RefusedError
from qkv.plan.cost import memory_bytes
from qkv.plan.problem import Problem
from qkv.plan.spec import Spec
from qkv.readouts import Readout

__all__ = ["check_problem", "read_problem", "read_seed"]


def read_problem(
    query: Array,
    key: Array,
    value: Array,
    spec: Spec,
    readouts: tuple[Readout, ...],
    memory: int | str,
    traced: str = "",
) -> Problem:
    """Return the problem of a call.

    Args:
        query: queries.
        key: keys.
        value: values.
        spec: score, normalizer, mask, positions and dropout.
        readouts: readouts of the weights.
        memory: what may be allocated, in bytes or as "512 MiB".
        traced: what hides the data, as in `Problem.traced`.

    Raises:
        KindError: arrays hold text where the score takes numbers or the reverse, hold complex numbers, or are of
            several libraries.
        ShapeError: the shapes do not match each other.
    """
    kind = library(query, key, value)
    texts = (is_text(query), is_text(key))
    assert spec.score is not None
    assert spec.normalizer is not None
    spec.score.check_kind(*texts)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if (is_text(x) and name == "value") or "complex" in dtype_name(x):
            raise KindError(f"{name} must be real numbers, got {dtype_name(x)} elements. Convert them first.")
    axes = Axes.of(query.shape, key.shape, value.shape, texts[0])
    numbers = (value,) if texts[0] else (query, key, value)
    out = result_dtype(*numbers)
    dtype = str(getattr(out, "name", out)).removeprefix("torch.")
    gradient = any(requires_gradient(x) for x in (*numbers, *spec.score.arrays(), *spec.normalizer.arrays()))
    return Problem(spec, axes, kind, dtype, gradient, readouts, memory_bytes(memory), traced)


def check_problem(problem: Problem) -> None:
    """Check that parts and readouts match the shapes of a problem.

    Raises:
        ShapeError: a part or readout is for other widths or lengths.
        PositionError: positions are required and not given.
        KindError: a readout is of another type.
        RefusedError: a readout is not defined for the normalizer.
    """
    axes, spec = problem.axes, problem.spec
    if not axes.text:
        problem.score.check_widths(axes.query_width, axes.key_width)
    problem.score.check_lengths(axes.q, axes.k)
    if spec.mask is not None:
        spec.mask.check(axes.q, axes.k)
    if spec.positional:
        problem.tile.offset()
    for readout in problem.readouts:
        if not isinstance(readout, Readout):
            raise KindError(
                f"readouts must be Readout instances, got {readout!r}. Give instances from qkv.readouts, such as "
                f"TopWeights(5)."
            )
        if sentence := readout.refuse(problem.normalizer):
            raise RefusedError(sentence)
        readout.check(problem.tile)


def read_seed(problem: Problem, seed: Any) -> Any:
    """Return the seed as an int, or in JAX and TensorFlow as an array or two words; None if nothing is drawn."""
    if seed is not None:
        if is_array(seed) and "int" in dtype_name(seed) and tuple(seed.shape) in ((), (2,)):
            # Under `jax.jit` and `tf.function` the number is not known. Two numbers are words, the lower first.
            if library(seed) in ("jax", "tensorflow"):
                return (seed[0], seed[1]) if seed.ndim else seed
            low, high = (int(seed[0]), int(seed[1])) if seed.ndim else (int(seed), 0)
            return low + (high << 32)
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise OptionError(f"seed must be a whole number, got {seed!r}. Give an int.")
        return int(seed)
    if not (problem.spec.dropout or problem.normalizer.stochastic):
        return None
    if problem.library != "torch":
        drawn = "dropout" if problem.spec.dropout else str(problem.normalizer)
        raise OptionError(
            f"seed must be given for {drawn}, got None. {problem.library} has no generator of its own. Give seed=…."
        )
    import torch

    return int(torch.randint(2**62, ()).item())
