"""Layers and the whole Transformer: conversion from PyTorch, any score, caches, readouts."""

from typing import Any

import pytest
import torch

from qkv import masks, nn, normalizers, readouts
from qkv.errors import KindError, OptionError, QkvError, ShapeError
from qkv.nn.positions import Rotary

WIDTH, HEADS, HIDDEN = 12, 3, 20


def tokens(n: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed + n)
    return torch.randn(2, n, WIDTH, generator=generator, dtype=torch.float64)


def apart(one: Any, other: Any) -> float:
    return float((one - other).detach().abs().max())


def settled(module: Any) -> Any:
    """Return the module with random values in every parameter, norms and biases included, so that errors show."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return module.eval()


def gradients(output: Any, *leaves: Any) -> list[Any]:
    towards = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    return list(torch.autograd.grad(output, leaves, towards))


OPTIONS = {
    "post-norm, relu": {},
    "pre-norm, gelu": {"norm_first": True, "activation": "gelu"},
    "no bias": {"bias": False},
    "a function, another epsilon": {"activation": torch.tanh, "layer_norm_eps": 1e-2},
    "length first": {"batch_first": False},
}
CAUSAL = torch.nn.Transformer.generate_square_subsequent_mask
PADDING = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
LENGTHS = masks.Lengths(torch.tensor([7, 4]))


def made(kind: Any, options: Any, *numbers: Any, **more: Any) -> Any:
    options = {"batch_first": True, "dtype": torch.float64, "dropout": 0.0} | options
    return settled(kind(*numbers, dim_feedforward=HIDDEN, **options, **more))


def their(module: Any, options: Any, *inputs: Any, **more: Any) -> Any:
    if options.get("batch_first", True):
        return module(*inputs, **more)
    return module(*(x.transpose(0, 1) for x in inputs), **more).transpose(0, 1)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_encoder_layer_equals_that_of_pytorch_with_its_gradients(name: str) -> None:
    theirs = made(torch.nn.TransformerEncoderLayer, OPTIONS[name], WIDTH, HEADS).train()
    ours = nn.EncoderLayer.from_torch(theirs)
    x = tokens(7).requires_grad_()
    one = ours(x, mask=LENGTHS)
    other = their(theirs, OPTIONS[name], x, src_key_padding_mask=PADDING)
    assert apart(one, other) < 1e-12
    mine = (
        ours.attention.query_map.weight,
        ours.attention.output_map.weight,
        ours.attention_norm.weight,
        ours.feed_forward.inward.weight,
        ours.feed_forward.outward.weight,
        ours.feed_forward_norm.weight,
    )
    its = (
        theirs.self_attn.in_proj_weight,
        theirs.self_attn.out_proj.weight,
        theirs.norm1.weight,
        theirs.linear1.weight,
        theirs.linear2.weight,
        theirs.norm2.weight,
    )
    for a, b in zip(gradients(one, x, *mine), gradients(other, x, *its), strict=True):
        assert apart(a, b[: len(a)]) < 1e-12


@pytest.mark.parametrize("name", OPTIONS)
def test_a_decoder_layer_equals_that_of_pytorch_with_its_gradients(name: str) -> None:
    theirs = made(torch.nn.TransformerDecoderLayer, OPTIONS[name], WIDTH, HEADS)
    ours = nn.DecoderLayer.from_torch(theirs, causal=True)
    x, memory = tokens(5).requires_grad_(), tokens(7).requires_grad_()
    one = ours(x, memory, memory_mask=LENGTHS)
    masked = {"tgt_mask": CAUSAL(5, dtype=torch.float64), "memory_key_padding_mask": PADDING}
    other = their(theirs, OPTIONS[name], x, memory, **masked)
    assert apart(one, other) < 1e-12
    for a, b in zip(gradients(one, x, memory), gradients(other, x, memory), strict=True):
        assert apart(a, b) < 1e-12
    free = nn.DecoderLayer.from_torch(theirs)
    assert apart(free(x, memory), their(theirs, OPTIONS[name], x, memory)) < 1e-12


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("name", ["post-norm, relu", "pre-norm, gelu"])
def test_the_whole_transformer_equals_that_of_pytorch_layer_by_layer(name: str) -> None:
    options, layers = OPTIONS[name], {"num_encoder_layers": 2, "num_decoder_layers": 3}
    theirs = made(torch.nn.Transformer, options, WIDTH, HEADS, **layers)
    ours = nn.Transformer.from_torch(theirs, causal=True)
    source, target = tokens(7), tokens(5)
    seen: dict[str, list[Any]] = {"ours": [], "theirs": []}
    for who, model in (("ours", ours), ("theirs", theirs)):
        for layer in (*model.encoder.layers, *model.decoder.layers):
            layer.register_forward_hook(lambda m, x, y, who=who: seen[who].append(y))
    masked = {
        "tgt_mask": CAUSAL(5, dtype=torch.float64),
        "src_key_padding_mask": PADDING,
        "memory_key_padding_mask": PADDING,
    }
    one = ours(source, target, source_mask=LENGTHS)
    # In training mode, but without dropout: PyTorch's fast path would call no layer.
    other = theirs.train()(source, target, **masked)
    assert len(seen["ours"]) == len(seen["theirs"]) == 5
    for a, b in zip(seen["ours"], seen["theirs"], strict=True):
        assert apart(a, b) < 1e-12
    assert apart(one, other) < 1e-12


def test_a_model_of_pytorch_keeps_its_dropouts_and_its_mode() -> None:
    theirs = torch.nn.Transformer(8, 2, 1, 1, 16, dropout=0.25, batch_first=True)
    ours = nn.Transformer.from_torch(theirs)
    layer = ours.decoder.layers[0]
    found = {layer.dropout.p, layer.feed_forward.dropout.p, layer.attention.dropout, layer.cross.dropout}
    assert found == {0.25}
    assert ours.training
    assert not nn.Transformer.from_torch(theirs.eval()).decoder.layers[0].attention.training


@pytest.mark.thinned
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    "options",
    [
        {"score": nn.Additive},
        {"score": nn.Gaussian, "normalizer": normalizers.Sparsemax()},
        {"key_heads": 1, "query_key_norm": "rms"},
        {"normalizer": normalizers.TopK(3)},
    ],
    ids=["additive", "gaussian sparsemax", "one key head", "top k"],
)
def test_any_score_and_normalizer_trains_and_decodes_with_caches_as_without(norm: Any, options: Any) -> None:
    torch.manual_seed(0)
    model = nn.Transformer(
        WIDTH, HEADS, HIDDEN, encoder_layers=1, decoder_layers=2, norm=norm, dtype=torch.float64, **options
    )
    source, target = tokens(7), tokens(6)
    whole = model(source, target, source_mask=LENGTHS)
    grown = gradients(whole, *model.parameters())
    assert all(bool(g.isfinite().all()) for g in grown)
    with torch.no_grad():
        memory = model.encoder(source, mask=LENGTHS)
        caches, mapped = model.decoder.caches(chunk=2), model.decoder.project_memory(memory)
        steps = [
            model.decoder(target[:, a:b], mapped, memory_mask=LENGTHS, cache=caches)
            for a, b in ((0, 1), (1, 2), (2, 5), (5, 6))
        ]
    assert apart(torch.cat(steps, dim=1), whole) < 1e-12


def test_a_decoder_does_not_depend_on_later_tokens_unless_it_is_not_causal() -> None:
    torch.manual_seed(0)
    x, memory = tokens(6), tokens(4)
    later = x.clone()
    later[:, 4:] += 1
    for causal, changed in ((True, False), (False, True)):
        layer = nn.DecoderLayer(WIDTH, HEADS, causal=causal, dtype=torch.float64)
        assert (apart(layer(x, memory)[:, :4], layer(later, memory)[:, :4]) > 0) == changed
    window = nn.DecoderLayer(WIDTH, HEADS, mask=masks.Window(1, 1), dtype=torch.float64)
    assert apart(window(x, memory)[:, :4], window(later, memory)[:, :4]) == 0
    early = x.clone()
    early[:, 0] += 1
    assert apart(window(x, memory)[:, 2:], window(early, memory)[:, 2:]) == 0


def test_an_encoder_with_a_causal_mask_and_rotary_positions_generates_from_uneven_prompts() -> None:
    torch.manual_seed(0)
    model = nn.Encoder(2, WIDTH, HEADS, mask=masks.Causal(), positions=Rotary(4), dtype=torch.float64)
    lengths, x, more = torch.tensor([7, 3]), tokens(7), tokens(3, seed=9)
    caches = model.caches(chunk=4, lengths=lengths)
    with torch.no_grad():
        model(x, cache=caches)
        got = torch.cat([model(more[:, t : t + 1], cache=caches) for t in range(3)], dim=1)
        for b, n in enumerate(lengths.tolist()):
            want = model(torch.cat([x[b : b + 1, :n], more[b : b + 1]], dim=1))
            assert apart(got[b], want[0, n:]) < 1e-12


# -- reading a model ----------------------------------------------------------------------------------------


def small() -> Any:
    torch.manual_seed(0)
    return nn.Transformer(WIDTH, HEADS, HIDDEN, encoder_layers=2, decoder_layers=2, dtype=torch.float64)


def test_observing_a_layer_gives_its_weights_and_does_not_change_the_output() -> None:
    model, source, target = small(), tokens(7), tokens(5)
    plain = model(source, target)
    wanted = {
        "encoder.layers.1.attention": [readouts.Dense()],
        "decoder.layers.*.cross": [readouts.Entropy(), readouts.Dense()],
    }
    seen = nn.observe(model, wanted, source, target)
    assert apart(seen.output, plain) < 1e-14
    cross = ["decoder.layers.0.cross", "decoder.layers.1.cross"]
    assert list(seen.readouts) == ["encoder.layers.1.attention", *cross]
    weights = seen.readouts["encoder.layers.1.attention"][0]
    assert weights.shape == (2, HEADS, 7, 7)
    layer = model.encoder.layers[1]
    x = model.encoder.layers[0](source)
    direct = layer.attention(layer.attention_norm(x), readouts=[readouts.Dense()])
    assert apart(weights, direct.readouts[0]) < 1e-14
    entropy, dense = seen.readouts[cross[0]]
    assert apart(entropy, -(dense * dense.log()).sum(-1)) < 1e-12
    # All hooks are removed.
    assert isinstance(model(source, target), torch.Tensor)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_hooks_are_removed_where_the_model_fails() -> None:
    model = small()
    with pytest.raises(ShapeError):
        nn.observe(model, {"*.attention": [readouts.Entropy()]}, tokens(7)[..., :5], tokens(5))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_each_call_of_a_module_is_observed_and_its_own_readouts_are_kept() -> None:
    attention = nn.MultiHeadAttention(WIDTH, HEADS, dtype=torch.float64)

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, x: Any) -> Any:
            first = self.attention(x, readouts=[readouts.Entropy()])
            assert len(first.readouts) == 1
            return self.attention(first.output), first.readouts[0]

    model, x = Twice(), tokens(4)
    seen = nn.observe(model, {"attention": [readouts.Dense()]}, x)
    assert len(seen.calls["attention"]) == 2
    assert apart(seen.output[0], model(x)[0]) < 1e-14
    assert apart(seen.output[1], model(x)[1]) < 1e-14
    first, last = (call[0] for call in seen.calls["attention"])
    assert torch.equal(seen.readouts["attention"][0], last)
    assert apart(first, last) > 1e-4


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: nn.EncoderLayer(8, 2, norm="middle"), OptionError, "norm must be one of pre, post, got 'middle'"),
        (lambda: nn.FeedForward(8, activation="sine"), OptionError, "'relu', 'gelu', 'silu'"),
        (lambda: nn.FeedForward(8, 0), OptionError, "hidden must be an integer of at least 1, got 0"),
        (lambda: nn.Encoder(0, 8, 2), OptionError, "layers must be an integer of at least 1, got 0"),
        (lambda: nn.Encoder(2, 8, 2)(torch.zeros(1, 2, 8), cache=[None]), ShapeError, "2 layers"),
        (lambda: nn.EncoderLayer.from_torch(torch.nn.Linear(2, 2)), KindError, "TransformerEncoderLayer"),
        (lambda: nn.observe(small(), {"encoder": [readouts.Dense()]}), OptionError, "encoder.layers.0.att"),
    ],
)  # fmt: skip
def test_invalid_arguments_of_a_model_are_refused(call: Any, kind: type[QkvError], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()


def test_the_feed_forward_network_equals_its_equation() -> None:
    torch.manual_seed(0)
    x = tokens(3)
    for gated in (False, True):
        part = settled(nn.FeedForward(WIDTH, 5, activation="silu", gated=gated, dtype=torch.float64))
        hidden = torch.nn.functional.silu(x @ part.inward.weight.T + part.inward.bias)
        if gated:
            hidden = hidden * (x @ part.gate.weight.T + part.gate.bias)
        assert apart(part(x), hidden @ part.outward.weight.T + part.outward.bias) < 1e-13
