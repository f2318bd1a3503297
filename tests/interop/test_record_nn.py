"""`record` with modules of `qkv.nn`: its weights equal those that the modules give as readouts."""

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from qkv import masks, nn, normalizers, scores  # noqa: E402
from qkv.errors import OptionError, ShapeError  # noqa: E402
from qkv.interop import huggingface, record  # noqa: E402
from qkv.nn.cache import StateCache  # noqa: E402
from qkv.nn.protocols import COLLECT  # noqa: E402
from qkv.readouts import ColumnSum, Dense, TopWeights  # noqa: E402


def recorded(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Record a model, and check that its output is unchanged and that no hook remains."""
    hooks = sum(len(x._forward_hooks) + len(x._forward_pre_hooks) for x in model.modules())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = model(*args, **kwargs)
        with record(model, [Dense(), TopWeights(1), ColumnSum()]) as seen:
            output = model(*args, **kwargs)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)
    assert hooks == sum(len(x._forward_hooks) + len(x._forward_pre_hooks) for x in model.modules())
    for (one,) in seen.layers.values():
        weights, top, columns = one.readouts
        torch.testing.assert_close(top.weights, weights.topk(1).values)
        torch.testing.assert_close(columns, weights.sum(-2), rtol=0, atol=1e-5)
        assert (one.queries, one.keys) == weights.shape[-2:]
        assert (weights.ndim, len(one.heads)) == (4, weights.shape[1])
    return seen


def eager_weights(module: Any, x: Any, mask: Any = None) -> Any:
    """Compute the weights of `MultiHeadAttention` from its projections, `(batch, heads, q, k)`."""
    query, key = module.queries(x), module.key_value(x).key
    key = key.repeat_interleave(module.heads // module.key_heads, dim=-3)
    logits = query @ key.mT / query.shape[-1] ** 0.5
    return (logits if mask is None else logits.masked_fill(~mask, -torch.inf)).softmax(-1)


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("axes", [(), (2,), (2, 3)])
def test_multi_head_attention_with_grouped_heads(key_heads: int, axes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = nn.MultiHeadAttention(8, 4, key_heads=key_heads, mask=masks.Causal())
    x = torch.randn(*axes, 5, 8)
    (one,) = recorded(module, x).layers[""]
    weights = eager_weights(module, x, torch.ones(5, 5).tril().bool()).reshape(-1, 4, 5, 5)
    torch.testing.assert_close(one.readouts[0], weights, rtol=1e-5, atol=1e-6)
    assert (one.kind, one.causal, one.exact) == ("self", True, True)


@pytest.mark.parametrize("axes", [(), (2,), (2, 3), (2, 2, 3)])
def test_attention_without_heads(axes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(*axes, 5, 4), torch.randn(*axes, 6, 4)
    (one,) = recorded(nn.Attention(), x, y).layers[""]
    weights = (x @ y.mT / 2).softmax(-1)
    shape = {0: (1, 1), 1: (2, 1)}.get(len(axes), (-1, 3))
    torch.testing.assert_close(one.readouts[0], weights.reshape(*shape, 5, 6), rtol=1e-5, atol=1e-6)
    assert one.kind == "cross"


def test_options_without_a_counterpart_in_torch() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    options: list[dict[str, Any]] = [
        {"score": nn.Additive}, {"normalizer": normalizers.Sparsemax()},
        {"extensions": ["zero_key"], "mask": masks.Causal()},
        {"extensions": ["learned_key"]}, {"extensions": ["talking_heads"]}, {"extensions": ["sink", "temperature"]},
        {"positions": nn.positions.Rotary(2), "mask": masks.Window(1, 0)}, {"query_key_norm": "rms", "key_heads": 2},
    ]  # fmt: skip
    for option in options:
        module = nn.MultiHeadAttention(8, 4, **option)
        (one,) = recorded(module, x).layers[""]
        with torch.no_grad():
            expected = module(x, readouts=[Dense()]).readouts[0]
        assert torch.equal(one.readouts[0], expected)
        assert one.causal == ("positions" in option)


def test_encoder_decoder_and_latent_attention() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    encoder = recorded(nn.Encoder(2, 8, 2).eval(), x)
    assert list(encoder.layers) == ["layers.0.attention", "layers.1.attention"]
    decoder = recorded(nn.Decoder(1, 8, 2).eval(), x, torch.randn(2, 7, 8))
    assert [(one.kind, one.causal, one.keys) for (one,) in decoder.layers.values()] == [
        ("self", True, 5), ("cross", False, 7),
    ]  # fmt: skip
    latent = recorded(nn.LatentAttention(4, 8, 2).eval(), x)
    assert [(one.kind, one.queries, one.keys) for (one,) in latent.layers.values()] == [("cross", 4, 5)]


def test_heads_are_selected_and_checked() -> None:
    module, x = nn.MultiHeadAttention(8, 4), torch.randn(2, 5, 8)
    with torch.no_grad(), record(module, [Dense()], heads=[3, 0]) as seen:
        expected = module(x, readouts=[Dense()]).readouts[0]
    (one,) = seen.layers[""]
    assert torch.equal(one.readouts[0], expected[:, [3, 0]])
    with pytest.raises(OptionError, match="4 heads"), record(module, [Dense()], heads=[4]):
        module(x)


def test_calls_with_a_state_cache_are_reported_as_not_recorded() -> None:
    module = nn.Attention(score=scores.Dot(), normalizer=normalizers.Identity(), mask=masks.Causal())
    x = torch.randn(2, 3, 4)
    with pytest.warns(huggingface.BypassWarning, match="not recorded"), record(module, [ColumnSum()]) as seen:
        output = module(x, cache=StateCache())
    assert output.shape == x.shape
    assert not seen.layers


def module_calls() -> list[tuple[Any, Any]]:
    torch.manual_seed(0)
    x, heads = torch.randn(2, 5, 8), torch.randn(2, 4, 5, 4)
    return [
        (nn.MultiHeadAttention(8, 2, mask=masks.Causal()), x),
        (nn.MultiHeadAttention(8, 2), x[0]),
        (nn.MultiHeadAttention(8, 4, key_heads=2, positions=nn.positions.Rotary(2), mask=masks.Window(1, 0)), x),
        (nn.MultiHeadAttention(8, 4, key_heads=1, extensions=["zero_key"], mask=masks.Causal()), x),
        (nn.MultiHeadAttention(8, 4, extensions=["sink", "temperature", "output_gate"], query_key_norm="rms"), x),
        (nn.MultiHeadAttention(8, 2, score=nn.Additive, extensions=["learned_key"]), x),
        (nn.Attention(), x),
        (nn.Attention(score=nn.Additive(4, 4, heads=4), mask=masks.Causal()), heads),
        (nn.Attention(mask=masks.Lengths(torch.tensor([2, 4]))), x),
        (nn.Attention(mask=masks.Lengths(torch.tensor([[2], [4]]))), heads),
    ]


@pytest.mark.parametrize("number", range(10))
def test_weights_of_modules_are_recomputed_from_saved_inputs(number: int) -> None:
    module, x = module_calls()[number]
    with torch.no_grad(), record(module, [Dense()], save_inputs=True) as seen:
        module(x)
    ((one,),) = seen.layers.values()
    (weights,) = one.readouts
    assert one.saved.value_norms.shape == (*weights.shape[:2], weights.shape[3])
    for element in range(weights.shape[0]):
        for head in range(weights.shape[1]):
            tile = one.tile((1, 4), (0, one.keys), element=element, head=head)
            torch.testing.assert_close(tile, weights[element, head, 1:4], rtol=1e-5, atol=1e-6)


def test_calls_of_which_no_weights_are_recomputed_state_the_reason() -> None:
    x = torch.randn(1, 5, 8)
    cases: list[tuple[Any, Any, bool, str]] = [
        (nn.MultiHeadAttention(8, 2), x[None], True, "got one of a call of a module of qkv.nn with other batch axes"),
        (nn.MultiHeadAttention(8, 2, normalizer=normalizers.Sparsemax()), x, True, "softmax .* got Sparsemax"),
        (nn.MultiHeadAttention(8, 2, extensions=["talking_heads"]), x, True, "must be softmax"),
        (nn.MultiHeadAttention(8, 2), x, False, "save_inputs must be True"),
    ]
    for module, inputs, save, reason in cases:
        with torch.no_grad(), record(module, [Dense()], save_inputs=save) as seen:
            module(inputs)
        with pytest.raises(OptionError, match=reason):
            seen.layers[""][0].tile((0, 2), (0, 2))


def test_a_module_that_fails_leaves_no_listener() -> None:
    module = nn.MultiHeadAttention(8, 2)
    with pytest.raises(ShapeError), record(module, [], save_inputs=True):
        module(torch.randn(1, 5, 7))
    assert COLLECT.get() is None
