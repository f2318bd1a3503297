"""What a kernel claims: settings it runs in, calls it does not refuse; and how answers are compared."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from qkv.errors import RefusedError
from qkv.plan import Kernel
from qkv.readouts import Readout
from qkv.testing.cases import NORMALIZERS, Call, Case
from qkv.testing.execution import Outcome, run, run_eagerly
from qkv.testing.libraries import Setting, assert_close, installed

__all__ = ["KernelHarness", "assert_agrees", "settings_of_kernel"]

DTYPES = ("float64", "float32", "float16", "bfloat16")
OUTPUT = {"float64": 1e-11, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
GRADIENT = {"float64": 1e-9, "float32": 5e-4, "float16": 2e-3, "bfloat16": 1e-2}
"""Largest error over largest magnitude. Half precision: a rounding of the answer, accumulated in float32."""


def settings_of_kernel(kernel: Kernel, drawn: bool = False) -> list[Any]:
    """Array libraries and dtypes; `drawn`: one for each library, for examples drawn at random."""
    out: list[Any] = []
    for library in kernel.libraries:
        for dtype in DTYPES:
            if not installed(library) or (library, dtype) == ("numpy", "bfloat16"):
                continue
            long = library == "jax" and dtype != "float32"
            # TensorFlow takes seconds to load: a kernel for it alone says that this is what is to be run.
            long |= library == "tensorflow" and len(kernel.libraries) > 1
            if drawn:
                if dtype == "float64" and library not in ("jax", "tensorflow"):
                    out.append(Setting(library, dtype))
                continue
            out.append(pytest.param(Setting(library, dtype), marks=[pytest.mark.long] if long else []))
    return out


def assert_agrees(got: Outcome, wanted: Outcome, setting: Setting, said: str = "", slack: float = 1.0) -> None:
    """Fail unless output and gradients are those of the oracle, to the dtype's rounding times `slack`."""
    said = f"{said} {setting}"
    assert_close(got.output, wanted.output, slack * OUTPUT[setting.dtype], said=f"{said}, output:", least=0.1)
    for n, (mine, theirs) in enumerate(zip(got.gradients, wanted.gradients, strict=False)):
        assert_close(mine, theirs, slack * GRADIENT[setting.dtype], said=f"{said}, gradient {n}:", least=0.1)


def allow_refusal(test: Callable[..., Any]) -> Callable[..., Any]:
    """The test, passed too where the kernel under test refuses in its own name and says why."""

    @functools.wraps(test)
    def accepting(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            test(self, *args, **kwargs)
        except RefusedError as refusal:
            # Any other refusal, or one without a reason, is a failure.
            if not re.match(rf"the kernel {self.kernel.name} cannot run this: .{{10}}", str(refusal)):
                raise

    accepting.accepts_refusal = True  # type: ignore[attr-defined]
    return accepting


class KernelHarness:
    """What every test of a kernel needs: the kernel, and a way to run what it does not refuse.

    A kernel need not run everything. What it does not run it must refuse in a sentence, and each inherited
    test accepts that; `test_runs_scaled_dot_product_attention` is the one thing every kernel must run.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in dir(cls):
            test = getattr(cls, name)
            if name.startswith("test_") and not hasattr(test, "accepts_refusal"):
                setattr(cls, name, allow_refusal(test))

    kernel: ClassVar[Kernel]
    quadratic: ClassVar[bool] = False
    """Its memory is q · k."""
    twice: ClassVar[bool] = True
    """Its gradient can be differentiated again, in PyTorch."""

    def sample(self, setting: Setting, names: Iterable[str]) -> list[str]:
        """All names in float64; in the other dtypes some of them, each time others."""
        # JAX compiles each for long: outside the long run, which has its other dtypes, few are enough.
        step = 8 if str(setting) == "jax-float32" else min(3, 1 + DTYPES.index(setting.dtype))
        return list(names)[DTYPES.index(setting.dtype) % step :: step]

    def each_normalizer(self, setting: Setting, **changes: Any) -> Iterator[tuple[str, Call]]:
        """A call for each normalizer that the kernel takes, with a score that suits it."""
        for name in self.sample(setting, NORMALIZERS):
            call = replace(Case("similarity" if name == "sum" else "dot", name).call(), **changes)
            if self.accepts(call, setting):
                yield name, call

    def accepts(self, call: Call, setting: Setting, readouts: Sequence[Readout] = ()) -> bool:
        """Whether the kernel does not refuse the call's facts."""
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

    def run(self, call: Call, setting: Setting, gradient_of: Any = None) -> Outcome:
        """Output and gradients."""
        return run(call, setting, self.kernel, gradient_of=gradient_of)

    def observe(self, call: Call, setting: Setting, **options: Any) -> Any:
        """What `observe` gives."""
        return run_eagerly(call, setting, self.kernel, **options)
