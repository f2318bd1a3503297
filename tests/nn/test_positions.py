"""Position encodings: their formulas, and what attention can only do with them."""

import math
from typing import Any

import pytest
import torch

import qkv
from qkv.errors import KindError, OptionError, QkvError, ShapeError
from qkv.nn.positions import Learned, Rotary, Sinusoidal, position_ids, sinusoidal_table


def apart(one: Any, other: Any) -> float:
    return float((one - other).detach().abs().max())


def normal(*shape: int) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_the_sinusoidal_table_equals_the_formula_of_the_paper() -> None:
    table = sinusoidal_table(50, 6)
    for p, i in ((0, 0), (7, 1), (49, 2)):
        angle = p / 10_000 ** (2 * i / 6)
        assert math.isclose(table[p, 2 * i], math.sin(angle), abs_tol=1e-15)
        assert math.isclose(table[p, 2 * i + 1], math.cos(angle), abs_tol=1e-15)
    assert torch.equal(sinusoidal_table(10, 5, start=3), sinusoidal_table(13, 5)[3:])


def test_rows_at_one_distance_differ_by_one_rotation() -> None:
    table, d = sinusoidal_table(100, 8), 5
    products = (table[d:] * table[:-d]).sum(-1)
    assert apart(products, products[0]) < 1e-12


ADDED = {"sinusoidal": lambda: Sinusoidal(8, 4), "learned": lambda: Learned(64, 8)}


@pytest.mark.parametrize("name", ADDED)
def test_without_positions_self_attention_is_permutation_equivariant_and_with_them_it_is_not(name: str) -> None:
    torch.manual_seed(0)
    x, order = normal(2, 9, 8), torch.randperm(9)
    add = ADDED[name]().double()
    with torch.no_grad():
        bare = qkv.attend(x, x, x)[:, order] - qkv.attend(x[:, order], x[:, order], x[:, order])
        one, other = add(x), add(x[:, order])
        told = qkv.attend(one, one, one)[:, order] - qkv.attend(other, other, other)
    assert float(bare.abs().max()) < 1e-12
    assert float(told.abs().max()) > 1e-3


def test_rotary_self_attention_is_not_permutation_equivariant() -> None:
    x, order, turn = normal(1, 9, 8), torch.arange(8, -1, -1), Rotary(8)

    def attend(x: Any) -> Any:
        return qkv.attend(*turn.rotate(x, x), x)

    assert apart(attend(x)[:, order], attend(x[:, order])) > 1e-2


@pytest.mark.parametrize("add", [Sinusoidal(8, 4), Learned(64, 8)], ids=["sinusoidal", "learned"])
def test_later_tokens_get_the_same_positions_as_in_the_whole_sequence(add: Any) -> None:
    x = normal(2, 12, 8).float()
    whole = add(x)
    assert apart(add(x[:, 5:], 5), whole[:, 5:]) < 1e-6
    each = position_ids(torch.tensor([0, 3]), 4)
    got = add(torch.stack([x[0, :4], x[1, 3:7]]), each)
    assert apart(got[0], whole[0, :4]) < 1e-6
    assert apart(got[1], whole[1, 3:7]) < 1e-6


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotated", [8, 4])
def test_rotary_logits_depend_on_the_distance_alone(interleaved: bool, rotated: int) -> None:
    turn = Rotary(8, rotated=rotated, interleaved=interleaved)
    q, k = normal(1, 8), normal(2, 8)[:1]
    logits = []
    for p in (0, 3, 1000, 100_000):
        a, b = turn.rotate(q, k, torch.tensor([p + 7]), torch.tensor([p]))
        logits.append(float(a @ b.mT))
    assert max(logits) - min(logits) < 1e-9
    near = turn.rotate(q, k, 0)
    assert abs(float(near[0] @ near[1].mT) - logits[0]) > 1e-3


def test_rotary_rotates_by_the_angles_of_the_paper_and_keeps_the_other_elements() -> None:
    x = normal(3, 6)
    for interleaved, pairs in ((False, ((0, 2), (1, 3))), (True, ((0, 1), (2, 3)))):
        turned = Rotary(6, rotated=4, theta=100.0, interleaved=interleaved)(x)
        assert torch.equal(turned[:, 4:], x[:, 4:])
        for i, (a, b) in enumerate(pairs):
            for p in range(3):
                phi = p * 100.0 ** (-2 * i / 4)
                want = (
                    x[p, a] * math.cos(phi) - x[p, b] * math.sin(phi),
                    x[p, a] * math.sin(phi) + x[p, b] * math.cos(phi),
                )
                assert math.isclose(turned[p, a], want[0], rel_tol=1e-12)
                assert math.isclose(turned[p, b], want[1], rel_tol=1e-12)


def test_rotary_equals_that_of_transformers_in_both_conventions() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    q, k = normal(2, 4, 30, 16).float(), normal(2, 2, 30, 16).float()
    positions = position_ids(torch.tensor([0, 11]), 30)
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, head_dim=16)
    cos, sin = LlamaRotaryEmbedding(config)(q, positions)
    theirs = apply_rotary_pos_emb(q, k, cos, sin)
    ours = Rotary(16).rotate(q, k, positions[:, None])
    assert max(apart(a, b) for a, b in zip(ours, theirs, strict=True)) < 1e-5
    assert apart(Rotary(16).rotate(q, k, positions)[0], ours[0]) == 0

    angles = Rotary(16).angles(q[0, 0]).float()
    theirs = gptj(q.transpose(1, 2), torch.sin(angles)[None], torch.cos(angles)[None])
    assert apart(Rotary(16, interleaved=True)(q), theirs.transpose(1, 2)) < 1e-5


def test_half_precision_keeps_its_dtype_and_rotates_in_float32() -> None:
    x = normal(5, 8).to(torch.bfloat16)
    turned = Rotary(8)(x, 1000)
    assert turned.dtype == torch.bfloat16
    assert apart(turned.float(), Rotary(8)(x.float(), 1000)) < 0.03
    assert Sinusoidal(8)(x).dtype == torch.bfloat16


def test_only_the_learned_table_is_in_the_state_dict() -> None:
    assert not Sinusoidal(4).state_dict()
    assert not Rotary(4).state_dict()
    assert set(Learned(3, 4).state_dict()) == {"table"}


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: Rotary(7), OptionError, "in pairs"),
        (lambda: Rotary(8, rotated=12), OptionError, "at most the width"),
        (lambda: Rotary(8)(torch.zeros(3, 6)), ShapeError, r"x must have shape \(\*batch, length, 8\)"),
        (lambda: Rotary(4).rotate(torch.zeros(3, 4), torch.zeros(2, 4)), ShapeError, "key_positions"),
        (lambda: Rotary(4)(torch.zeros(3, 4), torch.zeros(3)), KindError, "tensor of integers"),
        (lambda: Rotary(4)(torch.zeros(2, 3, 4), torch.tensor([0, 5])), ShapeError, r"position_ids\(start, 3\)"),
        (lambda: Learned(5, 4)(torch.zeros(1, 6, 4)), ShapeError, "from 0 to 4, got 0 to 5"),
        (lambda: Learned(5, 4)(torch.zeros(1, 2, 4), 4), ShapeError, "got 4 to 5"),
        (lambda: Learned(5, 4)(torch.zeros(1, 2, 4), torch.tensor([[-1, 0]])), ShapeError, "from 0 to 4, got -1 to 0"),
        (lambda: Learned(5, 4)(torch.zeros(1, 2, 4), torch.tensor([[4, 5]])), ShapeError, "from 0 to 4, got 4 to 5"),
        (lambda: Sinusoidal(4)(torch.zeros(1, 2, 5)), ShapeError, r"x must have shape \(\*batch, length, 4\)"),
        (lambda: sinusoidal_table(3, 4, base=0.0), OptionError, "positive"),
    ],
)
def test_invalid_widths_and_positions_are_refused(call: Any, kind: type[QkvError], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()
