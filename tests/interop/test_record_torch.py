"""`record` with modules of `torch.nn`: its weights equal those that the modules return themselves."""

import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from qkv.errors import OptionError  # noqa: E402
from qkv.interop import record  # noqa: E402
from qkv.readouts import Dense, TopWeights  # noqa: E402
from tests.effort import seeds  # noqa: E402


def own_weights(model: Any, run: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Run a model, and return its output and the weights of its attention modules, computed with `need_weights`."""
    found: dict[str, Any] = {}
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):

            def keep(module: Any, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                kwargs = {**kwargs, "need_weights": True, "average_attn_weights": False}
                weights = type(module).forward(module, *args, **kwargs)[1]
                # The weights of a fully masked row are NaN in PyTorch.
                found[name] = (weights if weights.ndim == 4 else weights[None]).nan_to_num()

            hooks.append(module.register_forward_hook(keep, with_kwargs=True))
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        output = run()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
        for hook in hooks:
            hook.remove()
    return output, found


def recorded_equals_own(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Check that `record` neither changes the output of a model nor differs from its own weights; return the record."""

    def run() -> Any:
        return model(*args, **kwargs)

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        expected, own = own_weights(model, run)
        with record(model, [Dense(), TopWeights(1)], save_inputs=True) as seen:
            output = run()
    assert own
    assert list(seen.layers) == list(own)
    assert (seen.missed, seen.materialized) == ((), ())
    for x, y in zip(*(y if isinstance(y, tuple) else (y,) for y in (output, expected)), strict=True):
        assert x is y is None or torch.equal(x.nan_to_num(), y.nan_to_num())
    for name, weights in own.items():
        (one,) = seen.layers[name]
        torch.testing.assert_close(one.readouts[0], weights, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(one.readouts[1].weights, weights.topk(1).values, rtol=1e-5, atol=1e-6)
        assert (one.queries, one.keys) == weights.shape[-2:]
        batch, heads, q, k = weights.shape
        tile = one.tile((0, q), (0, k), element=batch - 1, head=heads - 1)
        torch.testing.assert_close(tile, weights[-1, -1], rtol=1e-5, atol=1e-6)
    assert torch.backends.mha.get_fastpath_enabled()
    return seen


@pytest.mark.parametrize("seed", seeds(60, 20))
def test_attention_module_with_random_options(seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    heads, width = draw.choice([(1, 4), (2, 6), (4, 8)])
    other = draw.random() < 0.5
    kdim, vdim = draw.choice([(None, None), (3, None), (5, 7)]) if other else (None, None)
    extra = draw.random() < 0.4
    module = nn.MultiheadAttention(
        width, heads, bias=draw.random() < 0.7, add_bias_kv=extra, add_zero_attn=draw.random() < 0.4,
        kdim=kdim, vdim=vdim, batch_first=draw.random() < 0.5, dropout=0.5,
    ).train(draw.random() < 0.2)  # fmt: skip
    module.dropout = 0.0 if module.training else 0.5  # the output with dropout is random
    batch, q = draw.choice([None, 1, 3]), draw.choice([1, 2, 7])
    k = draw.choice([1, 4, 9]) if other else q

    def sequence(length: int, columns: int) -> Any:
        shape = (length,) if batch is None else (batch, length) if module.batch_first else (length, batch)
        return torch.randn(*shape, columns)

    query = sequence(q, width)
    key = sequence(k, kdim or width) if other else query
    value = sequence(k, vdim or width) if other else query
    options: dict[str, Any] = {"need_weights": draw.random() < 0.5}
    lead = () if batch is None else (batch,)

    def mask(*shape: int) -> Any:
        excluded = torch.rand(*shape) < 0.3
        kind = draw.choice(["boolean", "infinite", "float", "both"])
        if kind == "boolean":
            return excluded
        numbers = torch.randn(*shape) if kind != "infinite" else torch.zeros(*shape)
        return numbers if kind == "float" else numbers.masked_fill(excluded, -torch.inf)

    if draw.random() < 0.5:
        options["key_padding_mask"] = mask(*lead, k)
    if draw.random() < 0.6:
        shape = (q, k) if draw.random() < 0.5 else ((batch or 1) * heads, q, k)
        options["attn_mask"] = torch.ones(q, k).triu(1).bool() if draw.random() < 0.3 else mask(*shape)
    if {x.dtype for name, x in options.items() if name != "need_weights"} == {torch.bool, torch.float32}:
        del options["key_padding_mask"]  # PyTorch warns about masks of two dtypes
    seen = recorded_equals_own(module, query, key, value, **options)
    (one,) = seen.layers[""]
    assert one.kind == ("cross" if other else "self")


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder_with_padding_and_a_causal_mask(batch_first: bool, norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first and batch_first).eval()
    x = torch.randn(3, 5, 8) if batch_first else torch.randn(5, 3, 8)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    seen = recorded_equals_own(model, x, src_key_padding_mask=padding)
    assert all(one.key_mask.tolist() == (~padding).tolist() for (one,) in seen.layers.values())
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    seen = recorded_equals_own(model, x, mask=causal, is_causal=True)
    assert [(one.kind, one.causal) for (one,) in seen.layers.values()] == [("self", True)] * 2


def test_transformer_decoder_and_transformer_have_cross_attention() -> None:
    torch.manual_seed(0)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2).eval()
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    seen = recorded_equals_own(decoder, torch.randn(2, 5, 8), torch.randn(2, 7, 8), tgt_mask=causal)
    assert {name: (one.kind, one.causal, one.keys) for name, (one,) in seen.layers.items()} == {
        "layers.0.self_attn": ("self", True, 5), "layers.0.multihead_attn": ("cross", False, 7),
        "layers.1.self_attn": ("self", True, 5), "layers.1.multihead_attn": ("cross", False, 7),
    }  # fmt: skip
    # Source and target are the same tensor, yet the decoder attends to the output of the encoder.
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    seen = recorded_equals_own(model, x, x)
    assert [one.kind for (one,) in seen.layers.values()] == ["self", "self", "cross"]


def test_layers_and_heads_are_selected_by_name_and_index() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 4, 16, batch_first=True), 3).eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad(), record(model, [Dense()]) as everything:
        model(x)
    with torch.no_grad(), record(model, [Dense()], layers=["layers.0.*", -1], heads=[3, 1]) as some:
        model(x)
    assert list(some.layers) == ["layers.0.self_attn", "layers.2.self_attn"]
    for name, (one,) in some.layers.items():
        torch.testing.assert_close(one.readouts[0], everything.layers[name][0].readouts[0][:, [3, 1]])
    with pytest.raises(OptionError, match="4 heads"), record(model, [Dense()], heads=[4]):
        model(x)
    assert torch.backends.mha.get_fastpath_enabled()


def test_gradients_flow_through_the_model_while_it_is_recorded() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(2, 5, 8)
    model(x).square().sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    with record(model, [Dense()]) as seen:
        model(x).square().sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert gradients.keys() == expected.keys()
    assert all(torch.equal(gradient, expected[name]) for name, gradient in gradients.items())
    assert not seen.layers["self_attn"][0].readouts[0].requires_grad


def test_modules_of_torch_are_recorded_without_transformers() -> None:
    program = (
        "import sys; sys.modules['transformers'] = None; import torch; from qkv.interop import record\n"
        "from qkv.readouts import Entropy\n"
        "model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()\n"
        "with torch.no_grad(), record(model, [Entropy()]) as seen: model(torch.randn(2, 5, 8))\n"
        "print(seen.layers['self_attn'][0].readouts[0].shape)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("torch.Size([2, 2, 5])\n", "")


def test_a_module_around_a_model_of_transformers_is_recorded_by_the_attention_interface() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        initializer_range=0.5,
    )  # fmt: skip

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.BertModel(config)
            self.pool = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, ids: Any) -> Any:
            states = self.bert(ids).last_hidden_state
            return self.pool(states[:, :1], states, states)[0]

    model, ids = Pooled().eval(), torch.tensor([[1, 2, 3]])
    implementation = model.bert.config._attn_implementation
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        with record(model, [Dense()]) as seen:
            model(ids)
        assert model.bert.config._attn_implementation == implementation
        _, own = own_weights(model, lambda: model(ids))
        model.bert.set_attn_implementation("eager")
        own["bert.encoder.layer.0.attention.self"] = model.bert(ids, output_attentions=True).attentions[0]
    assert {name: one.kind for name, (one,) in seen.layers.items()} == {
        "bert.encoder.layer.0.attention.self": "self", "pool": "cross",
    }  # fmt: skip
    for name, (one,) in seen.layers.items():
        torch.testing.assert_close(one.readouts[0], own[name], rtol=0, atol=1e-6)
