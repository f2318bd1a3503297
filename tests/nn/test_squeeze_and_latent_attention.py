"""Squeeze-and-excitation and latent attention."""

import itertools
from typing import Any

import pytest
import torch

import qkv
from qkv import masks, nn, normalizers, readouts, scores
from qkv.errors import OptionError, QkvError, ShapeError


def apart(one: Any, other: Any) -> float:
    return float((one - other).detach().abs().max())


class Textbook(torch.nn.Module):
    """Hu et al. (2018), figure 3: global pooling, FC, ReLU, FC, sigmoid, scale."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.pool = torch.nn.AdaptiveAvgPool2d(1)
        self.fc1 = torch.nn.Conv2d(channels, hidden, 1)
        self.fc2 = torch.nn.Conv2d(hidden, channels, 1)

    def forward(self, x: Any) -> Any:
        return x * torch.sigmoid(self.fc2(torch.relu(self.fc1(self.pool(x)))))


def test_squeeze_and_excitation_equals_the_textbook_block_with_its_gradients() -> None:
    torch.manual_seed(0)
    theirs, ours = Textbook(12, 3).double(), nn.SqueezeExcitation(12, 4, dtype=torch.float64)
    for linear, conv in ((ours.inward, theirs.fc1), (ours.outward, theirs.fc2)):
        linear.load_state_dict({"weight": conv.weight[:, :, 0, 0], "bias": conv.bias})
    x = torch.randn(2, 12, 5, 7, dtype=torch.float64, requires_grad=True)
    one, other = ours(x), theirs(x)
    assert apart(one, other) < 1e-14
    towards = torch.randn_like(one)
    pairs = zip((ours.inward, ours.outward), (theirs.fc1, theirs.fc2), strict=True)
    leaves = [(a.weight, b.weight) for a, b in pairs]
    mine = torch.autograd.grad(one, [x, *(a for a, _ in leaves)], towards)
    its = torch.autograd.grad(other, [x, *(b for _, b in leaves)], towards)
    for a, b in zip(mine, its, strict=True):
        assert apart(a, b.reshape(a.shape)) < 1e-12


def test_squeeze_and_excitation_is_attention_with_channels_as_keys_and_gates_as_weights() -> None:
    torch.manual_seed(0)
    block, x = nn.SqueezeExcitation(6, 2, dtype=torch.float64), torch.randn(2, 6, 9, dtype=torch.float64)
    places = x.mT
    squeezed = qkv.attend(places[:, :1], places, places, normalizer=normalizers.Mean())[:, 0]
    assert apart(squeezed, x.mean(-1)) < 1e-14
    seen = qkv.observe(
        x,
        x,
        x,
        score=scores.Biased(scores.Constant(), per_key=block.logits(x)),
        normalizer=normalizers.Sigmoid(),
        mask=masks.Window(0, 0),
        readouts=[readouts.Dense()],
    )
    assert apart(seen.output, block(x)) < 1e-14
    assert apart(seen.readouts[0].diagonal(dim1=-2, dim2=-1), block.gates(x)) < 1e-14
    assert bool(((block.gates(x) > 0) & (block.gates(x) < 1)).all())


def test_latents_do_not_depend_on_the_order_of_the_input_or_on_masked_tokens() -> None:
    torch.manual_seed(0)
    reader = nn.LatentAttention(3, 8, 2, input_width=5, layers=1, dtype=torch.float64)
    x = torch.randn(2, 20, 5, dtype=torch.float64)
    order = torch.randperm(20)
    assert apart(reader(x), reader(x[:, order])) < 1e-12
    mask = masks.Lengths(torch.tensor([20, 9]))
    changed = x.clone()
    changed[1, 9:] = 7.0
    assert apart(reader(x, mask=mask), reader(changed, mask=mask)) == 0
    assert apart(reader(x, mask=mask)[1], reader(x[1, :9])) < 1e-12
    assert apart(reader(x), reader(changed)) > 1e-3


def test_the_cost_of_latent_attention_is_linear_in_the_input() -> None:
    reader = nn.LatentAttention(8, 16, 2, input_width=4)
    costs = []
    for n in (4_000, 8_000, 16_000):
        with torch.no_grad():
            seen = nn.observe(reader, {"attention": [readouts.ColumnSum()]}, torch.randn(1, n, 4))
            given = reader.attention(reader.latents[None], torch.randn(1, n, 4), readouts=[readouts.ColumnSum()])
        assert seen.readouts["attention"][0].shape == (1, 2, n)
        costs.append((given.plan.cost.flop, given.plan.cost.peak))
    for smaller, larger in itertools.pairwise(costs):
        assert larger[0] == pytest.approx(2 * smaller[0], rel=0.01)
        assert larger[1] <= 2.01 * smaller[1]


def test_every_parameter_of_latent_attention_gets_a_gradient() -> None:
    torch.manual_seed(0)
    reader = nn.LatentAttention(4, 8, 2, input_width=3, query_width=5, layers=1, score=nn.Additive)
    answer = reader.read(torch.randn(2, 6, 5), reader(torch.randn(2, 50, 3)))
    assert answer.shape == (2, 6, 8)
    answer.square().sum().backward()
    # A bias of keys and a norm's bias before them move all logits alike where the score is a dot product.
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in reader.parameters())
    assert float(reader.latents.grad.abs().max()) > 0


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: nn.SqueezeExcitation(0), OptionError, "channels=0"),
        (lambda: nn.SqueezeExcitation(4)(torch.zeros(2, 5, 3)), ShapeError, r"\(batch, 4, \*positions\)"),
        (lambda: nn.LatentAttention(0, 8), OptionError, "latents must be an integer of at least 1, got 0"),
        (
            lambda: nn.LatentAttention(2, 8)(torch.zeros(2, 5, 3)),
            ShapeError,
            r"x must have shape \(\*batch, length, 8\)",
        ),
        (lambda: nn.LatentAttention(2, 8).read(torch.zeros(2, 5, 3), torch.zeros(2, 2, 8)), ShapeError, "query"),
    ],
)
def test_invalid_arguments_of_a_block_are_refused(call: Any, kind: type[QkvError], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()
