"""Contract tests that every kernel must pass, as a class from which the tests of a kernel inherit.

    class TestTiled(KernelContract):
        kernel = TiledKernel(budget=12)

The inherited tests compare output and gradients with the reference for every score, normalizer, mask, dtype, array
library and shape that the kernel supports, and check the twelve rules of semantics. The budget of the kernel should be
so small that a call with a dozen keys needs several tiles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings

import qkv
from qkv.core.typing import ArrayLike
from qkv.errors import RefusedError
from qkv.plan import Kernel
from qkv.testing.call_semantics import CallSemanticsContract
from qkv.testing.cases import MASKS, NONNEGATIVE, NORMALIZERS, SCORES, SHAPES, Case
from qkv.testing.data_semantics import DataSemanticsContract
from qkv.testing.draw_semantics import DrawSemanticsContract
from qkv.testing.effort import LONG, turn
from qkv.testing.execution import inputs_of, oracle, parts_of
from qkv.testing.kernel_harness import CASES, KernelHarness, assert_agrees, settings_of_kernel
from qkv.testing.libraries import Setting, settings_of
from qkv.testing.transforms import TransformContract

__all__ = ["KernelContract"]

TWICE = [
    Case("additive", "softmax with temperature", "causal at the end"),
    Case("gaussian", "softmax with sink", "pairs"),
    Case("dot", "top-k with temperature and sink"),
    Case("dot", "sparsemax", "keys"),
    Case("similarity", "sum", "window"),
]


class KernelContract(
    DataSemanticsContract, CallSemanticsContract, DrawSemanticsContract, TransformContract, KernelHarness
):
    """Contract tests of kernels. Subclasses must set `kernel`, and set `quadratic` if its memory grows with q · k."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize `setting` with the libraries and dtypes of the kernel, `score` and `twice` with example calls."""
        if "setting" in metafunc.fixturenames:
            metafunc.parametrize("setting", settings_of_kernel(self.kernel), ids=str)
        if "score" in metafunc.fixturenames:
            metafunc.parametrize("score", sorted(SCORES))
        if "twice" in metafunc.fixturenames:  # in short runs, two tests take turns, and so do classes
            test = metafunc.definition.name.startswith("test_second")
            metafunc.parametrize("twice", turn(TWICE, self.number + test, 2), ids=str)

    def test_runs_scaled_dot_product_attention(self, setting: Setting) -> None:
        case = Case("scaled dot", "softmax", "none")
        assert self.accepts(case.call(), setting)
        self.check_cases(setting, [case])

    def test_agrees_with_the_oracle_for_every_score(self, setting: Setting) -> None:
        self.check_cases(setting, (Case(score, "softmax", "window") for score in self.sample(setting, SCORES)))

    def test_agrees_with_the_oracle_for_every_normalizer(self, setting: Setting) -> None:
        names = self.sample(setting, NORMALIZERS)
        self.check_cases(setting, (Case("similarity", normalizer, "causal at the end") for normalizer in names))

    def test_agrees_with_the_oracle_for_every_mask(self, setting: Setting) -> None:
        self.check_cases(setting, (Case("gaussian", "softmax", mask) for mask in self.sample(setting, MASKS)))

    @settings(max_examples=40 if LONG else 20, suppress_health_check=list(HealthCheck))
    @given(case=CASES)
    def test_agrees_with_the_oracle_for_combinations_drawn_at_random(self, case: Case) -> None:
        for setting in settings_of(tuple({"numpy", "torch"} & set(self.kernel.libraries)), ("float64",)):
            self.check_cases(setting, [case])

    @pytest.mark.long
    def test_agrees_with_the_oracle_for_all_combinations(self, setting: Setting, score: str) -> None:
        names = [name for name in NORMALIZERS if name != "sum" or score in NONNEGATIVE]
        masks = self.sample(setting, MASKS)
        if setting.library == "jax":  # compiling each call takes half a second
            names, masks = ["softmax", "top-k"], masks[::4]
        self.check_cases(setting, (Case(score, name, mask) for name in names for mask in masks))

    @pytest.mark.long
    def test_agrees_with_the_oracle_for_every_shape(self, setting: Setting, score: str) -> None:
        name = "sum" if score in NONNEGATIVE else "softmax"
        shapes = list(SHAPES)
        if setting.library == "jax":  # each dtype compiles a quarter of the shapes for a score, and all for four scores
            shapes = shapes[sorted(SCORES).index(score) % 4 :: 4]
        self.check_cases(setting, (Case(score, name, "causal by positions", shape) for shape in shapes))

    def check_cases(self, setting: Setting, cases: Iterable[Case]) -> None:
        """Assert that output and gradients agree with the reference for all cases that the kernel supports."""
        for case in cases:
            try:
                got = self.run(case.call(), setting)
            except RefusedError:
                continue
            # These scores are logarithms of kernels with compact support, which are steep at the boundary.
            slack = 10.0 if case.score in ("epanechnikov", "triangular") else 1.0
            assert_agrees(got, oracle(case, setting.dtype), setting, str(case), slack)

    def test_second_derivatives_are_right(self, twice: Case) -> None:
        if "torch" not in self.kernel.libraries:
            return  # other libraries are not tested
        import torch

        call, float64 = twice.call(), Setting("torch", "float64")

        def attend(*leaves: ArrayLike) -> ArrayLike:
            return qkv.attend(*leaves[:3], **parts_of(call, float64, leaves[3:]), kernel=self.kernel)

        leaves = [x.requires_grad_() for x in inputs_of(call, float64)]
        if self.twice:
            assert torch.autograd.gradgradcheck(attend, leaves, fast_mode=True)
            return
        with pytest.raises(RuntimeError, match=r"not implemented|cannot run this"):
            torch.autograd.gradgradcheck(attend, leaves, fast_mode=True)

    def test_differentiable_gradients_are_right_where_one_tensor_is_given_three_times(self, twice: Case) -> None:
        if "torch" not in self.kernel.libraries or not self.twice:
            return
        import torch

        call, float64 = replace(twice.call(), mask=None), Setting("torch", "float64")

        def gradients(kernel: Kernel | str) -> list[ArrayLike]:
            x, _, _, *arrays = (leaf.requires_grad_() for leaf in inputs_of(call, float64))
            output = cast("torch.Tensor", qkv.attend(x, x, x, **parts_of(call, float64, arrays), kernel=kernel))
            first = torch.autograd.grad(output.sin().sum(), [x, *arrays], create_graph=True)
            return [*first, *torch.autograd.grad([g.square().sum() for g in first], [x, *arrays])]

        for got, wanted in zip(gradients(self.kernel), gradients("dense"), strict=True):
            torch.testing.assert_close(got, wanted)

    def test_arrays_laid_out_in_strides_give_the_same(self, setting: Setting) -> None:
        self.assert_as_oracle(Case("scaled dot", "softmax", "none", "strided").call(), setting)
