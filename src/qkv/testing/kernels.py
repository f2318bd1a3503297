"""The contract of a kernel.

    class TestTiled(KernelContract):
        kernel = TiledKernel(budget=12)

Everything is inherited: agreement with the oracle, in output and gradient, for every score, normalizer, mask, dtype,
array library and shape that the kernel does not refuse; and the twelve rules of meaning. Give the kernel a budget so
small that a call of a dozen keys takes several tiles.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.errors import RefusedError
from qkv.testing.calls import oracle, oracle_of, run
from qkv.testing.cases import MASKS, NONNEGATIVE, NORMALIZERS, SCORES, SHAPES, Case
from qkv.testing.claims import Claims, agree, settings_of_kernel
from qkv.testing.libraries import Setting
from qkv.testing.rules_of_calls import RulesOfCalls
from qkv.testing.rules_of_data import RulesOfData
from qkv.testing.rules_of_draws import RulesOfDraws

__all__ = ["KernelContract"]

CASES = st.builds(
    Case,
    st.sampled_from(sorted(SCORES)),
    st.sampled_from(sorted(NORMALIZERS)),
    st.sampled_from(sorted(MASKS)),
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from([0.0, 0.0, 0.4]),
).map(lambda case: case if case.sensible else Case("similarity", "sum", case.mask, case.shape, case.dropout))


class KernelContract(RulesOfData, RulesOfCalls, RulesOfDraws, Claims):
    """Inherit and name the kernel; `quadratic = True` for one whose memory is q · k."""

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """`setting` runs over what the kernel claims; JAX compiles for long, so most of it waits for the long run."""
        if "setting" in metafunc.fixturenames:
            metafunc.parametrize("setting", settings_of_kernel(self.kernel), ids=str)
        if "score" in metafunc.fixturenames:
            metafunc.parametrize("score", sorted(SCORES))

    def test_agrees_with_the_oracle_for_every_score(self, setting: Setting) -> None:
        self.agrees(setting, (Case(score, "softmax", "window") for score in self.some(setting, SCORES)))

    def test_agrees_with_the_oracle_for_every_normalizer(self, setting: Setting) -> None:
        names = self.some(setting, NORMALIZERS)
        self.agrees(setting, (Case("similarity", normalizer, "causal at the end") for normalizer in names))

    def test_agrees_with_the_oracle_for_every_mask(self, setting: Setting) -> None:
        self.agrees(setting, (Case("gaussian", "softmax", mask) for mask in self.some(setting, MASKS)))

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(case=CASES)
    def test_agrees_with_the_oracle_for_combinations_drawn_at_random(self, case: Case) -> None:
        for setting in settings_of_kernel(self.kernel, drawn=True):
            self.agrees(setting, [case], skip=False)

    @pytest.mark.long
    def test_agrees_with_the_oracle_for_all_combinations(self, setting: Setting, score: str) -> None:
        names = [name for name in NORMALIZERS if name != "sum" or score in NONNEGATIVE]
        if setting.library == "jax":
            names = ["softmax", "top-k", "sparsemax"]
        masks = self.some(setting, MASKS)
        self.agrees(setting, (Case(score, name, mask) for name in names for mask in masks))

    @pytest.mark.long
    def test_agrees_with_the_oracle_for_every_shape(self, setting: Setting, score: str) -> None:
        name = "sum" if score in NONNEGATIVE else "softmax"
        self.agrees(setting, (Case(score, name, "causal by positions", shape) for shape in SHAPES))

    def agrees(self, setting: Setting, cases: Any, skip: bool = True) -> None:
        """Compare output and gradient; `skip` the test where the kernel refuses all cases."""
        ran = 0
        for case in cases:
            try:
                got = run(case.call(), setting, self.kernel)
            except RefusedError:
                continue
            ran += 1
            agree(got, oracle(case, setting.dtype), setting, str(case))
        if skip and not ran:
            pytest.skip(f"{self.kernel.name} refuses all of it")

    def test_arrays_laid_out_in_strides_give_the_same(self, setting: Setting) -> None:
        call = Case("scaled dot", "softmax", "none", "strided").call()
        agree(run(call, setting, self.kernel), oracle_of(call, setting), setting)
