"""The attention modules of Flax NNX and Equinox compute what the PyTorch module with the same weights computes."""

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if not all(importlib.util.find_spec(name) for name in ("jax", "flax", "equinox", "torch")):
    pytest.skip("JAX, Flax, Equinox or PyTorch is not installed", allow_module_level=True)

import equinox
import jax
import jax.numpy as jnp
import torch
from flax import nnx

from qkv import masks, nn, normalizers, readouts, scores
from qkv.core import extras
from qkv.core.positions import Positions
from qkv.errors import MissingPackageError, OptionError, ShapeError
from qkv.interop import equinox as ours_equinox
from qkv.interop import flax as ours_flax
from qkv.testing.libraries import assert_close, to_float64

LIBRARIES = ("flax", "equinox")
MAPS = ("query_map", "key_map", "value_map", "output_map")


def _build(library: str, *args: Any, **options: Any) -> Any:
    if library == "flax":
        return ours_flax.MultiHeadAttention(*args, **options, rngs=nnx.Rngs(0))
    return ours_equinox.MultiHeadAttention(*args, **options, key=jax.random.key(0))


def _copy_weights(theirs: Any, module: Any) -> Any:
    """Return a JAX module with the projections of a PyTorch module."""
    for name in MAPS:
        layer = getattr(theirs, name)
        weight, bias = (None if x is None else jnp.asarray(x.detach().numpy()) for x in (layer.weight, layer.bias))
        if isinstance(module, nnx.Module):
            getattr(module, name).kernel.set_value(weight.T)
            if bias is not None:
                getattr(module, name).bias.set_value(bias)
        else:
            for field, array in (("weight", weight), ("bias", bias)):
                if array is not None:
                    module = equinox.tree_at(
                        lambda m, of=(name, field): getattr(getattr(m, of[0]), of[1]), module, array
                    )
    return module


def _to_jax(part: Any) -> Any:
    """Return a part of PyTorch tensors or NumPy arrays with JAX arrays."""
    return None if part is None else part.map_arrays(lambda x: jnp.asarray(np.asarray(torch.as_tensor(x).detach())))


SCORES: dict[str, Any] = {
    "scaled dot": lambda heads: None,
    "bilinear per head": lambda heads: scores.Bilinear(torch.randn(heads, 4, 4)),
    "additive": lambda heads: scores.Additive(torch.randn(4, 4), torch.randn(4, 4), None, torch.randn(4)),
}
NORMALIZERS: dict[str, Any] = {
    "softmax": lambda heads: None,
    "sink per head": lambda heads: normalizers.Softmax(sink=torch.randn(heads)),
    "sparsemax": lambda heads: normalizers.Sparsemax(),
}
MASKS: dict[str, Any] = {"none": None, "causal": masks.Causal("end"), "lengths": masks.Lengths(np.array([3, 7]))}


@settings(max_examples=3, deadline=None)
@given(
    library=st.sampled_from(LIBRARIES),
    score=st.sampled_from(sorted(SCORES)),
    normalizer=st.sampled_from(sorted(NORMALIZERS)),
    mask=st.sampled_from(sorted(MASKS)),
    key_heads=st.sampled_from([4, 2, 1]),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_output_is_that_of_the_torch_module_with_the_same_weights(
    library: str, score: str, normalizer: str, mask: str, key_heads: int, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    options: dict[str, Any] = {"key_width": 6, "value_width": 5, "head_width": 4, "key_heads": key_heads, "bias": bias}
    parts = SCORES[score](4), NORMALIZERS[normalizer](4)
    theirs = nn.MultiHeadAttention(8, 4, score=parts[0], normalizer=parts[1], **options)
    ours = _build(library, 8, 4, score=_to_jax(parts[0]), normalizer=_to_jax(parts[1]), **options)
    ours = _copy_weights(theirs, ours)
    inputs = [torch.randn(2, n, width) for n, width in ((5, 8), (7, 6), (7, 5))]
    wanted = theirs(*inputs, mask=MASKS[mask])
    got = ours(*(jnp.asarray(x.numpy()) for x in inputs), mask=_to_jax(MASKS[mask]))
    assert_close(got, to_float64(wanted.detach()), 1e-5, min_scale=0.1)


def _models(**options: Any) -> tuple[Any, dict[str, Any]]:
    torch.manual_seed(0)
    theirs = nn.MultiHeadAttention(8, 2, score=scores.Bilinear(torch.randn(2, 4, 4)), mask=masks.Causal(), **options)
    score = _to_jax(theirs.score())
    return theirs, {
        library: _copy_weights(theirs, _build(library, 8, 2, score=score, mask=masks.Causal(), **options))
        for library in LIBRARIES
    }


def test_gradients_are_those_of_the_torch_module() -> None:
    theirs, ours = _models()
    x = torch.randn(3, 5, 8)
    (theirs(x) ** 2).sum().backward()
    wanted = {name: getattr(theirs, name).weight.grad for name in MAPS}
    array = jnp.asarray(x.numpy())

    def loss(model: Any, x: Any) -> Any:
        return (model(x) ** 2).sum()

    of_flax = nnx.jit(nnx.grad(loss))(ours["flax"], array)
    of_equinox = equinox.filter_jit(equinox.filter_grad(loss))(ours["equinox"], array)
    for name in MAPS:
        assert_close(of_flax[name]["kernel"].get_value().T, to_float64(wanted[name]), 1e-4, min_scale=0.1)
        assert_close(getattr(of_equinox, name).weight, to_float64(wanted[name]), 1e-4, min_scale=0.1)
    # The score is a parameter of the module: its gradients in both libraries agree.
    assert_close(of_flax["score"].get_value().weight, to_float64(of_equinox.score.weight), 1e-4)
    assert np.any(of_equinox.score.weight)


def test_vmap_of_an_equinox_module_is_its_output_for_a_batch() -> None:
    _, ours = _models()
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 8)), dtype="float32")
    assert_close(jax.vmap(ours["equinox"])(x), to_float64(ours["equinox"](x)), 1e-6)


def test_readouts_have_an_axis_of_heads() -> None:
    _, ours = _models()
    x = jnp.ones((3, 5, 8))
    for model in ours.values():
        found = model(x, readouts=[readouts.Dense()])
        assert found.readouts[0].shape == (3, 2, 5, 5)
        assert_close(found.output, to_float64(model(x)), 1e-6)


def test_dropout_draws_anew_in_training_and_not_in_inference() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 6, 8)), dtype="float32")
    flax = _build("flax", 8, 2, dropout=0.5)
    assert not np.allclose(flax(x), flax(x))
    flax.eval()
    assert_close(flax(x), to_float64(flax(x)), 0.0)
    model = _build("equinox", 8, 2, dropout=0.5)
    one, other = (model(x, key=jax.random.key(n)) for n in (1, 2))
    assert not np.allclose(one, other)
    assert_close(model(x, key=jax.random.key(1)), to_float64(one), 0.0)
    with pytest.raises(OptionError, match="key must be a random key"):
        model(x)
    assert_close(equinox.nn.inference_mode(model)(x), to_float64(model(x, inference=True)), 0.0)


@pytest.mark.parametrize("library", LIBRARIES)
def test_positions_apply_to_queries_among_more_keys(library: str) -> None:
    model = _build(library, 8, 2, mask=masks.Causal())
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 8)), dtype="float32")
    last = model(x[:, 4:], x, positions=Positions(align="end"))
    assert_close(last, to_float64(model(x)[:, 4:]), 1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_wrong_options_and_shapes_are_refused(library: str) -> None:
    with pytest.raises(OptionError, match="width must be divisible by heads=4"):
        _build(library, 10, 4)
    with pytest.raises(OptionError, match="key_heads must divide heads=4, got 3"):
        _build(library, 8, 4, key_heads=3)
    with pytest.raises(OptionError, match=r"dropout must be a number in \[0, 1\)"):
        _build(library, 8, 4, dropout=1.5)
    with pytest.raises(ShapeError, match=r"query must have shape \(\*batch, n, 8\), got \(5, 7\)"):
        _build(library, 8, 4)(jnp.ones((5, 7)))


@pytest.mark.parametrize(("package", "library"), [(ours_flax, "flax"), (ours_equinox, "equinox")])
def test_missing_package_is_named_with_the_extra_that_installs_it(
    package: Any, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {library!r}", name=library)

    monkeypatch.setattr(extras, "import_module", fail)
    with pytest.raises(MissingPackageError, match=rf'{library}, which is not installed.*"qkv\[jax-nn\]"'):
        package.__getattr__("MultiHeadAttention")
