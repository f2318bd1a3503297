"""The attention function for all arguments of models, compared with the equation in double precision."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers  # noqa: E402
from torch import Tensor  # noqa: E402

from qkv import normalizers, scores  # noqa: E402
from qkv.errors import OptionError, RefusedError  # noqa: E402
from qkv.interop import huggingface  # noqa: E402
from qkv.interop.huggingface import mask_interface  # noqa: E402
from tests.interop.huggingface.test_decoding_step import tiny  # noqa: E402

Layer = torch.nn.Identity


def call(layer: Any, *arrays: Tensor, mask: Any = None, name: str = "qkv", **more: Any) -> Any:
    huggingface.register()
    return transformers.AttentionInterface()[name](layer, *arrays, mask, **more)


def arrays(heads: int = 4, key_heads: int = 2, q: int = 5, k: int = 7, **more: Any) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return tuple(
        torch.randn(2, h, n, width, **more) for h, n, width in ((heads, q, 6), (key_heads, k, 6), (key_heads, k, 3))
    )


def dense(query: Tensor, key: Tensor, value: Tensor, scaling: float, **more: Any) -> tuple[Tensor, Tensor]:
    """The definition: one line after another."""
    each = query.shape[1] // key.shape[1]
    key, value = (x.double().repeat_interleave(each, 1) for x in (key, value))
    logits = query.double() @ key.transpose(2, 3) * scaling
    if cap := more.get("softcap"):
        logits = cap * torch.tanh(logits / cap)
    for bias in (more.get("position_bias"), more.get("mask")):
        if bias is not None:
            logits = logits.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else logits + bias
    if (sink := more.get("s_aux")) is not None:
        logits = torch.cat([logits, sink.double().reshape(1, -1, 1, 1).expand(*logits.shape[:3], 1)], -1)
    weights = logits.softmax(-1)[..., : key.shape[2]]
    return (weights @ value).transpose(1, 2), weights


FLOAT = torch.zeros(2, 1, 5, 7).masked_fill(torch.arange(7) > 4, torch.finfo(torch.float32).min)
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "soft cap": {"softcap": 0.7},
    "sinks": {"s_aux": torch.tensor([0.3, -1.0, 2.0, 0.0])},
    "position bias": {"position_bias": torch.linspace(-1, 1, 140).reshape(1, 4, 5, 7)},
    "boolean mask": {"mask": torch.arange(7) <= torch.arange(2, 7)[:, None]},
    "boolean mask of each head": {"mask": torch.rand(2, 4, 5, 7) > 0.3},
    "float mask": {"mask": FLOAT},
    "all": {
        "softcap": 0.9, "s_aux": torch.tensor([0.3, -1.0, 2.0, 0.0]), "mask": FLOAT,
        "position_bias": torch.linspace(-1, 1, 140).reshape(1, 4, 5, 7),
    },
}  # fmt: skip


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("name", CASES)
def test_output_weights_and_gradients_are_those_of_the_definition(name: str, heads: tuple[int, int]) -> None:
    case = dict(CASES[name])
    given = arrays(*heads)
    mask = case.pop("mask", None)
    if mask is not None and mask.ndim == 2:
        mask = mask[None, None].expand(2, 1, 5, 7)
    mine = [x.clone().requires_grad_() for x in given]
    output, weights = call(Layer(), *mine, mask=mask, scaling=0.31, output_attentions=True, **case)
    theirs = [x.double().requires_grad_() for x in given]
    wanted, dense_weights = dense(*theirs, 0.31, mask=mask, **case)
    assert output.shape == (2, 5, 4, 3)
    torch.testing.assert_close(output.double(), wanted, rtol=0, atol=2e-6)
    torch.testing.assert_close(weights.double(), dense_weights, rtol=0, atol=1e-6)
    toward = torch.randn(wanted.shape, dtype=torch.float64)
    wanted.backward(toward)
    # Without weights: the way that a model trains by.
    call(Layer(), *mine, mask=mask, scaling=0.31, **case)[0].backward(toward.float())
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=0, atol=1e-5)


def test_without_scaling_the_width_scales() -> None:
    given = arrays()
    torch.testing.assert_close(call(Layer(), *given)[0].double(), dense(*given, 6**-0.5)[0], rtol=0, atol=2e-6)


def test_without_a_mask_a_causal_layer_is_causal_and_the_room_of_a_static_cache_is_left_out() -> None:
    layer = Layer()
    layer.is_causal = True
    given = arrays()
    allowed = torch.arange(7) <= torch.arange(5)[:, None]
    wanted = dense(*given, 6**-0.5, mask=allowed)[0]
    torch.testing.assert_close(call(layer, *given)[0].double(), wanted, rtol=0, atol=2e-6)
    # The call knows better than the layer; and a single query sees all.
    free = dense(*given, 6**-0.5)[0]
    torch.testing.assert_close(call(layer, *given, is_causal=False)[0].double(), free, rtol=0, atol=2e-6)
    single = (given[0][:, :, -1:], *given[1:])
    torch.testing.assert_close(call(layer, *single)[0].double(), free[:, -1:], rtol=0, atol=2e-6)


def test_a_score_and_a_normalizer_of_your_own_stand_in_for_theirs() -> None:
    huggingface.register("qkv-own", score=scores.Gaussian(0.8), normalizer=normalizers.Sparsemax())
    query, key, value = given = arrays()
    from qkv.core.equation import attend_dense

    wanted = attend_dense(
        query.double().unflatten(1, (2, 2)), key.double()[:, :, None], value.double()[:, :, None],
        score=scores.Gaussian(0.8), normalizer=normalizers.Sparsemax(),
    ).output.flatten(1, 2).transpose(1, 2)  # fmt: skip
    torch.testing.assert_close(call(Layer(), *given, name="qkv-own")[0].double(), wanted, rtol=0, atol=1e-5)


def test_a_score_with_parameters_of_the_layer_is_trained() -> None:
    layer = Layer()
    layer.weight = torch.nn.Parameter(torch.randn(6, 6))
    huggingface.register("qkv-bilinear", score=lambda module: scores.Bilinear(module.weight))
    call(layer, *arrays(), name="qkv-bilinear")[0].square().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().max() > 0


def test_dropout_preserves_the_mean_and_is_off_by_default() -> None:
    query, key, value = arrays()
    still = call(Layer(), query, key, value)[0]
    torch.manual_seed(0)
    drawn = torch.stack([call(Layer(), query, key, value, dropout=0.5)[0] for _ in range(600)])
    assert drawn.std(0).min() > 0.05
    torch.testing.assert_close(drawn.mean(0), still, rtol=0, atol=0.25)


def test_sinks_under_a_normalizer_without_them_are_refused() -> None:
    huggingface.register("qkv-own", normalizer=normalizers.Sparsemax())
    with pytest.raises(OptionError, match=r"must be Softmax for .*, which has attention sinks"):
        call(Layer(), *arrays(), name="qkv-own", s_aux=torch.zeros(4))


def test_another_sink_for_each_query_is_refused() -> None:
    with pytest.raises(RefusedError, match="one element for each of the 4 heads"):
        call(Layer(), *arrays(), sinks=torch.zeros(2, 4, 5, 1))


@pytest.mark.parametrize("name", ["flash-qkv", "eager", "sdpa", "a|b", ""])
def test_a_name_that_transformers_reads_otherwise_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="name must be a non-empty string"):
        huggingface.register(name)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("LlamaModel", {"num_key_value_heads": 2}),
        ("MistralModel", {"num_key_value_heads": 2, "sliding_window": 5}),
        ("BertModel", {}),
    ],
)
def test_a_padded_text_runs_without_an_array_of_the_mask(
    kind: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(mask: Any) -> Tensor:
        raise AssertionError("the mask was made an array")

    cls = getattr(transformers, kind)
    config = cls.config_class(
        vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        **more,
    )  # fmt: skip
    model = huggingface.attach(cls(config).eval())
    monkeypatch.setattr(mask_interface.LazyMask, "dense", refuse)
    real = torch.ones(2, 300, dtype=torch.int64)
    real[0, :100] = 0
    with torch.no_grad():
        output = model(torch.ones(2, 300, dtype=torch.int64), attention_mask=real).last_hidden_state
    assert output[real.bool()].isfinite().all()


def test_packed_texts_do_not_see_each_other() -> None:
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = huggingface.attach(transformers.LlamaModel(config).eval())
    texts = [torch.randint(0, 50, (1, n)) for n in (4, 7, 3)]
    places = torch.cat([torch.arange(x.shape[1]) for x in texts])[None]
    with torch.no_grad():
        together = model(torch.cat(texts, 1), position_ids=places, use_cache=False).last_hidden_state
        apart = torch.cat([model(x, use_cache=False).last_hidden_state for x in texts], 1)
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-5)


TEXT = torch.randint(3, 31, (2, 12), generator=torch.Generator().manual_seed(0))
REAL = torch.ones_like(TEXT)
REAL[0, :4] = 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_are_the_same_when_layers_are_run_again_for_them(reentrant: bool) -> None:
    model, found = tiny(2, sliding_window=5).train(), []
    for name in ("eager", huggingface.register()):
        model.set_attn_implementation(name)
        model.zero_grad()
        model(TEXT, attention_mask=REAL, use_cache=False).logits[REAL.bool()].square().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
    assert (found[1] - found[0]).abs().max() <= 1e-5 * found[0].abs().max()
