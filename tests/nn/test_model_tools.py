"""PyTorch's tools on layers and models: compilation, copies, saved states, the meta device."""

import copy
import importlib.util
import pickle
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

from qkv import masks, nn
from qkv.nn.positions import Learned, Rotary, Sinusoidal
from tests.effort import sample

LENGTHS = masks.Lengths(torch.tensor([5, 3]))


def both(model: Any) -> Any:
    return lambda x: model(x, x[:, :4], source_mask=LENGTHS)


MODELS = {
    "encoder": lambda: (nn.Encoder(2, 8, 2, mask=masks.Causal(), positions=Rotary(4)), lambda m: m),
    "post-norm, additive": lambda: (nn.Encoder(1, 8, 2, norm="post", score=nn.Additive), lambda m: m),
    "transformer": lambda: (nn.Transformer(8, 2, encoder_layers=1, decoder_layers=1), both),
    "latent": lambda: (nn.LatentAttention(3, 8, 2, layers=1), lambda m: m),
    "squeeze": lambda: (nn.SqueezeExcitation(5, 2), lambda m: m),
    "sinusoidal": lambda: (Sinusoidal(8, 16), lambda m: m),
    "learned": lambda: (Learned(16, 8), lambda m: m),
}


def made(name: str) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model, call = MODELS[name]()
    return model, call, torch.randn(2, 5, 8)


@pytest.mark.parametrize("name", sample(MODELS, 3))
def test_a_model_compiles_without_graph_breaks_to_the_same_output_and_gradients(name: str) -> None:
    model, call, x = made(name)
    torch._dynamo.reset()
    compiled = torch.compile(call(model), backend="aot_eager", fullgraph=True)
    x.requires_grad_()
    one, other = compiled(x), call(model)(x)
    assert torch.allclose(one, other, atol=1e-6)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (one, other)), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("name", MODELS)
def test_a_copy_of_a_model_gives_the_same_output_and_shares_no_memory(name: str, again: Any) -> None:
    model, call, x = made(name)
    other = again(model)
    want = call(model)(x)
    assert torch.equal(call(other)(x), want)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert torch.equal(call(other)(x), want)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_built_on_meta_with_a_loaded_state_gives_the_same_output(name: str) -> None:
    model, call, x = made(name)
    with torch.device("meta"):
        other, _ = MODELS[name]()
    other = other.to_empty(device="cpu")
    for module in other.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert all(bool(y.isfinite().all()) for y in (*other.parameters(), *other.buffers()))
    other.load_state_dict(model.state_dict())
    assert torch.equal(call(other)(x), call(model)(x))
