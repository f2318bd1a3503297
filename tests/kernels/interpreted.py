"""Contract tests of kernels whose programs Triton's interpreter runs on tensors of the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qkv.testing.cases import SCORES
from qkv.testing.execution import oracle
from qkv.testing.kernel_harness import settings_of_kernel
from qkv.testing.kernels import KernelContract
from qkv.testing.libraries import Setting


class InterpretedContract(KernelContract):
    """The contract with another score in place of products, which these kernels do not compute under softmax."""

    twice = False
    in_place_of_products: str

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Without float16 in short runs, which interprets the same programs as bfloat16."""
        if "setting" not in metafunc.fixturenames:
            super().pytest_generate_tests(metafunc)
            return
        named = []
        for parameter in settings_of_kernel(self.kernel):
            (setting,) = parameter.values
            long = [pytest.mark.long] if setting.dtype == "float16" else parameter.marks
            named.append(pytest.param(setting, marks=long))
        metafunc.parametrize("setting", named, ids=str)
        if "score" in metafunc.fixturenames:
            metafunc.parametrize("score", sorted(SCORES))

    @pytest.fixture(autouse=True)
    def _other_score(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        for name in ("dot", "scaled dot"):
            monkeypatch.setitem(SCORES, name, SCORES[self.in_place_of_products])
        oracle.cache_clear()  # references of products
        yield
        oracle.cache_clear()

    def test_runs_scaled_dot_product_attention(self, setting: Setting) -> None:
        if setting.dtype != "float64":
            super().test_runs_scaled_dot_product_attention(setting)
