"""Define the base class of kernel tests, which runs calls with a kernel and compares the results with the reference."""

from __future__ import annotations

import functools
import itertools
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest
from hypothesis import strategies as st

from qkv.core.typing import ArrayLike
from qkv.engine import Observation
from qkv.errors import RefusedError
from qkv.plan import Kernel
from qkv.readouts import Readout
from qkv.testing.cases import MASKS, NORMALIZERS, SCORES, SHAPES, Call, Case
from qkv.testing.execution import Outcome, oracle_of, run, run_eagerly
from qkv.testing.libraries import LONG, Setting, assert_close, installed, turn

T = TypeVar("T")

CASES = st.builds(
    Case,
    st.sampled_from(sorted(SCORES)),
    st.sampled_from(sorted(NORMALIZERS)),
    st.sampled_from(sorted(MASKS)),
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from([0.0, 0.0, 0.4]),
).map(lambda case: case if case.sensible else Case("similarity", "sum", case.mask, case.shape, case.dropout))
"""Strategy that draws example calls, with combinations that the normalizer accepts."""

DTYPES = ("float64", "float32", "float16", "bfloat16")
_STEPS, _LONG_STEPS = (2, 6, 6, 6), (1, 2, 3, 3)
"""For each dtype, every how many calls of a test one is made: in short runs, and in long runs."""
_OUTPUT = {"float64": 1e-11, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
_GRADIENT = {"float64": 1e-9, "float32": 5e-4, "float16": 2e-3, "bfloat16": 1.5e-2}
"""Largest allowed relative errors. Half precision allows for one rounding of a result accumulated in float32."""


def settings_of_kernel(kernel: Kernel) -> list[ArrayLike]:
    """Return a pytest parameter for each array library and dtype of a kernel, with the mark `long` if it is slow."""
    out: list[ArrayLike] = []
    for library, dtype in itertools.product(filter(installed, kernel.libraries), DTYPES):
        long = library == "jax" and dtype != "float32"
        # TensorFlow takes seconds to load, so short runs use it only for kernels that support no other library.
        long |= library == "tensorflow" and len(kernel.libraries) > 1
        if (library, dtype) != ("numpy", "bfloat16"):
            out.append(pytest.param(Setting(library, dtype), marks=[pytest.mark.long] if long else []))
    return out


def assert_agrees(got: Outcome, expected: Outcome, setting: Setting, message: str = "", slack: float = 1.0) -> None:
    """Assert that the output and gradients of a call agree with those of the reference, within a tolerance.

    Args:
        got: output and gradients of the tested call.
        expected: output and gradients of the reference.
        setting: library and dtype of the tested call, which determine the tolerance.
        message: prefix of the error message.
        slack: factor of the tolerance.
    """
    message = f"{message} {setting}"
    assert_close(
        got.output, expected.output, slack * _OUTPUT[setting.dtype], message=f"{message}, output:", min_scale=0.1
    )
    for n, (mine, theirs) in enumerate(zip(got.gradients, expected.gradients, strict=False)):
        assert_close(mine, theirs, slack * _GRADIENT[setting.dtype], message=f"{message}, gradient {n}:", min_scale=0.1)


def _allow_refusal(test: Callable[..., ArrayLike]) -> Callable[..., ArrayLike]:
    """Decorate a kernel test so that it also passes if the kernel refuses the call with a reason."""

    @functools.wraps(test)
    def accepting(self: KernelHarness, *args: object, **kwargs: object) -> None:
        try:
            test(self, *args, **kwargs)
        except RefusedError as refusal:
            # A refusal by another kernel or without a reason is a failure.
            if not re.match(rf"the kernel {self.kernel.name} cannot run this call: .{{10}}", str(refusal)):
                raise

    accepting.accepts_refusal = True  # type: ignore[attr-defined]
    return accepting


class KernelHarness:
    """Base class of kernel tests, with methods to run and check calls. Subclasses must set `kernel`.

    A kernel need not support every call, but it must give a reason for each call that it does not support; inherited
    tests then pass. Only the call of `test_runs_scaled_dot_product_attention` must be supported by every kernel.
    """

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.number = zlib.crc32(cls.__name__.encode())
        for name in dir(cls):
            test = getattr(cls, name)
            if name.startswith("test_") and not hasattr(test, "accepts_refusal"):
                setattr(cls, name, _allow_refusal(test))

    kernel: ClassVar[Kernel]
    number: ClassVar[int] = 0
    """Number of the class, so that not all classes leave out the same calls in short runs."""
    quadratic: ClassVar[bool] = False
    """Whether the memory of the kernel is proportional to q · k."""
    many_keys: ClassVar[int] = 1_000_000
    """Number of keys that the kernel must be able to attend to."""
    twice: ClassVar[bool] = True
    """Whether the kernel supports second derivatives in PyTorch."""

    def sample(self, setting: Setting, names: Iterable[T]) -> list[T]:
        """Return the elements of `names` to test with a setting: every other for float64, fewer for each other dtype.

        Classes of kernels and libraries take turns. More are tested, and all with float64, if the environment variable
        `HYPOTHESIS_PROFILE` is `long`, or if the kernel does not support float64.
        """
        all_names, index = list(names), DTYPES.index(setting.dtype)
        # JAX compiles each call, so short runs test few calls; long runs test all dtypes.
        few = not LONG and self.accepts(Case().call(), Setting(setting.library, "float64"))
        step = _STEPS[index] if few else _LONG_STEPS[index]
        step = (8 if LONG else 12) if str(setting) == "jax-float32" else step
        start = index if LONG else index + self.number + self.kernel.libraries.index(setting.library)
        return all_names[start % max(1, min(step, len(all_names))) :: step]

    def each_normalizer(self, setting: Setting, test: int, **changes: Any) -> Iterator[tuple[str, Call]]:
        """Yield `(name, call)` for each normalizer that the kernel supports, with the fields in `changes` replaced.

        In short runs, tests and libraries take turns with float64: each test gets every other normalizer with a
        library, and a test with a number of other parity, and the next library of the kernel, get the others.

        Args:
            setting: library and dtype.
            test: number of the test. Tests of similar rules have numbers of different parity.
            changes: fields of the calls.
        """
        if setting.dtype == "float64":
            number = self.number + test + self.kernel.libraries.index(setting.library)
            names = turn(list(NORMALIZERS), number, 2)
        else:
            names = self.sample(setting, NORMALIZERS)
        for name in names:
            call = replace(Case("similarity" if name == "sum" else "dot", name).call(), **changes)
            if self.accepts(call, setting):
                yield name, call

    def accepts(self, call: Call, setting: Setting, readouts: Sequence[Readout] = ()) -> bool:
        """Return whether the kernel supports a call, that is, whether `qkv.explain` does not raise `RefusedError`."""
        import qkv

        try:
            qkv.explain(
                tuple(np.shape(call.query)),
                tuple(np.shape(call.key)),
                tuple(np.shape(call.value)),
                score=call.score,
                normalizer=call.normalizer,
                mask=call.mask,
                positions=call.positions,
                dropout=call.dropout,
                readouts=readouts,
                kernel=self.kernel,
                library=setting.library,
                dtype=setting.dtype,
                gradient=setting.library == "torch",
            )
        except RefusedError:
            return False
        return True

    def run(self, call: Call, setting: Setting) -> Outcome:
        """Run a call with the kernel under test, and return its output and gradients."""
        return run(call, setting, self.kernel)

    def assert_as_oracle(self, call: Call, setting: Setting, message: str = "") -> None:
        """Assert that the kernel's output and gradients for a call agree with the dense float64 reference."""
        assert_agrees(self.run(call, setting), oracle_of(call, setting), setting, message)

    def assert_output(self, call: Call, setting: Setting, expected: ArrayLike, message: str = "") -> None:
        """Assert that the kernel returns the output `expected` for a call, unless it does not support the call."""
        if self.accepts(call, setting):
            got = self.observe(call, setting).output
            assert_close(got, expected, max(1e-12, setting.tolerance), message=message or str(call))

    def observe(self, call: Call, setting: Setting, **options: Any) -> Observation:
        """Run a call with the kernel under test, and return the result of `qkv.observe`."""
        return run_eagerly(call, setting, self.kernel, **options)
