"""Arguments of the wrong kind are refused by an error of qkv that names the argument and says what to do."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv import masks, nn, normalizers, readouts, scores
from qkv.errors import KindError, QkvError

X = torch.randn(2, 5, 16)

MODULES: dict[str, Callable[..., Any]] = {
    "Attention": lambda **parts: nn.Attention(**parts)(X),
    "MultiHeadAttention": lambda **parts: nn.MultiHeadAttention(16, 4, **parts)(X),
    "SelfAttention": lambda **parts: nn.SelfAttention(16, 4, **parts)(X),
    "EncoderLayer": lambda **parts: nn.EncoderLayer(16, 4, **parts)(X),
    "DecoderLayer": lambda **parts: nn.DecoderLayer(16, 4, **parts)(X, X),
    "Encoder": lambda **parts: nn.Encoder(1, 16, 4, **parts)(X),
    "Decoder": lambda **parts: nn.Decoder(1, 16, 4, **parts)(X, X),
    "LatentAttention": lambda **parts: nn.LatentAttention(3, 16, 4, **parts)(X),
}

NO_PARTS: dict[str, Any] = {
    "a text": "softmax",
    "a function of PyTorch": torch.softmax,
    "a function": lambda query, key: query @ key.mT,
    "a module of PyTorch": torch.nn.Softmax(-1),
    "a number": 3,
    "a list": [],
    "a dict": {},
}


def assert_one_sentence(raised: pytest.ExceptionInfo[QkvError]) -> None:
    assert re.fullmatch(r"\w.* must .*, got .*\. [A-Z].*\.", str(raised.value)), str(raised.value)


@pytest.mark.thinned
@pytest.mark.parametrize("name", NO_PARTS)
@pytest.mark.parametrize("part", ["score", "normalizer", "mask"])
@pytest.mark.parametrize("module", MODULES)
def test_part_of_the_wrong_kind_is_refused_by_every_module(module: str, part: str, name: str) -> None:
    with pytest.raises(KindError, match=rf"^{part} must be ") as raised:
        MODULES[module](**{part: NO_PARTS[name]})
    assert_one_sentence(raised)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("part", [normalizers.Softmax, masks.Causal])
def test_class_of_a_part_is_refused_with_advice_to_pass_an_instance(part: Any, module: str) -> None:
    name = "normalizer" if part is normalizers.Softmax else "mask"
    with pytest.raises(KindError, match=f"{name} must be .* got the class {part.__name__}, not an instance"):
        MODULES[module](**{name: part})


def test_class_of_a_score_without_required_arguments_is_a_score() -> None:
    torch.manual_seed(0)
    one = nn.MultiHeadAttention(16, 4, score=scores.Cosine)
    other = nn.MultiHeadAttention(16, 4, score=scores.Cosine())
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(X), other(X))
    with pytest.raises(KindError, match="score must be an instance of Softcap, which has required arguments"):
        nn.MultiHeadAttention(16, 4, score=scores.Softcap)


def test_a_learned_score_in_a_call_without_a_module_is_refused_with_advice_to_call_it() -> None:
    with pytest.raises(KindError, match=r"score must be a Score, got an object of type Cosine.*returns, score\(\)"):
        qkv.attend(X, X, X, score=nn.Cosine(16))  # type: ignore[arg-type]


def test_function_that_builds_a_score_is_called_and_a_function_of_query_and_key_is_not() -> None:
    module = nn.MultiHeadAttention(16, 4, score=lambda query_width, key_width, heads: nn.Additive(query_width, heads=4))
    assert module(X).shape == X.shape
    with pytest.raises(KindError, match=r"wrap a function of query and key as scores\.Custom\(function\)") as raised:
        nn.MultiHeadAttention(16, 4, score=lambda query, key: query @ key.mT)
    assert_one_sentence(raised)


@pytest.mark.parametrize("positions", ["rotary", nn.positions.Rotary, 3, torch.zeros(5)], ids=str)
def test_positions_that_cannot_rotate_are_refused(positions: Any) -> None:
    with pytest.raises(KindError, match=r"^positions must be an nn\.Rotation") as raised:
        nn.MultiHeadAttention(16, 4, positions=positions)
    assert_one_sentence(raised)


@pytest.mark.parametrize("cache", ["dynamic", nn.KeyValueCache, [], {}, (X, X)], ids=lambda cache: type(cache).__name__)
def test_cache_that_cannot_append_is_refused(cache: Any) -> None:
    for module in (nn.MultiHeadAttention(16, 4, positions=nn.positions.Rotary(4)), nn.Attention()):
        with pytest.raises(KindError, match=r"^cache must be an nn\.Cache") as raised:
            module(X, cache=cache)
        assert_one_sentence(raised)


@pytest.mark.parametrize("given", [readouts.Dense(), 3, None], ids=str)
def test_readout_without_a_list_is_refused(given: Any) -> None:
    for module in (nn.MultiHeadAttention(16, 4), nn.Attention()):
        with pytest.raises(KindError, match="readouts must be a list or tuple of readouts") as raised:
            module(X, readouts=given)
        assert_one_sentence(raised)


NO_TENSORS: dict[str, Callable[[], Any]] = {
    "a list": lambda: X.tolist(),
    "an array of NumPy": lambda: X.numpy(),
    "a text": lambda: "query",
    "integers": lambda: X.long(),
    "booleans": lambda: X > 0,
    "complex numbers": lambda: X + 0j,
    "8-bit floating-point numbers": lambda: X.to(torch.float8_e4m3fn),
    "a sparse tensor": lambda: X.to_sparse(),
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(3, 16), torch.ones(4, 16)]),
    "a jagged tensor": lambda: torch.nested.nested_tensor([torch.ones(3, 16), torch.ones(4, 16)], layout=torch.jagged),
    "a quantized tensor": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NO_TENSORS)
def test_input_that_is_no_dense_tensor_of_numbers_is_refused(name: str) -> None:
    given = NO_TENSORS[name]()
    for module in (nn.MultiHeadAttention(16, 4), nn.EncoderLayer(16, 4), nn.LatentAttention(3, 16, 4)):
        with pytest.raises(KindError, match=r"^(query|x) must be a dense tensor of floating-point numbers") as raised:
            module(given)
        assert_one_sentence(raised)
    with pytest.raises(KindError, match=r"^key must be a dense tensor"):
        nn.MultiHeadAttention(16, 4)(X, given, X)


@pytest.mark.parametrize("given", [None, "query", X.tolist(), 3.0, np.float32])
def test_attention_without_projections_refuses_what_is_no_array(given: Any) -> None:
    with pytest.raises(KindError, match=r"^query must be a tensor, got ") as raised:
        nn.Attention()(given)
    assert_one_sentence(raised)


CONSTRUCTORS: dict[str, Callable[..., Any]] = {
    "MultiHeadAttention": nn.MultiHeadAttention,
    "SelfAttention": nn.SelfAttention,
    "CrossAttention": nn.CrossAttention,
    "EncoderLayer": nn.EncoderLayer,
    "DecoderLayer": nn.DecoderLayer,
    "Encoder": nn.Encoder,
    "Decoder": nn.Decoder,
    "Transformer": nn.Transformer,
    "LatentAttention": nn.LatentAttention,
}
OPTIONS = {
    "embed_dim": 16, "num_heads": 4, "kdim": 8, "vdim": 8, "add_bias_kv": True, "add_zero_attn": True, "d_model": 16,
    "nhead": 4, "dim_feedforward": 32, "layer_norm_eps": 1e-5, "norm_first": True,
}  # fmt: skip
MASKS = (
    "attn_mask", "key_padding_mask", "src_mask", "tgt_mask", "src_key_padding_mask", "tgt_key_padding_mask",
    "memory_key_padding_mask",
)  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("module", CONSTRUCTORS)
def test_constructor_that_is_given_an_option_of_pytorch_names_its_own_and_from_torch(module: str, option: str) -> None:
    with pytest.raises(KindError, match=rf"arguments of {module} must .*'{option}'\. Pass .* from_torch\.") as raised:
        CONSTRUCTORS[module](**{option: OPTIONS[option]})
    assert_one_sentence(raised)


@pytest.mark.parametrize("module", CONSTRUCTORS)
def test_batch_first_is_refused_because_there_is_one_layout(module: str) -> None:
    with pytest.raises(KindError, match=r"'batch_first'\. Leave it out: the layout is always \(batch, length, width\)"):
        CONSTRUCTORS[module](batch_first=True)


@pytest.mark.thinned
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("module", MODULES)
def test_call_that_is_given_a_mask_of_pytorch_names_torch_masks(module: str, name: str) -> None:
    arguments = {"Attention": (), "LatentAttention": (3, 16, 4), "Encoder": (1, 16, 4), "Decoder": (1, 16, 4)}
    made = getattr(nn, module)(*arguments.get(module, (16, 4)))
    sides = (X, X) if module.startswith("Decoder") else (X,)
    with pytest.raises(KindError, match=rf"arguments of {module} must .*'{name}'\. .* nn\.torch_masks") as raised:
        made(*sides, **{name: torch.zeros(5, 5, dtype=torch.bool)})
    assert_one_sentence(raised)


@pytest.mark.parametrize("name", ["need_weights", "average_attn_weights"])
def test_call_that_asks_for_weights_names_the_readout(name: str) -> None:
    with pytest.raises(KindError, match=r"Pass readouts=\[readouts\.Dense\(\)\]"):
        nn.MultiHeadAttention(16, 4)(X, X, X, **{name: True})


def test_names_that_both_libraries_use_are_accepted() -> None:
    layer = nn.DecoderLayer(16, 4, activation="gelu", dropout=0.0, bias=False)
    assert layer(X, memory=X, memory_mask=masks.Lengths(torch.tensor([5, 4]))).shape == X.shape
    other = nn.MultiHeadAttention.from_torch(torch.nn.MultiheadAttention(16, 4, kdim=8, vdim=8, batch_first=True))
    padded = torch.tensor([[False] * 4 + [True]] * 2)
    keys = torch.randn(2, 5, 8)
    assert other(X, keys, **nn.torch_masks(key_padding_mask=padded)).shape == X.shape
