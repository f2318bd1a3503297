"""The chunked kernel satisfies the contract of every kernel: whole arrays are cut into chunks before it runs."""

from typing import Any

import pytest
import torch

from qkv.cache.kernel import ChunkedCall, ChunkedKernel, ChunkedTensor, attend_chunked
from qkv.errors import RefusedError
from qkv.plan.spec import Spec
from qkv.testing.cases import SCORES, Case
from qkv.testing.execution import oracle, run
from qkv.testing.kernel_harness import assert_agrees, settings_of_kernel
from qkv.testing.kernels import KernelContract
from qkv.testing.libraries import Setting
from tests.effort import LONG


def cut(x: Any, rows: int, finite: bool) -> ChunkedTensor:
    chunks = tuple(x.split(rows, dim=-2)) if x.shape[-2] else (x,)
    return ChunkedTensor(chunks, (None,) * len(chunks), x.dtype, finite)


class CutIntoChunks(ChunkedKernel):
    """The chunked kernel on whole arrays, cut into chunks of four rows."""

    def run(self, call: Any, problem: Any) -> Any:
        key, value = cut(call.key, 4, call.finite_sides), cut(call.value, 4, call.finite_value)
        return super().run(ChunkedCall.of(call, key, value, (call.finite_sides, call.finite_value)), problem)


class TestChunked(KernelContract):
    kernel = CutIntoChunks()
    quadratic = True
    many_keys = 1_000_000 if LONG else 100_000  # in chunks of four rows

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Float64; all dtypes in the long run."""
        if "setting" not in metafunc.fixturenames:
            super().pytest_generate_tests(metafunc)
            return
        named = []
        for (setting,), *_ in settings_of_kernel(self.kernel):
            quick = setting.dtype == "float64"
            named.append(pytest.param(setting, marks=[] if quick else [pytest.mark.long]))
        metafunc.parametrize("setting", named, ids=str)
        if "score" in metafunc.fixturenames:
            metafunc.parametrize("score", sorted(SCORES))

    def test_hundred_thousand_keys_fit_or_are_refused(self, setting: Setting) -> None:
        """Rows of all queries at once would not fit; the chunks are concatenated instead."""
        with pytest.raises(RefusedError, match="100000 queries exceed"):
            self.peak(100_000, setting, "2 GiB")


def test_rows_beyond_the_memory_allowed_leave_the_chunks_to_be_concatenated() -> None:
    query, key = torch.randn(1, 8), cut(torch.randn(4000, 8), 1000, True)
    spec = Spec()
    assert attend_chunked(query, key, key, spec, memory="64 KiB") is None
    assert attend_chunked(query, key, key, spec, memory="4 MiB") is not None


@pytest.mark.parametrize("score", ["bilinear", "gaussian", "additive", "scaled dot"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_chunks_of_other_dtypes_agree_with_the_oracle(score: str, dtype: str) -> None:
    setting, case = Setting("torch", dtype), Case(score, "softmax", "window")
    assert_agrees(run(case.call(), setting, CutIntoChunks()), oracle(case, dtype), setting, str(case))


def test_heads_that_share_a_key_do_not_copy_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.cache import kernel as chunked

    shapes, product = [], chunked._product

    def watched(left: Any, right: Any) -> Any:
        shapes.append((tuple(left.shape), tuple(right.shape)))
        found = product(left, right)
        assert found.shape == (left @ right).shape
        assert torch.allclose(found, left @ right)
        return found

    monkeypatch.setattr(chunked, "_product", watched)
    query, key = torch.randn(2, 3, 4, 1, 8), torch.randn(2, 3, 1, 10, 8)
    with torch.no_grad():
        attend_chunked(query, cut(key, 4, True), cut(key, 4, True), Spec())
    assert [right[2] for _, right in shapes] == [1] * 6
