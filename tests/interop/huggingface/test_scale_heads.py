"""Scaled and ablated heads, compared with the same change of the output projection in PyTorch."""

import copy

import pytest

from qkv.errors import DataError, OptionError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from qkv.interop import record, scale_heads  # noqa: E402
from qkv.readouts import Dense  # noqa: E402

VOCABULARY = 23


def bert():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=VOCABULARY, **sizes))
    return model, [(layer.attention.self, layer.attention.output.dense) for layer in model.bert.encoder.layer]


def gpt2():
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4, n_positions=32)
    model = transformers.GPT2LMHeadModel(config)
    return model, [(block.attn, block.attn.c_proj) for block in model.transformer.h]


def llama():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **sizes)
    model = transformers.LlamaForCausalLM(config)
    return model, [(layer.self_attn, layer.self_attn.o_proj) for layer in model.model.layers]


def t5():
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(vocab_size=VOCABULARY, decoder_start_token_id=1, **sizes)
    model = transformers.T5ForConditionalGeneration(config)
    blocks = [*model.encoder.block, *model.decoder.block]
    layers = [part for block in blocks for part in block.layer[:-1]]
    attention = [getattr(part, "SelfAttention", None) or part.EncDecAttention for part in layers]
    return model, [(module, module.o) for module in attention]


def encoder():
    layer = torch.nn.TransformerEncoderLayer(16, 4, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2)
    return model, [(each.self_attn, each.self_attn.out_proj) for each in model.layers]


def run(model):
    ids = torch.tensor([[1, 5, 2, 9, 17]])
    if isinstance(model, torch.nn.TransformerEncoder):
        return model(torch.linspace(-1, 1, 80).reshape(1, 5, 16))
    decoder = {"decoder_input_ids": ids[:, :3]} if model.config.is_encoder_decoder else {}
    return model(input_ids=ids, **decoder).logits


def scaled_copy(model, attention, factors):
    """Return a copy of a model in which the columns of the output projections are scaled instead."""
    changed = copy.deepcopy(model)
    names = dict(changed.named_modules())
    own = {module: name for name, module in model.named_modules()}
    for layer, head, factor in factors:
        weight = names[own[attention[layer][1]]].weight
        # `Conv1D` of GPT-2 stores the transpose.
        columns = weight.data.T if type(attention[layer][1]).__name__ == "Conv1D" else weight.data
        columns[:, 4 * head : 4 * head + 4] *= factor
    return changed


@pytest.mark.parametrize("build", [bert, gpt2, llama, t5, encoder])
def test_scaled_heads_equal_scaled_columns_of_the_output_projection(build):
    torch.manual_seed(3)
    model, attention = build()
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
        before = run(model)
        for factors in ([(0, 1, 0.0)], [(1, 3, -0.5), (0, 0, 2.0), (1, 2, 0.0)], [(len(attention) - 1, 0, 0.0)]):
            by_name = {module: name for name, module in model.named_modules()}
            named = {(by_name[attention[layer][0]], head): factor for layer, head, factor in factors}
            wanted = run(scaled_copy(model, attention, factors))
            with scale_heads(model, named):
                found = run(model)
            assert not torch.allclose(found, before, rtol=1e-3, atol=1e-3)
            assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)
            with scale_heads(model, {(layer, head): factor for layer, head, factor in factors}):
                assert torch.equal(run(model), found)
        # The model is as it was.
        assert torch.equal(run(model), before)


def test_scaled_heads_of_decoding_steps_and_of_recorded_runs():
    torch.manual_seed(4)
    model, attention = gpt2()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
    model.eval()
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    ids = torch.tensor([[1, 5, 2]])
    wanted = scaled_copy(model, attention, [(0, 1, 0.0), (1, 0, 0.0)]).generate(ids, **options)
    with scale_heads(model, {(0, 1): 0.0, (1, 0): 0.0}):
        assert torch.equal(model.generate(ids, **options), wanted)
        with record(model, [Dense()]) as recorder:
            assert torch.equal(model.generate(ids, **options), wanted)
    assert len(recorder.layers) == 2
    assert not torch.equal(model.generate(ids, **options), wanted)


def test_heads_that_do_not_exist_and_layers_without_the_interface_are_refused():
    model, _ = bert()
    ids = torch.tensor([[1, 2]])
    with pytest.raises(OptionError, match="layer must be between 0 and 1, got 2"), scale_heads(model, {(2, 0): 0.0}):
        pass
    with pytest.raises(OptionError, match="name of an attention layer"), scale_heads(model, {("x", 0): 0.0}):
        pass
    with pytest.raises(OptionError, match="factor must be finite"), scale_heads(model, {(0, 0): float("nan")}):
        pass
    with pytest.raises(OptionError, match="head must be between 0 and 3"), scale_heads(model, {(0, 4): 0.0}):
        model(input_ids=ids)
    config = transformers.BloomConfig(vocab_size=9, hidden_size=8, n_layer=1, n_head=2)
    bloom = transformers.BloomForCausalLM(config).eval()
    with pytest.raises(DataError, match="must use the attention interface"), scale_heads(bloom, {(0, 0): 0.0}):
        bloom(input_ids=ids)
    # An error of the block is not hidden.
    with pytest.raises(IndexError), scale_heads(bloom, {(0, 0): 0.0}):
        bloom(input_ids=ids + 99)
