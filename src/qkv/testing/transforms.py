"""Contract tests that `torch.func.vmap` and `grad` of a call give the same as one call for each mapped element."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, cast

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import qkv
from qkv.core.equation import attend_dense
from qkv.core.positions import Positions
from qkv.errors import RefusedError
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.scores import Score
from qkv.testing.cases import Call, Case
from qkv.testing.effort import LONG
from qkv.testing.kernel_harness import CASES, KernelHarness
from qkv.testing.libraries import Setting

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TransformContract"]

_FLOAT64 = Setting("torch", "float64")


class _Options(TypedDict):
    """Parts and options of a call."""

    score: Score
    normalizer: Normalizer
    mask: Mask | None
    positions: Positions | None
    dropout: float
    seed: int | None


class _MappedCall:
    """Several example calls of the same shapes, of which some arrays are mapped, and others are those of the first.

    Attributes:
        first: the first call.
        arrays: for each array of a call, the tensor to map, stacked along the axis `in_dims`, or the shared tensor.
        in_dims: for each array, the mapped axis or None.
        size: number of calls.
    """

    def __init__(self, case: Case, mapped: tuple[bool, ...], axis: int, size: int) -> None:
        import torch

        self.first, self.size = case.call(3), size
        each = [_arrays_of(case.call(3 + n)) for n in range(size)]
        self.in_dims: list[int | None] = []
        self.arrays: list[Tensor] = []
        for n, tensors in enumerate(zip(*each, strict=True)):
            stacks = mapped[n % len(mapped)]
            at = min(axis, tensors[0].ndim)
            self.in_dims.append(at if stacks else None)
            self.arrays.append(torch.stack(tensors, dim=at) if stacks else tensors[0])
        if not any(dim is not None for dim in self.in_dims):
            self.in_dims[0], self.arrays[0] = 0, torch.stack([x[0] for x in each])

    def element(self, n: int) -> list[Tensor]:
        """Return the arrays of call `n`."""
        return [x if dim is None else x.select(dim, n) for x, dim in zip(self.arrays, self.in_dims, strict=True)]

    def parts(self, arrays: tuple[Tensor, ...]) -> _Options:
        """Return the parts and options of a call with `arrays`."""
        found: dict[str, object] = {}
        rest = list(arrays[3:])
        for name in ("score", "normalizer", "mask"):
            part = getattr(self.first, name)
            count = 0 if part is None else len(part.arrays())
            found[name] = part.replace_arrays(rest[:count]) if count else part
            del rest[:count]
        first = self.first
        return cast("_Options", found | {"positions": first.positions, "dropout": first.dropout, "seed": first.seed})


def _arrays_of(call: Call) -> list[Tensor]:
    parts = (call.score, call.normalizer, call.mask)
    arrays = [x for part in parts if part is not None for x in part.arrays()]
    return [_FLOAT64.array(x) for x in (call.query, call.key, call.value, *arrays)]


class TransformContract(KernelHarness):
    """Contract tests of kernels under transforms of `torch.func`; kernels of other libraries pass them."""

    @settings(max_examples=25 if LONG else 12, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(
        CASES,
        st.lists(st.booleans(), min_size=7, max_size=7).map(tuple),
        st.integers(0, 2),
        st.integers(1, 3),
    )
    def test_vmap_and_gradients_of_each_element_are_those_of_one_call_for_each(
        self, case: Case, mapped: tuple[bool, ...], axis: int, size: int
    ) -> None:
        if "torch" not in self.kernel.libraries:
            return  # torch.func transforms only PyTorch
        import torch

        calls = _MappedCall(case, mapped, axis, size)
        floating = tuple(n for n, x in enumerate(calls.arrays) if x.is_floating_point())
        factor = torch.randn(1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

        def attend(*arrays: Tensor) -> Tensor:
            return cast("Tensor", qkv.attend(*arrays[:3], **calls.parts(arrays), kernel=self.kernel))

        def loss(*arrays: Tensor) -> tuple[Tensor, Tensor]:
            output = attend(*arrays)
            return (output.sin() * factor).sum(), output

        each = torch.func.grad(loss, argnums=floating, has_aux=True)
        try:
            self.run(calls.first, _FLOAT64)
        except RefusedError:
            return
        output = torch.func.vmap(attend, in_dims=tuple(calls.in_dims))(*calls.arrays)
        gradients, again = torch.func.vmap(each, in_dims=tuple(calls.in_dims))(*calls.arrays)
        torch.testing.assert_close(again, output, rtol=1e-9, atol=1e-9, equal_nan=True)
        for n in range(size):
            arrays = calls.element(n)
            leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in arrays]
            wanted = cast("Tensor", attend_dense(*leaves[:3], **calls.parts(tuple(leaves))).output)
            torch.testing.assert_close(output[n], wanted.detach(), rtol=1e-9, atol=1e-9, equal_nan=True)
            inputs = [leaves[i] for i in floating]
            slopes = torch.autograd.grad(
                (wanted.sin() * factor).sum(), inputs, allow_unused=True, materialize_grads=True
            )
            for got, slope in zip(gradients, slopes, strict=True):
                torch.testing.assert_close(got[n], slope, rtol=1e-7, atol=1e-8)
