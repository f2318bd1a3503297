"""Claim: a model of six layers trains as fast with `qkv.nn` as one written on PyTorch's fused attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from benchmarks._calls import WrongError, apart
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._race import race

LAYERS = 6
CASES = (
    # width, heads, tokens, batch, hidden units of each head's additive score (None: scaled dot product)
    (256, 4, 512, 2, None),
    (512, 8, 512, 1, None),
    (512, 8, 1024, 1, None),
    (512, 4, 512, 1, 16),
    (512, 8, 512, 1, 16),
    (512, 4, 512, 1, 64),
)
COMPILED = ((256, 4, 512, 2, None), (512, 8, 512, 1, None))
"""Cases whose models are also compared after `torch.compile`."""


class _Layer(torch.nn.Module):
    """A layer written on PyTorch's fused attention: pre-norm, GELU, the same parameters."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.maps = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(4))
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.inward, self.outward = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        normed = self.norms[0](x)
        sides = (m(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in self.maps[:3])
        mixed = functional.scaled_dot_product_attention(*sides).transpose(1, 2).flatten(2)
        x = x + self.maps[3](mixed)
        return x + self.outward(functional.gelu(self.inward(self.norms[1](x))))

    def same(self, layer: Any) -> list[tuple[Any, Any]]:
        """Return its parameters with those of our layer."""
        attention, forward = layer.attention, layer.feed_forward
        ours = (attention.query_map, attention.key_map, attention.value_map, attention.output_map)
        return [
            *zip(self.maps, ours, strict=True),
            *zip(self.norms, (layer.attention_norm, layer.feed_forward_norm), strict=True),
            (self.inward, forward.inward),
            (self.outward, forward.outward),
        ]


def _models(width: int, heads: int, hidden: int | None) -> tuple[Any, Any]:
    """Return our model and the peer, with equal parameters where they share them."""
    from qkv import nn

    torch.manual_seed(0)
    options = {} if hidden is None else {"score": partial(nn.Additive, hidden=hidden)}
    ours = nn.Encoder(LAYERS, width, heads, final_norm=False, activation="gelu", **options)
    theirs = torch.nn.Sequential(*(_Layer(width, heads) for _ in range(LAYERS)))
    for mine, layer in zip(ours.layers, theirs, strict=True):
        for its, own in layer.same(mine):
            its.load_state_dict(own.state_dict())
    return ours, theirs


def _gradients(model: Any, x: Any) -> tuple[Any, list[Any]]:
    output = model(x)
    return output, list(torch.autograd.grad(output.square().mean(), list(model.parameters())))


def _check(ours: Any, theirs: Any, hidden: int | None, x: Any) -> dict[str, float]:
    """Return the differences of output and gradients from those of the peer, or of the dense kernel."""
    if hidden is None:
        found = {"output": apart(ours(x), theirs(x))}
        for layer, mine in zip(theirs, ours.layers, strict=True):
            for its, own in layer.same(mine):
                wanted = torch.autograd.grad(theirs(x).square().mean(), its.weight)[0]
                got = torch.autograd.grad(ours(x).square().mean(), own.weight)[0]
                found["gradient"] = max(found.get("gradient", 0.0), apart(got, wanted))
            break  # the gradients of the first layer depend on all other layers
        who = "torch"
    else:
        output, gradients = _gradients(ours, x)
        for layer in ours.layers:
            layer.attention.kernel = "dense"
        exact, wanted = _gradients(ours, x)
        for layer in ours.layers:
            layer.attention.kernel = None
        largest = max(float(g.abs().max()) for g in wanted)
        pairs = zip(gradients, wanted, strict=True)
        found = {"output": apart(output, exact)}
        found["gradient"] = max(float((a - b).abs().max()) for a, b in pairs) / largest
        who = "dense"
    for what, distance in found.items():
        if not distance <= 1e-3:
            raise WrongError(f"the {what} is {distance:.2g} from that of {who}.")
    return {f"{who}, {what}": distance for what, distance in found.items()}


def _step(model: Any, x: Any) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def rows(setting: Setting) -> Iterator[Row]:
    """Measure one step of AdamW: forward, backward and update, on one thread."""
    torch.set_num_threads(1)
    for width, heads, tokens, batch, hidden in setting.some(CASES, 3):
        ours, theirs = _models(width, heads, hidden)
        x = torch.randn(batch, 64 if setting.quick else tokens, width)
        # The dense oracle stores n² · hidden numbers for each head, so only some tokens are compared.
        errors = _check(ours, theirs, hidden, x[:1, :96])
        told = "scaled dot" if hidden is None else f"additive, {hidden} units a head"
        yield race({"qkv": _step(ours, x), "torch": _step(theirs, x)}, setting.rounds).row(
            f"{told}, width {width}, {heads} heads, {batch} × {tokens} tokens",
            "torch",
            AtMost(1.05 if hidden is None else 1.5),
            errors=errors,
            note="the peer uses scaled dot product in every row, so for other scores the ratio is the cost of "
            "changing the score",
        )
        if (width, heads, tokens, batch, hidden) in COMPILED:
            yield race(
                {"qkv": _step(torch.compile(ours), x), "torch": _step(torch.compile(theirs), x)}, setting.rounds
            ).row(
                f"{told}, width {width}, {heads} heads, {batch} × {tokens} tokens, both compiled",
                "torch",
                AtMost(1.05),
                note="torch.compile with inductor; the optimizer is not compiled",
            )


CLAIM = Claim(
    f"A model of {LAYERS} layers trains with qkv.nn as fast as one written on PyTorch's fused attention, "
    "and in at most 1.5 × its time with the additive score.",
    "at most 1.05 × the peer's step time with scaled dot product, compiled or not, 1.5 × with Additive",
    ("the same layers on torch scaled_dot_product_attention",),
    rows,
)
