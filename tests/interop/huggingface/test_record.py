"""`record`: the recorded calls and readouts, and that the model is restored."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from qkv import normalizers, readouts  # noqa: E402
from qkv.errors import KindError, OptionError  # noqa: E402
from qkv.interop import huggingface, record  # noqa: E402
from qkv.interop.huggingface.registration import LISTENERS  # noqa: E402

SMALL: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "initializer_range": 0.2,
}  # fmt: skip


def model_of(name: str, **more: Any) -> Any:
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    return cls(cls.config_class(**{**SMALL, **more})).eval()


def bart() -> Any:
    torch.manual_seed(0)
    return transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            vocab_size=50, d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, init_std=0.2,
            bos_token_id=1, eos_token_id=None, pad_token_id=0, decoder_start_token_id=2,
        )
    ).eval()  # fmt: skip


TOKENS = torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(1))
REAL = torch.ones(2, 9, dtype=torch.int64)
REAL[1, 6:] = 0


def hooks_of(model: Any) -> int:
    return sum(len(x._forward_hooks) + len(x._forward_pre_hooks) for x in model.modules())


def test_every_readout_is_that_of_the_dense_weights() -> None:
    model = model_of("LlamaForCausalLM", num_key_value_heads=2)
    asked = [
        readouts.Dense(), readouts.TopWeights(3), readouts.ColumnSum(), readouts.PooledMap(3),
        readouts.PooledMap(3, "max"), readouts.Heads(readouts.Entropy(), (3, 0)),
    ]  # fmt: skip
    with torch.no_grad(), record(model, asked) as seen:
        model(TOKENS, attention_mask=REAL)
    assert list(seen.layers) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    for (one,) in seen.layers.values():
        weights, top, columns, mean, largest, entropy = one.readouts
        assert weights.shape == (2, 4, 9, 9)
        torch.testing.assert_close(top.weights, weights.topk(3).values)
        torch.testing.assert_close(columns, weights.sum(-2))
        pooled = torch.nn.functional
        torch.testing.assert_close(mean, pooled.avg_pool2d(weights, 3))
        torch.testing.assert_close(largest, pooled.max_pool2d(weights, 3))
        safe = weights[:, [3, 0]]
        torch.testing.assert_close(entropy, -torch.special.xlogy(safe, safe).sum(-1), rtol=0, atol=1e-5)
        assert (one.kind, one.causal, one.output_shape) == ("self", True, (2, 9, 4, 8))
        assert one.key_mask.tolist() == REAL.bool().tolist()


def test_recording_changes_neither_output_nor_gradient() -> None:
    model = model_of("BertModel")
    model.set_attn_implementation("eager")
    plain = model(TOKENS, attention_mask=REAL).last_hidden_state
    plain.square().sum().backward()
    before = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    with record(model, [readouts.TopWeights(2)]) as seen:
        output = model(TOKENS, attention_mask=REAL).last_hidden_state
        output.square().sum().backward()
    rows = REAL.bool()
    torch.testing.assert_close(output[rows], plain[rows], rtol=0, atol=1e-5)
    largest = max(float(x.abs().max()) for x in before.values())
    for name, gradient in before.items():
        now = dict(model.named_parameters())[name].grad
        assert (now - gradient).abs().max() < 2e-5 * largest, name
    assert not any(one.readouts[0].weights.requires_grad for calls in seen.layers.values() for one in calls)


def test_every_call_of_a_layer_is_recorded() -> None:
    model = model_of("AlbertModel", embedding_size=16, num_hidden_layers=3)
    with torch.no_grad(), record(model, [readouts.Dense()]) as seen:
        model(TOKENS)
        model(TOKENS[:, :4])
    (calls,) = seen.layers.values()
    assert [(one.step, one.queries) for one in calls] == [(0, 9)] * 3 + [(1, 4)] * 3
    assert seen.calls == 2


@pytest.mark.parametrize("cache", [None, "static"])
def test_generate_is_recorded_step_by_step_with_cross_attention(cache: str | None) -> None:
    model = bart()
    with torch.no_grad(), record(model, [readouts.Dense()]) as seen:
        model.generate(
            TOKENS, attention_mask=REAL, max_new_tokens=4, do_sample=False, cache_implementation=cache,
            disable_compile=True,
        )  # fmt: skip
    kinds = {name: calls[0].kind for name, calls in seen.layers.items()}
    assert [name for name, kind in kinds.items() if kind == "cross"] == [
        "model.decoder.layers.0.encoder_attn", "model.decoder.layers.1.encoder_attn",
    ]  # fmt: skip
    cross = seen.layers["model.decoder.layers.0.encoder_attn"]
    assert [one.step for one in cross] == [0, 1, 2, 3]
    assert all(one.readouts[0].shape == (2, 4, 1, 9) for one in cross)
    # The padding of the input is never looked at.
    assert all((one.readouts[0][1, ..., 6:] == 0).all() for one in cross)
    own = seen.layers["model.decoder.layers.0.self_attn"]
    for step, one in enumerate(own):
        weights = one.readouts[0]
        assert (weights[..., : step + 1] > 0).all()
        assert (weights[..., step + 1 :] == 0).all()
        assert one.query_start == step


def test_layers_and_heads_can_be_chosen() -> None:
    model = model_of("LlamaModel", num_key_value_heads=2)
    with torch.no_grad(), record(model, [readouts.Dense(), readouts.TopWeights(2)]) as everything:
        model(TOKENS)
    wanted: Any
    for wanted in ("layers.1.*", 1, -1, ["layers.1.self_attn"]):
        with (
            torch.no_grad(),
            record(model, [readouts.Dense(), readouts.TopWeights(2)], layers=wanted, heads=(3, 0)) as some,
        ):
            model(TOKENS)
        assert list(some.layers) == ["layers.1.self_attn"]
        (one,), (all_of,) = some.layers["layers.1.self_attn"], everything.layers["layers.1.self_attn"]
        assert one.heads == (3, 0)
        torch.testing.assert_close(one.readouts[0], all_of.readouts[0][:, [3, 0]], rtol=0, atol=1e-6)
        assert torch.equal(one.readouts[1].keys, all_of.readouts[1].keys[:, [3, 0]])


@pytest.mark.parametrize("name", ["LlamaModel", "BertModel", "Gemma2Model", "GptOssModel"])
def test_any_tile_is_recomputed_exactly_from_saved_inputs(name: str) -> None:
    more: dict[str, Any] = {} if name == "BertModel" else {"num_key_value_heads": 2, "head_dim": 8}
    if name == "GptOssModel":
        more |= {"num_local_experts": 2, "num_experts_per_tok": 1}
    model = model_of(name, **more)
    with torch.no_grad(), record(model, [readouts.Dense()], save_inputs=True) as seen:
        model(TOKENS, attention_mask=REAL)
    for (one,) in seen.layers.values():
        assert len(one.readouts) == 1
        tile = one.tile((2, 6), (1, 9), element=1, head=2)
        torch.testing.assert_close(tile, one.readouts[0][1, 2, 2:6, 1:9], rtol=0, atol=1e-6)


@pytest.mark.parametrize("cache", [None, "static"])
def test_tiles_of_earlier_steps_do_not_change_in_later_steps(cache: str | None) -> None:
    model = model_of("MistralForCausalLM", num_key_value_heads=2, sliding_window=4)
    with torch.no_grad(), record(model, [readouts.Dense()], heads=[1], save_inputs=True) as seen:
        model.generate(
            TOKENS, max_new_tokens=6, do_sample=False, cache_implementation=cache, disable_compile=True,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
    for calls in seen.layers.values():
        assert len(calls) == 6
        for one in calls:
            tile = one.tile((0, one.queries), (0, one.keys), element=1, head=1)
            torch.testing.assert_close(tile, one.readouts[0][1, 0], rtol=0, atol=1e-6)


def test_without_keep_there_is_no_tile() -> None:
    model = model_of("BertModel")
    with torch.no_grad(), record(model, [readouts.Entropy()]) as seen:
        model(TOKENS)
    with pytest.raises(OptionError, match="save_inputs=True"):
        next(iter(seen.layers.values()))[0].tile((0, 1), (0, 1))


def test_the_model_is_as_before_also_after_an_exception() -> None:
    model = model_of("BertModel")
    model.set_attn_implementation("sdpa")
    hooks, listeners = hooks_of(model), sum(map(len, LISTENERS.values()))
    with torch.no_grad(), record(model, [readouts.Entropy()]):
        model(TOKENS)
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(IndexError), record(model, [readouts.Entropy()]):
        model(TOKENS + 50)  # no such words
    assert model.config._attn_implementation == "sdpa"
    assert (hooks_of(model), sum(map(len, LISTENERS.values()))) == (hooks, listeners)
    with torch.no_grad(), record(model, [readouts.Entropy()]) as again:
        model(TOKENS)
    assert len(again.layers) == 2


def test_a_model_of_parts_gets_each_part_s_own_attention_back() -> None:
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config={**vision, "vocab_size": 50},
            vision_config={**vision, "image_size": 8, "patch_size": 4},
            projection_dim=8,
        )
    ).eval()
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    with torch.no_grad(), record(model, [readouts.Dense()]) as seen:
        model(TOKENS, torch.randn(2, 3, 8, 8))
    assert {name.split(".")[0]: calls[0].keys for name, calls in seen.layers.items()} == {
        "text_model": 9, "vision_model": 5,
    }  # fmt: skip
    assert model.config.text_config._attn_implementation == "eager"
    assert model.config.vision_config._attn_implementation == "sdpa"


def test_a_model_with_a_registered_score_is_recorded_with_it() -> None:
    huggingface.register("qkv-sparse", normalizer=normalizers.Sparsemax())
    model = huggingface.attach(model_of("BertModel"), "qkv-sparse")
    with torch.no_grad(), record(model, [readouts.Dense()]) as seen:
        model(TOKENS)
    assert any((calls[0].readouts[0] == 0).any() for calls in seen.layers.values())
    assert model.config._attn_implementation == "qkv-sparse"


def test_a_model_that_bypasses_the_interface_is_read_from_its_own_weights_with_a_warning() -> None:
    model = model_of("MPNetModel")
    with torch.no_grad():
        own = model(TOKENS, attention_mask=REAL, output_attentions=True).attentions
    hooks = hooks_of(model)
    with (
        pytest.warns(huggingface.BypassWarning, match="read from weights that the model computed"),
        torch.no_grad(),
        record(model, [readouts.Dense(), readouts.TopWeights(2)]) as seen,
    ):
        model(TOKENS, attention_mask=REAL)
    assert seen.materialized == ("encoder.layer.0.attention.attn", "encoder.layer.1.attention.attn")
    assert seen.missed == ()
    for (one,), weights in zip(seen.layers.values(), own, strict=True):
        assert torch.equal(one.readouts[0], weights)
        torch.testing.assert_close(one.readouts[1].weights, weights.topk(2).values)
        assert not one.exact
    assert hooks_of(model) == hooks


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"layers": "nowhere.*"}, OptionError, "must match a layer of the model"),
        ({"layers": 2}, OptionError, "2 attention layers"),
        ({"heads": [4]}, OptionError, "layer has 4 heads"),
        ({"name": "never"}, OptionError, "must be a registered name"),
    ],
)
def test_unknown_layers_heads_and_names_are_named(more: dict[str, Any], error: type[Exception], said: str) -> None:
    model = model_of("BertModel")
    with pytest.raises(error, match=said), record(model, [readouts.Entropy()], **more):
        model(TOKENS)


def test_an_array_is_no_readout() -> None:
    with pytest.raises(KindError, match="must be instances of"):
        record(model_of("BertModel"), [torch.zeros(2)])  # type: ignore[list-item]
