"""Scaled rotary embeddings against those of transformers, and rotary embeddings of images."""

from typing import Any

import pytest
import torch

from qkv import nn
from qkv.errors import OptionError
from qkv.nn.positions import LinearScaling, Llama3Scaling, LongRoPE, NTKScaling, Rotary, Rotary2D, YaRN, position_ids


def normal(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


ROPE = {
    "linear": ({"rope_type": "linear", "factor": 3.0}, LinearScaling(3.0)),
    "llama 3": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        Llama3Scaling(8.0, 64),
    ),
    "yarn": ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, YaRN(4.0, 128)),
    "yarn of DeepSeek": (
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 256,
            "mscale": 1.0,
            "mscale_all_dim": 0.707,
            "beta_fast": 16,
            "beta_slow": 2,
        },
        None,
    ),
    "yarn that is not truncated": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "truncate": False},
        YaRN(4.0, 128, truncate=False),
    ),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.0}, None),
    "longrope": (
        {
            "rope_type": "longrope",
            "original_max_position_embeddings": 64,
            "short_factor": [1.0 + 0.1 * n for n in range(8)],
            "long_factor": [1.0 + 2.0 * n for n in range(8)],
        },
        None,
    ),
}


@pytest.mark.parametrize("name", ROPE)
@pytest.mark.parametrize("n", [30, 600])
def test_scaled_rotary_equals_that_of_transformers(name: str, n: int) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    parameters, scaling = ROPE[name]
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=16,
        max_position_embeddings=512,
        rope_parameters={"rope_theta": 5000.0} | parameters,
    )
    q, k = normal(2, 4, n, 16).float(), normal(2, 2, n, 16).float()
    positions = position_ids(torch.tensor([0, 0]), n)
    cos, sin = LlamaRotaryEmbedding(config)(q, positions)
    theirs = apply_rotary_pos_emb(q, k, cos, sin)
    rotations = [Rotary.from_config(config, length=n)]
    if scaling is not None:
        rotations.append(Rotary(16, theta=5000.0, scaling=scaling))
    for rotary in rotations:
        ours = rotary.rotate(q, k, positions)
        assert max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) < 3e-4
        assert float((ours[0] - Rotary(16, theta=5000.0).rotate(q, k, positions)[0]).abs().max()) > 1e-2 or (
            name == "dynamic" and n < 512
        )


def test_partial_rotary_of_a_configuration_equals_that_of_transformers() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.phi.configuration_phi import PhiConfig
    from transformers.models.phi.modeling_phi import PhiRotaryEmbedding, apply_rotary_pos_emb

    config = PhiConfig(hidden_size=64, num_attention_heads=4, partial_rotary_factor=0.5)
    q = normal(2, 4, 30, 16).float()
    rotary = Rotary.from_config(config)
    assert rotary.rotated == 8
    cos, sin = PhiRotaryEmbedding(config)(q, torch.arange(30)[None])
    theirs, _ = apply_rotary_pos_emb(q[..., :8], q[..., :8], cos, sin)
    assert float((rotary(q)[..., :8] - theirs).abs().max()) < 1e-5
    assert torch.equal(rotary(q)[..., 8:], q[..., 8:])


def test_two_dimensional_rotary_equals_that_of_qwen2_vl() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.qwen2_vl.modeling_qwen2_vl import apply_rotary_pos_emb_vision

    rows, columns, width = 5, 7, 16
    q, k = normal(rows * columns, 3, width).float(), normal(rows * columns, 2, width).float()
    rates = 1.0 / 10_000 ** (torch.arange(0, width // 2, 2).float() / (width // 2))
    at = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"), dim=-1).reshape(-1, 2)
    angles = (at[..., None] * rates).flatten(1)
    both = torch.cat([angles, angles], dim=-1)
    theirs = apply_rotary_pos_emb_vision(q, k, both.cos(), both.sin())
    ours = Rotary2D(width, columns=columns).rotate(q.transpose(0, 1), k.transpose(0, 1))
    for a, b in zip(ours, theirs, strict=True):
        assert float((a.transpose(0, 1) - b).abs().max()) < 1e-5


def test_two_dimensional_logits_depend_on_the_distances_in_rows_and_columns() -> None:
    turn = Rotary2D(8, columns=10, first_patch=1)
    q, k = normal(1, 8), normal(2, 8)[:1]

    def logit(query: tuple[int, int], key: tuple[int, int]) -> float:
        (a, b), (c, d) = query, key
        x, y = turn.rotate(q, k, torch.tensor([1 + 10 * a + b]), torch.tensor([1 + 10 * c + d]))
        return float(x @ y.mT)

    assert abs(logit((3, 4), (1, 9)) - logit((7, 0), (5, 5))) < 1e-12
    assert abs(logit((3, 4), (1, 9)) - logit((3, 4), (1, 8))) > 1e-3
    assert abs(logit((3, 4), (1, 9)) - logit((3, 4), (2, 9))) > 1e-3
    token = normal(1, 8)
    assert torch.equal(turn(token, 0), token), "the class token is not rotated"


def test_a_module_with_scaled_positions_decodes_as_it_computes_the_whole_sequence() -> None:
    torch.manual_seed(0)
    from qkv import masks

    positions = Rotary(8, scaling=YaRN(4.0, 16))
    module = nn.MultiHeadAttention(16, 2, positions=positions, mask=masks.Causal()).double()
    x = normal(2, 40, 16)
    cache = nn.KeyValueCache()
    with torch.no_grad():
        whole = module(x)
        steps = torch.cat([module(x[:, n : n + 8], cache=cache) for n in range(0, 40, 8)], dim=1)
    assert float((whole - steps).abs().max()) < 1e-12


def test_a_factor_of_1_changes_nothing() -> None:
    x = normal(50, 16)
    for scaling in (LinearScaling(1), NTKScaling(1), YaRN(1, 16), Llama3Scaling(1, 16), LongRoPE((1.0,) * 8)):
        assert float((Rotary(16, scaling=scaling)(x) - Rotary(16)(x)).abs().max()) < 1e-12, scaling


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: LinearScaling(0.5), "factor must be a number of at least 1, got 0.5"),
        (lambda: YaRN(4.0, 0), "original_length"),
        (lambda: Llama3Scaling(high_frequency=1.0), "high_frequency must be greater than low_frequency=1.0, got 1.0"),
        (lambda: LongRoPE((1.0, 2.0)).scale(torch.ones(3), 1e4), "one number per pair of rotated elements.* 3, got 2"),
        (lambda: Rotary(8, scaling=4.0), "scaling must be a RotaryScaling, got 4.0.*YaRN"),  # type: ignore[arg-type]
        (lambda: Rotary2D(6, columns=3), r"rotated must be a multiple of 4.*got 6\. Pass rotated=4"),
        (lambda: Rotary2D(8, columns=0), "columns"),
        (lambda: Rotary.from_config(object()), "config must have rope_parameters with rope_theta, got None"),
    ],
)
def test_options_that_are_not_allowed_are_refused(call: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        call()
