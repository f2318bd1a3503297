"""JAX's fused attention and loops on accelerators: plans, lowered programs, and results of the portable function."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import qkv
from qkv import masks, scores
from qkv.kernels.jax_fused.kernel import JaxFusedKernel
from qkv.plan.devices import _jax_gpu, device_of
from qkv.testing.kernels import KernelContract
from qkv.testing.libraries import Setting
from tests.kernels.lowered import lowered, with_cudnn

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

KERNEL = JaxFusedKernel(implementation="xla")
LONG = (16, 8192, 64)


@pytest.mark.long
class TestJaxFused(KernelContract):
    kernel = KERNEL
    twice = True
    quadratic = True

    def test_runs_scaled_dot_product_attention(self, setting: Setting) -> None:
        if setting.dtype != "float64":
            super().test_runs_scaled_dot_product_attention(setting)

    def test_hundred_thousand_keys_fit_or_are_refused(self, setting: Setting) -> None:
        if setting.dtype != "float64":
            super().test_hundred_thousand_keys_fit_or_are_refused(setting)


def arrays(*shapes: tuple[int, ...], dtype: str = "float32") -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


@pytest.mark.parametrize("mask", [None, masks.Causal("start")])
def test_output_and_gradients_agree_with_the_reference(mask: masks.Mask | None) -> None:
    """With shared key heads, and with values of another width."""
    shapes = (2, 3, 2, 7, 5), (2, 3, 1, 9, 5), (2, 3, 1, 9, 4)

    def loss(*sides):  # type: ignore[no-untyped-def]
        output = qkv.attend(*sides, score=scores.Dot(), mask=mask, kernel=KERNEL)
        return (output * jnp.arange(4.0)).sum(), output

    gradients, output = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*arrays(*shapes))
    tensors = [torch.tensor(np.asarray(x), dtype=torch.float64, requires_grad=True) for x in arrays(*shapes)]
    wanted = qkv.attend(*tensors, score=scores.Dot(), mask=mask, kernel="dense")
    of_tensors = torch.autograd.grad((wanted * torch.arange(4.0)).sum(), tensors)
    for x, y in zip((output, *gradients), (wanted, *of_tensors), strict=True):
        assert np.allclose(x, y.detach(), atol=2e-5)


def test_what_is_not_finite_reaches_only_the_queries_that_may_attend_to_it() -> None:
    query, key, value = arrays((6, 4), (6, 4), (6, 4))
    query, key, value = query.at[1].set(np.nan), key.at[3].set(np.inf), value.at[5, 0].set(np.nan)
    output = jax.jit(lambda *sides: qkv.attend(*sides, mask=masks.Causal(), kernel=KERNEL))(query, key, value)
    assert np.isnan(output).any(-1).tolist() == [False, True, False, True, True, True]


def test_inner_products_in_half_precision_are_planned_for_cudnn_on_gpus() -> None:
    options = {"library": "jax", "dtype": "bfloat16", "device": "H100"}
    for mask in (None, masks.Causal()):
        plan = qkv.explain(LONG, LONG, LONG, **options, mask=mask, gradient=True)
        assert plan.kernel.name == "jax_fused"
        assert 'implementation="cudnn"' in str(plan)
    for change in ({"dtype": "float32"}, {"mask": masks.Window(64, 0)}, {"score": scores.Gaussian(1.0)}):
        assert qkv.explain(LONG, LONG, LONG, **(options | change)).kernel.name == "jax_loops"
    wide = (16, 8192, 192)
    with_tokamax = qkv.explain(wide, wide, wide, **(options | {"device": "A100"}), kernel=JaxFusedKernel("tokamax"))
    assert "tokamax.dot_product_attention" in str(with_tokamax)
    assert qkv.explain(LONG, LONG, LONG, library="jax", dtype="bfloat16").kernel.name == "jax_loops"


def test_a_call_that_a_library_refuses_runs_in_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tokamax does on a CPU."""

    def refuse(*_: object, **options: object) -> None:
        assert "xla" not in options["implementation"]
        raise ExceptionGroup("all implementations failed", [NotImplementedError("Not supported on cpu.")])

    tokamax = SimpleNamespace(dot_product_attention=refuse)
    monkeypatch.setattr("qkv.kernels.jax_fused.kernel.import_module", lambda _: tokamax)
    sides = arrays((2, 9, 4), (2, 9, 4), (2, 9, 4), dtype="bfloat16")
    seen = qkv.observe(*sides, kernel=JaxFusedKernel("tokamax"))
    assert "tokamax refused the call" in str(seen.plan)
    wanted = qkv.attend(*(np.asarray(x, np.float64) for x in sides))
    assert np.allclose(np.asarray(seen.output, np.float64), wanted, atol=2e-2)


@pytest.mark.parametrize("gradient", [False, True])
def test_a_planned_call_is_lowered_to_cudnn(gradient: bool) -> None:
    shape = (2, 128, 64)
    spec = qkv.Spec(None, None, masks.Causal(), None)
    run = qkv.prepare(spec, (shape,) * 3, library="jax", dtype="bfloat16", device="H100", gradient=gradient)

    def loss(*sides):  # type: ignore[no-untyped-def]
        return run(*sides).output.sum().astype(jnp.float32)

    with with_cudnn():
        text = lowered(jax.grad(loss, argnums=(0, 1, 2)) if gradient else loss, [shape] * 3, "bfloat16", "cuda")
    assert ("__cudnn$fmhaSoftmaxBackward" in text) == gradient
    assert "__cudnn$fmhaSoftmax" in text


@pytest.mark.thinned
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("gradient", [False, True])
def test_the_loops_are_lowered(platform: str, gradient: bool) -> None:
    weight = jnp.ones((4, 8))
    score = scores.Additive(weight, weight, None, jnp.ones(4))

    def loss(*sides):  # type: ignore[no-untyped-def]
        return qkv.attend(*sides, score=score, mask=masks.Causal(), kernel="jax_loops").sum()

    shape = (2, 64, 8)
    text = lowered(jax.grad(loss, argnums=(0, 1, 2)) if gradient else loss, [shape] * 3, "float32", platform)
    assert "stablehlo.while" in text


def test_gpus_are_described_by_what_jax_states() -> None:
    device = SimpleNamespace(
        device_kind="NVIDIA H100 80GB HBM3", compute_capability="9.0", core_count=132, platform="gpu",
        memory_stats=lambda: {"bytes_limit": 60_000_000_000},
    )  # fmt: skip
    found = _jax_gpu.__wrapped__(device)
    assert (found.memory, found.capability, found.present) == (60_000_000_000, (9, 0), True)
    assert not device_of(jnp.zeros(1)).is_gpu
