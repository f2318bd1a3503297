"""PyTorch's tools on attention modules: compilation, export, saving, autocast, copies, the meta device."""

import copy
import functools
import io
import pickle
from typing import Any

import pytest
import torch
import torch._dynamo

import qkv
from qkv import masks, nn, normalizers, scores
from tests.nn.test_multihead import Listed, Turned
from tests.processes import run_python

Tensor = torch.Tensor
WIDTH, HEADS, Q = 8, 2, 5

MODULES: dict[str, Any] = {
    "plain": functools.partial(nn.MultiHeadAttention, WIDTH, HEADS),
    "self, causal": functools.partial(nn.SelfAttention, WIDTH, HEADS, mask=masks.Causal()),
    "grouped, norms, gate": functools.partial(
        nn.MultiHeadAttention, WIDTH, 4, key_heads=2, query_key_norm="rms", extensions=["output_gate"]
    ),
    "rotary, temperature, sink": functools.partial(
        nn.MultiHeadAttention, WIDTH, HEADS, positions=Turned(), extensions=["temperature", "sink"]
    ),
    "extra keys": functools.partial(
        nn.MultiHeadAttention, WIDTH, HEADS, extensions=["learned_key", "zero_key"], mask=masks.Causal()
    ),
    "talking heads": functools.partial(nn.MultiHeadAttention, WIDTH, HEADS, extensions=["talking_heads"]),
    "no maps": functools.partial(
        nn.MultiHeadAttention, WIDTH, HEADS, maps=[]
    ),
    "sparsemax": functools.partial(
        nn.MultiHeadAttention, WIDTH, HEADS, normalizer=normalizers.Sparsemax(), maps=["shared", "value", "output"]
    ),
    "slopes given": functools.partial(
        nn.MultiHeadAttention, WIDTH, HEADS, score=scores.ALiBi(scores.Dot(), torch.tensor([0.5, 0.1]))
    ),
    "bare": functools.partial(nn.Attention, score=nn.Additive(WIDTH), mask=masks.Window(2, 1)),
    **{
        f"nn.{name}": functools.partial(nn.MultiHeadAttention, WIDTH, HEADS, score=getattr(nn, name))
        for name in (
            "Additive", "Bilinear", "Gated", "SeparableGate", "Cosine", "Projected", "Gaussian", "Laplace",
            "Epanechnikov", "Triangular", "Softcap", "ALiBi", "RelativePosition", "QuadraticPosition",
        )
    },
}  # fmt: skip


class FromSource(nn.Transformer):
    """A model whose target is the beginning of its source."""

    def forward(self, source: Tensor) -> Tensor:
        return super().forward(source, source[:, :4], source_mask=masks.Lengths(3))


MODELS: dict[str, Any] = {
    "encoder": functools.partial(nn.Encoder, 2, WIDTH, HEADS, mask=masks.Causal(), positions=nn.positions.Rotary(4)),
    "post-norm, additive": functools.partial(nn.Encoder, 1, WIDTH, HEADS, norm="post", score=nn.Additive),
    "transformer": functools.partial(FromSource, WIDTH, HEADS, encoder_layers=1, decoder_layers=1),
    "latent": functools.partial(nn.LatentAttention, 3, WIDTH, HEADS, layers=1),
    "squeeze": functools.partial(nn.SqueezeExcitation, Q, 2),
    "sinusoidal": functools.partial(nn.positions.Sinusoidal, WIDTH, 16),
    "learned positions": functools.partial(nn.positions.Learned, 16, WIDTH),
}
EVERY = MODULES | MODELS
FEW = ("grouped, norms, gate", "encoder")
# The compiler takes a second of a processor for each of them.
SWEEP = [pytest.param(name, marks=() if name in FEW else pytest.mark.long) for name in EVERY]


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(3)
    yield
    torch._dynamo.reset()


def results(module: Any, run: Any, x: Tensor) -> list[Any]:
    module.zero_grad()
    leaf = x.clone().requires_grad_()
    output = run(leaf)
    output.square().sum().backward()
    return [output, leaf.grad, *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("name", SWEEP)
def test_compilation_has_no_graph_break_and_does_not_change_the_output(name: str) -> None:
    module = EVERY[name]()
    x = torch.randn(3, Q, WIDTH)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")  # raises an error where a graph breaks
    for got, wanted in zip(results(module, compiled, x), results(module, module, x), strict=True):
        # Gradients through a norm are small differences of numbers as large as 40.
        torch.testing.assert_close(got, wanted, atol=5e-5, rtol=1e-4)


def test_masks_biases_caches_and_dropout_compile_without_a_break() -> None:
    module = nn.MultiHeadAttention(WIDTH, HEADS, positions=Turned(), dropout=0.2)

    def step(x: Tensor, lengths: Tensor, bias: Tensor) -> Tensor:
        cache = Listed()
        module(x, cache=cache)
        return module(x, mask=masks.Lengths(lengths) & masks.Causal(), cache=cache, bias=bias)

    x, lengths, bias = torch.randn(2, Q, WIDTH), torch.tensor([7, 9]), torch.randn(HEADS, Q, 2 * Q)
    told = torch._dynamo.explain(step)(x, lengths, bias[None])
    assert told.graph_break_count == 0, told.break_reasons
    module.eval()
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, lengths, bias[None]), step(x, lengths, bias[None]))


def test_a_model_of_several_scores_and_normalizers_compiles_without_a_break() -> None:
    model = torch.nn.Sequential(
        nn.SelfAttention(WIDTH, HEADS, mask=masks.Causal()),
        nn.SelfAttention(WIDTH, HEADS, mask=masks.Causal(), score=nn.Additive),
        nn.MultiHeadAttention(
            WIDTH, HEADS, mask=masks.Window(3, 0), score=nn.Gaussian, normalizer=normalizers.Sparsemax()
        ),
        nn.MultiHeadAttention(WIDTH, HEADS, score=nn.Cosine, normalizer=normalizers.Sigmoid()),
    )
    x = torch.randn(2, Q, WIDTH)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for got, wanted in zip(results(model, compiled, x), results(model, model, x), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)


def test_one_compiled_module_serves_every_length() -> None:
    module = nn.MultiHeadAttention(WIDTH, HEADS, score=nn.Additive, mask=masks.Causal())
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (3, 17):
        x = torch.randn(2, length, WIDTH)
        torch.testing.assert_close(compiled(x), module(x), atol=1e-5, rtol=1e-4)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch, in its own compiler
def test_the_default_backend_of_the_compiler_gives_the_same_output() -> None:
    layers = torch.nn.Sequential(MODULES["self, causal"](), nn.SelfAttention(WIDTH, HEADS, score=nn.Additive))
    compiled = torch.compile(layers, fullgraph=True)
    x = torch.randn(2, 33, WIDTH)
    for got, wanted in zip(results(layers, compiled, x), results(layers, layers, x), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", SWEEP)
def test_exported_programs_give_the_same_output_for_other_data(name: str) -> None:
    module = EVERY[name]().eval()
    program = torch.export.export(module, (torch.randn(3, Q, WIDTH),))
    x = torch.randn(3, Q, WIDTH)
    torch.testing.assert_close(program.module()(x), module(x), atol=1e-5, rtol=1e-4)


KEYS = {
    "plain": "key_map.bias key_map.weight output_map.bias output_map.weight query_map.bias query_map.weight "
    "value_map.bias value_map.weight",
    "grouped, norms, gate": "gate_map.bias gate_map.weight key_map.bias key_map.weight key_norm.weight "
    "output_map.bias output_map.weight query_map.bias query_map.weight query_norm.weight value_map.bias "
    "value_map.weight",
    "rotary, temperature, sink": "key_map.bias key_map.weight log_temperature output_map.bias "
    "output_map.weight query_map.bias query_map.weight sink value_map.bias value_map.weight",
    "extra keys": "extra_key extra_value key_map.bias key_map.weight output_map.bias output_map.weight "
    "query_map.bias query_map.weight value_map.bias value_map.weight",
    "talking heads": "key_map.bias key_map.weight logit_mix output_map.bias output_map.weight query_map.bias "
    "query_map.weight value_map.bias value_map.weight weight_mix",
    "no maps": "",
    "sparsemax": "output_map.bias output_map.weight query_map.bias query_map.weight value_map.bias value_map.weight",
    "bare": "score.bias score.key_weight score.query_weight score.vector",
}
SCORE_KEYS = {
    "Additive": "bias key_weight query_weight vector",
    "Bilinear": "weight",
    "Gated": "bias key_weight query_weight",
    "SeparableGate": "key_bias key_weight query_bias query_weight",
    "Cosine": "log_temperature",
    "Projected": "key_weight query_weight",
    "Gaussian": "log_bandwidth",
    "Laplace": "log_bandwidth",
    "Epanechnikov": "log_bandwidth",
    "Triangular": "log_bandwidth",
    "Softcap": "log_cap",
    "ALiBi": "log_slope",
    "RelativePosition": "table",
    "QuadraticPosition": "log_coefficient",
}


@pytest.mark.parametrize("name", KEYS)
def test_names_in_a_state_dict_are_stable(name: str) -> None:
    """A change of this list breaks every checkpoint that was saved."""
    assert sorted(MODULES[name]().state_dict()) == KEYS[name].split()


@pytest.mark.parametrize("name", SCORE_KEYS)
def test_names_of_a_score_in_a_state_dict_are_stable(name: str) -> None:
    assert sorted(getattr(nn, name)(4).state_dict()) == SCORE_KEYS[name].split()


@pytest.mark.parametrize("name", EVERY)
def test_a_loaded_state_gives_the_same_output(name: str) -> None:
    module, other = EVERY[name](), EVERY[name]()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter))
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randn(2, Q, WIDTH)
    assert (other(x) == module(x)).all()


@pytest.mark.thinned
@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
@pytest.mark.parametrize("name", EVERY)
def test_copies_and_pickles_give_the_same_output_and_share_no_memory(name: str, again: Any) -> None:
    module = EVERY[name]()
    x = torch.randn(2, Q, WIDTH)
    wanted = module(x)
    other = again(module)
    assert (other(x) == wanted).all()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert (module(x) == wanted).all()


@pytest.mark.parametrize("name", MODULES)
def test_autocast_gives_half_precision_and_keeps_gradients_in_full(name: str) -> None:
    module = MODULES[name]()
    x = torch.randn(2, Q, WIDTH)
    wanted = module(x)
    with torch.autocast("cpu", torch.bfloat16):
        got = module(x)
    projected = any(isinstance(m, torch.nn.Linear) for m in module.modules())
    assert got.dtype == (torch.bfloat16 if projected else torch.float32)
    torch.testing.assert_close(got.float(), wanted, atol=0.08, rtol=0.08)
    if any(p.requires_grad for p in module.parameters()):
        got.float().square().sum().backward()
        assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("slopes given",)])
def test_a_module_built_on_meta_is_initialised_like_any_other(name: str) -> None:
    with torch.device("meta"):
        module = EVERY[name]() if name != "bare" else nn.Attention(score=nn.Additive(WIDTH))
    assert all(p.is_meta for p in module.parameters())
    module.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(torch.nan)
    for part in module.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    assert all(x.isfinite().all() for x in (*module.parameters(), *module.buffers()))
    assert module(torch.randn(2, Q, WIDTH)).isfinite().all()


def test_reset_parameters_alone_initialises_everything() -> None:
    module = nn.MultiHeadAttention(
        WIDTH, HEADS, score=functools.partial(nn.Softcap, score=nn.Additive), query_key_norm="layer",
        extensions=["output_gate", "sink", "temperature", "learned_key"],
    )  # fmt: skip
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(torch.nan)
    module.reset_parameters()
    assert all(p.isfinite().all() for p in module.parameters())


def test_projections_are_initialised_as_in_glorot_and_bengio() -> None:
    module = nn.MultiHeadAttention(64, 4, key_width=32)
    for linear in (module.query_map, module.key_map, module.value_map, module.output_map):
        bound = (6 / sum(linear.weight.shape)) ** 0.5
        assert 0.95 * bound < linear.weight.abs().max() <= bound
        assert (linear.bias == 0).all()


def test_modules_take_the_dtype_they_are_given() -> None:
    module = nn.MultiHeadAttention(
        WIDTH, HEADS, score=nn.Additive, extensions=["sink", "learned_key"], query_key_norm="rms", dtype=torch.float64
    )
    assert {p.dtype for p in module.parameters()} == {torch.float64}
    half = nn.MultiHeadAttention(WIDTH, HEADS, score=nn.Additive).bfloat16()
    assert half(torch.randn(2, Q, WIDTH, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_without_torch_the_error_names_the_extra_and_the_rest_works() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, qkv\n"
        "assert qkv.attend(np.eye(2), np.eye(2), np.eye(2)).shape == (2, 2)\n"
        "try:\n    qkv.nn\n"
        "except qkv.errors.QkvError as error:\n    print(error)\n"
    )
    assert 'pip install "qkv[torch]"' in run_python("-c", code)


def test_nn_is_a_public_name() -> None:
    """That it loads late is tested in `test_public_names.py`: `import qkv` loads no torch."""
    assert "nn" in qkv.__all__
    assert qkv.nn.MultiHeadAttention is nn.MultiHeadAttention
