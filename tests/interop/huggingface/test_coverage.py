"""Layer coverage: which layers call the engine, and warnings about those that do not."""

import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from qkv.errors import OptionError  # noqa: E402
from qkv.interop import huggingface  # noqa: E402
from tests.interop.huggingface.test_record import TOKENS, bart, hooks_of, model_of  # noqa: E402


def test_all_layers_of_an_encoder_and_decoder_are_counted() -> None:
    found = huggingface.layer_coverage(bart(), input_ids=TOKENS)
    assert sorted(found.covered.values()) == [1] * 5
    assert found.missed == ()
    assert str(found) == "all 5 attention layers that ran call the engine"


def test_layers_that_compute_attention_themselves_are_named() -> None:
    model = model_of("MPNetModel")
    hooks, before = hooks_of(model), model.config._attn_implementation
    found = huggingface.layer_coverage(model, input_ids=TOKENS)
    assert found.covered == {}
    assert found.missed == ("encoder.layer.0.attention.attn", "encoder.layer.1.attention.attn")
    assert (hooks_of(model), model.config._attn_implementation) == (hooks, before)


def test_coverage_names_the_layers_that_bypass_the_engine() -> None:
    config = transformers.LongT5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4, local_radius=3,
    )  # fmt: skip
    model = transformers.LongT5Model(config).eval()
    found = huggingface.layer_coverage(model, input_ids=TOKENS, decoder_input_ids=TOKENS)
    assert found.missed == ("encoder.block.0.layer.0.LocalSelfAttention",)
    assert len(found.covered) == 2


def test_attaching_warns_after_the_first_run_and_only_then() -> None:
    model = huggingface.attach(model_of("MPNetModel"))
    with pytest.warns(huggingface.BypassWarning, match="2 bypass"):
        model(TOKENS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(TOKENS)


def test_attaching_a_covered_model_gives_no_warning_and_leaves_no_hook() -> None:
    model = model_of("BertModel")
    hooks = hooks_of(model)
    huggingface.attach(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(TOKENS)
    assert hooks_of(model) == hooks
    assert model.config._attn_implementation == "qkv"


def test_a_name_that_nobody_registered_is_refused() -> None:
    with pytest.raises(OptionError, match="must be a registered name"):
        huggingface.attach(model_of("BertModel"), "never")


def test_from_pretrained_takes_the_name(tmp_path: object) -> None:
    huggingface.register()
    model_of("BertModel").save_pretrained(tmp_path)
    model = transformers.BertModel.from_pretrained(tmp_path, attn_implementation="qkv", local_files_only=True)
    assert len(huggingface.layer_coverage(model, input_ids=TOKENS).covered) == 2
