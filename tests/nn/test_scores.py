"""Learned scores: every score with arrays has a module, and its parameters get their gradients."""

import functools
import importlib
import inspect
import pkgutil
from typing import Any

import pytest
import torch

import qkv
from qkv import masks, nn, scores
from qkv.core.equation import attend_dense
from qkv.core.parts import Part
from qkv.errors import KindError, OptionError, ShapeError

Tensor = torch.Tensor
WIDTH, HEADS, Q = 3, 2, 5


def squared(x: Tensor, scale: Tensor) -> Tensor:
    return (x + scale) ** 2


def decayed(query: Tensor, key: Tensor, rate: Tensor) -> Tensor:
    return -rate.exp() * (query[..., :, None, :] - key[..., None, :, :]).square().sum(-1)


CLASSES = torch.tensor([0, 1, 2, 1, 0])
# Further arguments of the learned scores, which are called with (query_width, key_width, heads=…).
ARGUMENTS: dict[str, dict[str, Any]] = {
    "Additive, narrow": {"hidden": 2, "bias": False},
    "Bilinear, low rank": {"rank": 2},
    "Projected": {"hidden": 2, "score": nn.Gaussian},
    "SumOf": {"score": (nn.Additive, scores.ScaledDot, nn.Gaussian)},
    "Epanechnikov": {"bandwidth": 20.0},
    "Triangular": {"bandwidth": 20.0},
    "Softcap": {"cap": 2.0, "score": nn.Bilinear},
    "Biased": {"k": Q},
    "Biased, pairs": {"q": Q, "k": Q},
    "RelativePosition": {"buckets": 8, "score": nn.Additive},
    "ClassTable": {"query_classes": CLASSES},
    "Custom": {"function": decayed, "parameters": (torch.tensor(-1.0),)},
    "Features": {"function": squared, "parameters": (torch.tensor(1.0),)},
}
LEARNED = [
    name
    for name in nn.__all__
    if isinstance(kind := getattr(nn, name), type)
    and issubclass(kind, nn.LearnedScore)
    and kind not in (nn.LearnedScore, nn.LearnedWrapper)
]
MADE = {
    name: functools.partial(getattr(nn, name.split(",")[0]), **ARGUMENTS.get(name, {}))
    for name in sorted({*LEARNED, *ARGUMENTS})
}


def perturbed(module: torch.nn.Module) -> Any:
    """Return the module in float64 with every parameter perturbed, so that no gradient is 0 by symmetry."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return module.double()


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        pytest.param(name, heads, marks=[pytest.mark.long] * (number % 2 == (heads is None)))
        for number, name in enumerate(MADE)
        for heads in (None, HEADS)
    ],
)
def test_gradients_of_the_parameters_are_those_of_finite_differences(name: str, heads: int | None) -> None:
    score = perturbed(MADE[name](WIDTH, WIDTH, heads=heads))
    module = nn.MultiHeadAttention(HEADS * WIDTH, HEADS, score=score, maps=[])
    names = [key for key, _ in score.named_parameters()]
    x = torch.randn(2, Q, HEADS * WIDTH, dtype=torch.float64)

    def output(*parameters: Tensor) -> Tensor:
        given = {f"score.{key}": p for key, p in zip(names, parameters, strict=True)}
        return torch.func.functional_call(module, given, (x,))

    parameters = [p.detach().clone().requires_grad_() for p in score.parameters()]
    assert parameters
    gradients = torch.autograd.grad(output(*parameters).square().sum(), parameters)
    assert all(gradient.abs().max() > 1e-9 for gradient in gradients), "a parameter gets no gradient"
    assert torch.autograd.gradcheck(output, parameters)


@pytest.mark.parametrize("name", [name for name in MADE if name not in ("Custom", "Features")])
def test_each_head_uses_its_own_parameters(name: str) -> None:
    score = perturbed(MADE[name](WIDTH, WIDTH, heads=HEADS))
    module = nn.MultiHeadAttention(HEADS * WIDTH, HEADS, score=score, maps=[], mask=masks.Causal())
    x = torch.randn(4, Q, HEADS * WIDTH, dtype=torch.float64)
    alone = MADE[name](WIDTH, WIDTH).double()
    for head in range(HEADS):
        own = {
            key: value[head] if value.ndim == alone.get_parameter(key).ndim + 1 else value
            for key, value in score.named_parameters()
        }
        alone.load_state_dict(own, strict=False)
        normalizer = qkv.normalizers.NORMALIZERS[alone().default_normalizer]()
        part = x[..., head * WIDTH : (head + 1) * WIDTH]
        wanted = attend_dense(part, part, part, score=alone(), normalizer=normalizer, mask=masks.Causal())
        got = module(x)[..., head * WIDTH : (head + 1) * WIDTH]
        torch.testing.assert_close(got, wanted.output, atol=1e-12, rtol=0)


def test_every_score_with_arrays_has_a_module() -> None:
    """Boxcar has no gradient, ByColumn takes tables; the others of `qkv.scores` that hold arrays are here."""
    holding = {
        name
        for name in scores.__all__
        if isinstance(getattr(scores, name), type)
        and issubclass(getattr(scores, name), Part)
        and any(
            field.metadata.get("axes") is not None or field.name in ("scores", "parameters")
            for key, field in getattr(getattr(scores, name), "__dataclass_fields__", {}).items()
        )
    }
    missing = holding - {"Boxcar"} - set(nn.__all__)
    assert not missing, f"write a module in nn/scores/learned.py, and add it to its __all__: {missing}"
    assert {"Additive", "Softcap", "SumOf"} <= holding


def test_every_learned_score_is_exported() -> None:
    package = importlib.import_module("qkv.nn.scores")
    found = set()
    for module in pkgutil.iter_modules(package.__path__):
        for name, thing in vars(importlib.import_module(f"qkv.nn.scores.{module.name}")).items():
            if isinstance(thing, type) and issubclass(thing, nn.LearnedScore) and not name.startswith("_"):
                found.add(name)
    assert found == {"LearnedScore", "LearnedWrapper", *LEARNED}


@pytest.mark.thinned
@pytest.mark.parametrize(("width", "least", "most"), [(4, 0.15, 1.6), (64, 0.4, 1.3)])
@pytest.mark.parametrize("name", ["Additive", "Bilinear", "Gated", "SeparableGate", "Cosine", "Laplace", "Gaussian"])
def test_logits_of_unit_variance_inputs_start_with_a_deviation_near_one(
    name: str, width: int, least: float, most: float
) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 400, width)
    score = getattr(nn, name)(width)()
    logits = score(query, key)
    # Softmax ignores what all logits of a query have in common.
    deviation = (logits - logits.mean(-1, keepdim=True)).std().item()
    assert least < deviation < most, deviation


def test_additive_takes_a_query_and_a_key_of_different_widths() -> None:
    attention = nn.Attention(score=nn.Additive(4, 6))
    assert attention(torch.randn(2, 3, 4), torch.randn(2, 5, 6)).shape == (2, 3, 6)
    with pytest.raises(ShapeError, match="a weight for width 4"):
        attention(torch.randn(2, 3, 5), torch.randn(2, 5, 6))


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: nn.Additive(0), OptionError, "query_width must be an integer of at least 1, got 0"),
        (lambda: nn.Additive(4, heads=-1), OptionError, "heads must be an integer of at least 1, got -1"),
        (lambda: nn.Gaussian(4, bandwidth=-2.0), OptionError, "bandwidth must be a positive number, got -2.0"),
        (lambda: nn.SumOf(4, score=()), OptionError, "tuple"),
        (lambda: nn.MultiHeadAttention(8, 2, score="additive"), KindError, "nn.Additive"),
        (lambda: nn.MultiHeadAttention(8, 2, score=nn.Additive(4, heads=4)), OptionError, "4 heads"),
        (lambda: nn.Attention(score=nn.Additive), KindError, "nn.Additive\\(query_width"),
        (lambda: nn.MultiHeadAttention(8, 2, score=torch.nn.Linear(2, 2)), KindError, "Linear"),
    ],
)
def test_invalid_arguments_are_refused_by_name(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()


def test_arrays_of_a_portable_score_move_and_save_with_the_module() -> None:
    slopes = torch.tensor([0.5, 0.25])
    module = nn.MultiHeadAttention(8, 2, score=scores.ALiBi(scores.ScaledDot(), slopes)).double()
    assert module.score().slope.dtype == torch.float64
    assert "score.array_0" in module.state_dict()
    learned = nn.Attention(score=scores.Bilinear(torch.nn.Parameter(torch.eye(3))))
    assert [name for name, _ in learned.named_parameters()] == ["score.array_0"]
    learned(torch.randn(2, 3)).sum().backward()
    assert learned.score.array_0.grad.abs().sum() > 0


def test_alibi_slopes_are_those_of_the_paper_and_can_be_fixed() -> None:
    torch.testing.assert_close(nn.ALiBi(4, heads=8)().slope, torch.tensor([2.0**-n for n in range(1, 9)]))
    assert not nn.ALiBi(4, learned=False)().slope.requires_grad


def test_the_signature_of_a_learned_score_names_its_options_and_an_unknown_one_is_refused():
    assert list(inspect.signature(nn.Additive).parameters) == [
        "query_width", "key_width", "heads", "device", "dtype", "hidden", "bias",
    ]  # fmt: skip
    assert list(inspect.signature(nn.Softcap).parameters)[-2:] == ["cap", "score"]
    with pytest.raises(OptionError, match=r"arguments of Additive must be among query_width, .*, bias, got 'hiden'"):
        nn.Additive(4, hiden=3)


def test_a_parameter_among_the_fields_of_a_learned_score_is_trained() -> None:
    class Clamped(nn.LearnedScore):
        core = scores.Gaussian

        def fields(self) -> dict[str, object]:
            return {"bandwidth": torch.nn.Parameter(torch.tensor(2.0))}

    score = Clamped(4)
    qkv.attend(*torch.randn(3, 5, 4), score=score()).sum().backward()
    assert [name for name, parameter in score.named_parameters() if parameter.grad is not None] == ["bandwidth"]
