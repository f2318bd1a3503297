"""Models with another score or normalizer: training, saving and loading with them, on tiny models and on MiniLM."""

import copy
import functools
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import qkv  # noqa: E402
from qkv import nn, normalizers, scores  # noqa: E402
from qkv.errors import DataError, KindError, OptionError  # noqa: E402
from qkv.interop import huggingface, record  # noqa: E402
from qkv.interop.huggingface.registration import REGISTERED  # noqa: E402

TOKENS = torch.arange(2, 14).reshape(2, 6)
SIZES = {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}


def bert(**more: Any) -> Any:
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(**SIZES, **more)).eval()


def llama(**more: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, **more)
    return transformers.LlamaForCausalLM(config).eval()


def states(model: Any) -> Any:
    with torch.no_grad():
        return model(TOKENS)[0]


PARTS: dict[str, dict[str, Any]] = {
    "entmax": {"normalizer": normalizers.Entmax15()},
    "nested normalizer": {"normalizer": normalizers.TopK(3, normalizers.Softmax(0.5))},
    "gaussian": {"score": scores.Gaussian(1.5)},
    "nested score": {"score": scores.Softcap(scores.Cosine(0.3), 2.0)},
    "learned": {"score": nn.Additive},
    "learned with options": {"score": functools.partial(nn.Additive, hidden=3, bias=False)},
    "learned instance": {"score": nn.Bilinear(4, heads=4)},
    "one for all heads": {"score": functools.partial(nn.Cosine, heads=None), "normalizer": normalizers.Sigmoid()},
    "learned wrapper": {"score": functools.partial(nn.Softcap, score=nn.Gaussian)},
    "learned sum": {"score": functools.partial(nn.SumOf, score=(nn.Bilinear, scores.ScaledDot()))},
    "constants": {"score": nn.RelativePosition},
    "learned entmax": {"normalizer": normalizers.Entmax(torch.nn.Parameter(torch.tensor([1.3, 1.5, 1.6, 1.8])))},
    "learned top-k": {
        "score": nn.Bilinear,
        "normalizer": normalizers.TopK(4, normalizers.Softmax(torch.nn.Parameter(torch.tensor(0.5)))),
    },
}


@pytest.mark.parametrize(
    ("parts", "build"),
    [
        *[(parts, bert) for parts in PARTS],
        ("entmax", llama),
        ("learned", llama),
        ("constants", llama),
        ("learned entmax", llama),
    ],
)
def test_a_saved_model_is_restored_with_its_score_and_normalizer(parts: str, build: Any, tmp_path: Path) -> None:
    name = huggingface.register(f"qkv-{parts}", **PARTS[parts])
    model = build(attn_implementation=name)
    with torch.no_grad():
        for x in model.parameters():  # away from initial values
            x += 0.05 * torch.randn_like(x)
    want = states(model)
    assert (want - states(build())).abs().max() > 1e-4
    model.save_pretrained(tmp_path)
    loaded, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert torch.equal(states(loaded.eval()), want)
    # In another process the name is not registered: an error of transformers, until it is.
    del REGISTERED[name]
    del transformers.AttentionInterface._global_mapping[name]
    with pytest.raises(ValueError, match="is not supported"):
        transformers.AutoModel.from_pretrained(tmp_path)
    assert huggingface.register_saved(tmp_path) == name
    again = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(states(again), want)
    again.save_pretrained(tmp_path / "again")
    assert torch.equal(states(type(model).from_pretrained(tmp_path / "again").eval()), want)
    auto = transformers.AutoModel.from_pretrained(tmp_path)
    assert auto.config._attn_implementation == name


def test_a_name_that_is_registered_with_other_parts_is_refused_when_the_model_is_loaded(tmp_path: Path) -> None:
    huggingface.register("qkv-changed", normalizer=normalizers.Sparsemax())
    bert(attn_implementation="qkv-changed").save_pretrained(tmp_path)
    huggingface.register("qkv-changed", normalizer=normalizers.Entmax15())
    with pytest.raises(OptionError, match="the model was saved with"):
        transformers.AutoModel.from_pretrained(tmp_path)
    huggingface.register("qkv-other", normalizer=normalizers.Entmax15())
    other = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="qkv-other")
    assert other.config.qkv_attention["name"] == "qkv-other"
    plain = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="sdpa")
    plain.save_pretrained(tmp_path / "plain")
    saved = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert "attn_implementation" not in saved
    assert "qkv_attention" not in saved


def test_a_configuration_does_not_name_the_engine_if_the_parts_are_those_of_the_model(tmp_path: Path) -> None:
    huggingface.register()
    bert(attn_implementation="qkv").save_pretrained(tmp_path)
    assert "qkv" not in (tmp_path / "config.json").read_text()
    with pytest.raises(DataError, match="got one with the attention of transformers"):
        huggingface.register_saved(tmp_path)


def test_functions_are_noted_and_must_be_registered_again_by_code(tmp_path: Path) -> None:
    name = huggingface.register("qkv-function", score=lambda layer: scores.Gaussian(2.0))
    model = bert(attn_implementation=name)
    model.save_pretrained(tmp_path)
    assert torch.equal(states(transformers.AutoModel.from_pretrained(tmp_path)), states(model))
    with pytest.raises(DataError, match="Register it by code"):
        huggingface.register_saved(tmp_path)


@pytest.mark.parametrize("change", [{"score": {"part": "Popen", "fields": {}}}, {"score": {"learned": "Decoder"}}])
def test_a_saved_description_builds_only_scores_and_normalizers_of_qkv(tmp_path: Path, change: Any) -> None:
    bert(attn_implementation=huggingface.register("qkv-edited", score=nn.Additive)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["qkv_attention"].update(change)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="must be a class of qkv"):
        huggingface.register_saved(tmp_path)


def test_switching_and_measuring_a_model_keeps_what_is_saved_with_it() -> None:
    name = huggingface.register("qkv-kept", score=nn.Additive)
    model = bert()
    assert not hasattr(model.config, "qkv_attention")
    model.set_attn_implementation(name)
    learned = model.encoder.layer[0].attention.self.qkv_score
    want = states(model)
    huggingface.layer_coverage(model, input_ids=TOKENS)
    with record(model, [qkv.readouts.Entropy()]) as recorder:
        assert torch.allclose(states(model), want, atol=1e-6)
    assert len(recorder.layers) == 2
    assert model.config.qkv_attention["name"] == name
    assert model.encoder.layer[0].attention.self.qkv_score is learned
    model.set_attn_implementation("sdpa")
    assert not hasattr(model.config, "qkv_attention")
    huggingface.attach(model, name)
    assert torch.equal(states(model), want)


def test_new_learned_scores_of_a_pretrained_model_have_their_initial_values(tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path)
    name = huggingface.register("qkv-new", score=functools.partial(nn.Gaussian, bandwidth=2.0))
    model = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation=name)
    for layer in model.encoder.layer:
        bandwidth = layer.attention.self.qkv_score().bandwidth
        assert torch.allclose(bandwidth, torch.full((4,), 2.0))
    # The weights of the model itself were loaded.
    assert torch.equal(model.embeddings.word_embeddings.weight, bert().embeddings.word_embeddings.weight)


@pytest.mark.parametrize("build", [bert, llama])
def test_a_learned_score_of_a_layer_has_parameters_per_head_that_the_engine_uses(build: Any) -> None:
    name = huggingface.register("qkv-heads", score=functools.partial(nn.Additive, hidden=5))
    model = build(attn_implementation=name).double()
    layers = [x for x in model.modules() if hasattr(x, "qkv_score")]
    assert len(layers) == 2
    assert layers[0].qkv_score.query_weight.shape == (4, 5, 4)
    torch.manual_seed(1)
    heads, key_heads = (4, 4) if build is bert else (4, 2)
    query, key, value = (torch.randn(2, h, 7, 4, dtype=torch.float64) for h in (heads, key_heads, key_heads))
    function = transformers.AttentionInterface()[name]
    got, _ = function(layers[0], query, key, value, None, is_causal=False)
    for h in range(heads):
        w = {n: x[h] for n, x in layers[0].qkv_score.named_parameters()}
        one = scores.Additive(**w)
        k = h * key_heads // heads
        want = qkv.attend(query[:, h], key[:, k], value[:, k], score=one, kernel="dense")
        torch.testing.assert_close(got[:, :, h], want, rtol=0, atol=1e-12)
    got.sum().backward()
    assert all(x.grad is not None and x.grad.abs().sum() > 0 for x in layers[0].qkv_score.parameters())


def test_scores_built_for_other_heads_or_widths_are_refused() -> None:
    with pytest.raises(OptionError, match="head width 4 of BertSelfAttention"):
        bert(attn_implementation=huggingface.register("qkv-wide", score=nn.Additive(8, heads=4)))
    with pytest.raises(OptionError, match="heads=4 for BertSelfAttention"):
        bert(attn_implementation=huggingface.register("qkv-many", score=nn.Additive(4, heads=3)))
    huggingface.register("qkv-late", score=nn.Additive)
    layer = bert().encoder.layer[0].attention.self
    arrays = [torch.randn(1, 4, 3, 4) for _ in range(3)]
    with pytest.raises(OptionError, match="must have the parameters of its learned score"):
        transformers.AttentionInterface()["qkv-late"](layer, *arrays, None)


def test_a_learned_normalizer_is_a_parameter_of_each_layer_that_is_trained_and_stays_in_copies() -> None:
    alpha = torch.nn.Parameter(torch.full((4,), 1.5))
    name = huggingface.register("qkv-alpha", normalizer=normalizers.Entmax(alpha))
    model = bert(attn_implementation=name)
    own = [x for key, x in model.named_parameters() if "qkv_normalizer" in key]
    assert len({x.data_ptr() for x in own}) == model.config.num_hidden_layers
    assert all(torch.equal(x, alpha) for x in own)
    optimizer = torch.optim.SGD(own, lr=0.1 / 1e-4)
    (model(TOKENS)[0] * torch.randn(2, 6, 16)).sum().backward()
    assert alpha.grad is None
    assert all(x.grad is not None and x.grad.abs().min() > 0 for x in own)
    for x in own:
        x.grad.clamp_(-1e-4, 1e-4)
    optimizer.step()
    copied = copy.deepcopy(model)
    copied.set_attn_implementation("sdpa")
    copied.set_attn_implementation(name)
    assert torch.equal(states(copied), states(model))
    assert all((x - alpha).abs().max() > 0.01 for x in own)
    plain = bert()
    huggingface.attach(plain, name)
    assert states(plain).isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"score": scores.Gaussian},
            r"score must be a score or .*, got .*Gaussian.* Pass an instance, such as Gaussian",
        ),
        ({"normalizer": normalizers.Sparsemax}, r"normalizer must be .* such as Sparsemax\(…\)\."),
        ({"score": "gaussian"}, "score must be a score .* got .*Pass an instance of a class in qkv.scores"),
        ({"score": normalizers.Softmax()}, "score must be a score"),
        ({"normalizer": nn.Additive}, "normalizer must be a normalizer"),
        ({"normalizer": scores.Gaussian}, "normalizer must be a normalizer"),
    ],
)
def test_what_is_neither_a_part_nor_a_function_of_the_layer_is_refused_in_one_sentence(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(KindError, match=message):
        huggingface.register("qkv-wrong", **options)
    assert "qkv-wrong" not in REGISTERED


def test_a_function_of_the_layer_that_returns_no_part_is_named() -> None:
    name = huggingface.register("qkv-no-part", score=lambda layer: scores.Gaussian)
    with pytest.raises(KindError, match=r"score of Bert.* must be a score of qkv\.scores, got .*passed to register"):
        states(bert(attn_implementation=name))
