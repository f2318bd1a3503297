"""Modules under `vmap(grad)` with one set of parameters for each element give what each set gives alone."""

from collections.abc import Callable

import pytest
import torch
from torch.func import functional_call, grad, vmap

from qkv import masks, nn, normalizers, scores

CAUSAL = masks.Causal()
MODULES: dict[str, Callable[[], torch.nn.Module]] = {
    "talking heads": lambda: nn.MultiHeadAttention(8, 2, extensions=["talking_heads"], mask=CAUSAL),
    "talking heads that share a key": lambda: nn.MultiHeadAttention(8, 4, key_heads=2, extensions=["talking_heads"]),
    "temperature and sink": lambda: nn.MultiHeadAttention(8, 2, extensions=["temperature", "sink"]),
    "learned key": lambda: nn.MultiHeadAttention(8, 2, extensions=["learned_key", "zero_key"]),
    "gate and norms": lambda: nn.MultiHeadAttention(8, 2, extensions=["output_gate"], query_key_norm="rms"),
    "rotary": lambda: nn.MultiHeadAttention(8, 2, positions=nn.positions.Rotary(4)),
    "shared maps": lambda: nn.MultiHeadAttention(8, 2, maps=["shared", "value"]),
    "additive": lambda: nn.MultiHeadAttention(8, 2, score=nn.Additive),
    "additive top-k": lambda: nn.MultiHeadAttention(8, 2, score=nn.Additive, normalizer=normalizers.TopK(2)),
    "gaussian": lambda: nn.MultiHeadAttention(8, 2, score=nn.Gaussian),
    "cosine": lambda: nn.MultiHeadAttention(8, 2, score=nn.Cosine),
    "bilinear": lambda: nn.MultiHeadAttention(8, 2, score=nn.Bilinear),
    "features": lambda: nn.MultiHeadAttention(8, 2, score=scores.Features(), mask=CAUSAL),
    "latent": lambda: nn.LatentAttention(3, 8, 2),
    "encoder layer": lambda: nn.EncoderLayer(8, 2),
    "attention": lambda: nn.Attention(score=nn.Additive(8, 8, hidden=4)),
}


@pytest.mark.parametrize("name", MODULES)
def test_each_element_has_the_output_and_gradients_of_its_own_parameters(name: str) -> None:
    torch.manual_seed(0)
    module = MODULES[name]().double().eval()
    drawn = [{n: p.detach() + 0.1 * torch.randn_like(p) for n, p in module.named_parameters()} for _ in range(3)]
    batched = {n: torch.stack([each[n] for each in drawn]) for n in drawn[0]}
    x = torch.randn(3, 2, 5, 8, dtype=torch.float64)
    inputs = 3 if isinstance(module, nn.Attention) else 1

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = functional_call(module, parameters, (x,) * inputs)
        return output.sin().sum(), output

    gradients, outputs = vmap(grad(loss, has_aux=True))(batched, x)
    for n, own in enumerate(drawn):
        leaves = {name: p.clone().requires_grad_() for name, p in own.items()}
        wanted, output = loss(leaves, x[n])
        torch.testing.assert_close(outputs[n], output)
        slopes = torch.autograd.grad(wanted, list(leaves.values()), allow_unused=True, materialize_grads=True)
        torch.testing.assert_close([gradients[name][n] for name in leaves], list(slopes))
