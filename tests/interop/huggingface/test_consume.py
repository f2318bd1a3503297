"""Records that a function consumes while the model runs."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from qkv.interop import record  # noqa: E402
from qkv.readouts import Dense  # noqa: E402


def test_consumed_records_are_those_that_are_kept_otherwise():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=3, num_attention_heads=2
    )
    model = transformers.BertModel(config).eval()
    tokens = torch.tensor([[1, 2, 3, 4]])
    consumed = []
    with torch.no_grad(), record(model, [Dense()]) as kept:
        model(tokens)
    with torch.no_grad(), record(model, [Dense()], consume=lambda *call: consumed.append(call)) as empty:
        model(tokens)
    assert empty.layers == {}
    assert [name for name, _ in consumed] == list(kept.layers)
    for name, call in consumed:
        assert torch.equal(call.readouts[0], kept.layers[name][0].readouts[0])
