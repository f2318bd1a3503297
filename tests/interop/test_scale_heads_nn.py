"""`scale_heads` with modules of `qkv.nn`: its outputs equal those of scaled columns of the output projection."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from qkv import masks, nn, normalizers  # noqa: E402
from qkv.errors import OptionError  # noqa: E402
from qkv.interop import record, scale_heads  # noqa: E402
from qkv.readouts import Dense  # noqa: E402

FACTORS = (0.0, 1.0, -0.5, 2.0)


def modules() -> list[Any]:
    return [
        nn.MultiHeadAttention(8, 4),
        nn.MultiHeadAttention(8, 4, key_heads=2, mask=masks.Causal(), extensions=["output_gate"]),
        nn.MultiHeadAttention(8, 4, head_value_width=3, score=nn.Additive, normalizer=normalizers.Sparsemax()),
        nn.MultiHeadAttention(8, 4, extensions=["talking_heads", "sink"]),
        nn.LatentAttention(3, 8, 4),
    ]


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("axes", [(), (2,), (2, 3)])
def test_scaled_heads_equal_scaled_columns(number: int, axes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = modules()[number].eval()
    changed, x = copy.deepcopy(module), torch.randn(*axes, 5, 8)
    found = changed if isinstance(changed, nn.MultiHeadAttention) else changed.attention
    width = found.head_value_width
    for head, factor in enumerate(FACTORS):
        found.output_map.weight.data[:, width * head : width * (head + 1)] *= factor
    with torch.no_grad():
        before = module(x)
        with scale_heads(module, {(0, head): factor for head, factor in enumerate(FACTORS)}):
            output = module(x)
            with record(module, [Dense()]) as seen:
                torch.testing.assert_close(module(x), output)
        torch.testing.assert_close(output, changed(x), rtol=1e-5, atol=1e-6)
        assert not torch.allclose(output, before, atol=1e-3)
        assert torch.equal(module(x), before)
    assert sum(map(len, seen.layers.values())) == 1


def test_heads_without_an_output_projection() -> None:
    torch.manual_seed(1)
    x, y = torch.randn(2, 5, 8), torch.randn(2, 4, 5, 3)
    factors = torch.tensor(FACTORS)
    for module, inputs, scale in (
        (nn.MultiHeadAttention(8, 4, maps=["query", "key", "value"]), x, factors.repeat_interleave(2)),
        (nn.Attention(), y, factors[:, None, None]),
    ):
        with torch.no_grad(), scale_heads(module, {(0, head): factor for head, factor in enumerate(FACTORS)}):
            output, (weights,), _ = module(inputs, readouts=[Dense()])
            torch.testing.assert_close(module(inputs), output)
        expected, (same,), _ = module(inputs, readouts=[Dense()])
        torch.testing.assert_close(output, expected * scale)
        torch.testing.assert_close(weights, same)
    single = nn.Attention()
    with pytest.raises(OptionError, match="head must be between 0 and 0"), scale_heads(single, {("", 1): 0.0}):
        single(x)


def test_scaled_heads_of_decoding_steps_and_gradients() -> None:
    torch.manual_seed(2)
    decoder = nn.Encoder(2, 8, 2, mask=masks.Causal()).eval()
    x = torch.randn(1, 6, 8)
    factors: dict[tuple[str | int, int], float] = {(0, 1): 0.0, ("layers.1.attention", 0): 2.0}
    with torch.no_grad(), scale_heads(decoder, factors):
        whole, cache = decoder(x), decoder.caches()
        steps = torch.cat([decoder(x[:, n : n + 1], cache=cache) for n in range(6)], dim=1)
    torch.testing.assert_close(steps, whole, rtol=1e-4, atol=1e-5)
    with scale_heads(decoder, factors):
        decoder(x).square().sum().backward()
    gradient = decoder.layers[0].attention.output_map.weight.grad
    assert not gradient[:, 4:].any()
    assert gradient[:, :4].all()


def test_heads_of_modules_that_do_not_exist_are_refused() -> None:
    with pytest.raises(OptionError, match="head must be between 0 and 3"):
        scale_heads(nn.MultiHeadAttention(8, 4), {(0, 4): 0.0}).__enter__()
