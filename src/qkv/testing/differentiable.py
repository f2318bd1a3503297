"""Contract tests of scores and normalizers, for their gradients and for Python numbers in place of scalar arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from qkv.core.arrays import is_floating, namespace
from qkv.core.parts import Part
from qkv.core.typing import ArrayLike
from qkv.testing.examples import Draw, floats, rebuilt, with_floats
from qkv.testing.gradients import assert_jax_agrees, assert_numerical
from qkv.testing.libraries import Setting, assert_close
from qkv.testing.parts import PartContract

__all__ = ["DifferentiableContract"]


class DifferentiableContract(PartContract):
    """Contract tests of scores and normalizers. Subclasses must define `inputs` and `evaluate`."""

    differentiable: ClassVar[bool] = True
    """Whether the function has non-zero gradients. An attribute `differentiable` of the part takes precedence."""
    second_derivatives: ClassVar[bool] = True
    """Whether second derivatives are compared with finite differences."""

    def inputs(self, batch: tuple[int, ...] = ()) -> tuple[ArrayLike, ...]:
        """Return example arguments of `evaluate` with batch axes `batch`, as float64 NumPy arrays."""
        raise NotImplementedError(
            f"{type(self).__name__} must define the method inputs, which returns the arguments of evaluate."
        )

    def special_inputs(self) -> tuple[ArrayLike, ...]:
        """Return example arguments of `evaluate` that include points at which gradients are often not finite."""
        return self.inputs()

    def evaluate(self, part: Any, *inputs: ArrayLike) -> ArrayLike:
        """Return the logits or weights that a score or normalizer computes from `inputs`."""
        raise NotImplementedError(
            f"{type(self).__name__} must define the method evaluate, which returns logits or weights."
        )

    def test_numbers_mean_the_same_as_arrays_of_one_number(self) -> None:
        part, inputs = self.make(Draw(1)), self.inputs()
        plain = part.map_arrays(lambda a: a.item() if a.ndim == 0 else a)
        assert_close(self.evaluate(plain, *inputs), self.evaluate(part, *inputs), 1e-15)

    def test_gradients_agree_with_finite_differences(self) -> None:
        part, inputs = self.make(Draw(1, batch=(2,))), self.inputs((2,))
        if getattr(part, "differentiable", self.differentiable):
            pytest.importorskip("torch")
            template = Setting("torch", "float64").part(part)

            def result(*leaves: ArrayLike) -> ArrayLike:
                own = with_floats(template, leaves[len(inputs) :])
                return _finite(self.evaluate(own, *leaves[: len(inputs)]))

            assert_numerical(result, [*inputs, *floats(part)], self.second_derivatives)

    def test_gradients_of_closed_over_arrays_under_jit_are_those_of_torch(self) -> None:
        part = self.make(Draw(1))
        if getattr(part, "differentiable", self.differentiable):
            assert_jax_agrees(self._scalar(part), [*self.special_inputs(), *floats(part)])

    def _scalar(self, part: Part) -> Callable[..., ArrayLike]:
        """Return a scalar function of the arguments of `evaluate` and the floating-point arrays of the part."""

        def scalar(*leaves: ArrayLike) -> ArrayLike:
            xp, count = namespace(leaves[0]), len(leaves) - len(floats(part))
            own = part.map_arrays(lambda array: array if is_floating(array) else xp.asarray(array))
            result = _finite(self.evaluate(rebuilt(with_floats(own, leaves[count:])), *leaves[:count]))
            factors = np.cos(np.arange(np.prod(result.shape)).reshape(result.shape))
            return xp.sum(result * xp.asarray(factors))

        return scalar


def _finite(logits: ArrayLike) -> ArrayLike:
    xp = namespace(logits)
    return xp.where(logits == -xp.inf, xp.zeros_like(logits), logits)
