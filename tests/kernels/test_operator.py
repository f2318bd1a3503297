"""Calls under torch.compile: one operator in the graph, and the answers of a call without the compiler."""

import dataclasses
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.core.parts import Part
from qkv.engine import _attend_in_operator
from qkv.errors import GradientError, RefusedError, ShapeError
from qkv.kernels.fused.sdpa import FusedAttention
from qkv.kernels.tiled import attention as tiles
from qkv.testing.cases import MASKS, NONNEGATIVE, NORMALIZERS, SCORES, Case
from qkv.testing.libraries import LONG
from qkv.torch_bridge.operator import operator_arguments
from tests.effort import sample

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    import torch._dynamo

    torch._dynamo.reset()
    torch.manual_seed(5)
    yield
    torch._dynamo.reset()


def sides(n: int = 20) -> list[Tensor]:
    return [torch.randn(2, n, 4, requires_grad=True) for _ in range(3)]


def parameters() -> list[Tensor]:
    return [torch.randn(shape, requires_grad=True) for shape in ((4, 4), (4, 4), (4,), ())]


def squared(query: Tensor, key: Tensor, scale: Tensor) -> Tensor:
    return -scale.exp() * (query[..., :, None, :] - key[..., None, :, :]).square().sum(-1)


Call = Callable[..., Tensor]

# Every part is made within the function, as in the forward of a module.
CALLS: dict[str, Call] = {
    "fused": lambda q, k, v, a, b, c, d: qkv.attend(q, k, v, kernel="fused"),
    "custom": lambda q, k, v, a, b, c, d: qkv.attend(q, k, v, score=scores.Custom(squared, (d,)), kernel="tiled"),
    "additive": lambda q, k, v, a, b, c, d: qkv.attend(q, k, v, score=scores.Additive(a, b, vector=c), kernel="tiled"),
    "alibi, causal": lambda q, k, v, a, b, c, d: qkv.attend(
        q, k, v, score=scores.ALiBi(scores.ScaledDot(), d), mask=masks.Causal(), kernel="tiled"
    ),
    "softcap, sigmoid": lambda q, k, v, a, b, c, d: qkv.attend(
        q, k, v, score=scores.Softcap(scores.Dot(), 3.0), normalizer=normalizers.Sigmoid(), kernel="tiled"
    ),
    "row_blocks": lambda q, k, v, a, b, c, d: qkv.attend(
        q, k, v, normalizer=normalizers.TopK(3, normalizers.Softmax()), kernel="row_blocks"
    ),
}
FORWARD: dict[str, Any] = {"fused": FusedAttention, "additive": tiles}
"""Where the function `forward` of a call is."""


def run(call: Call, inputs: list[Tensor], factor: Tensor) -> list[Any]:
    output = call(*inputs)
    return [output, *torch.autograd.grad((output * factor).sum(), inputs, allow_unused=True)]


def compiled(call: Call, **options: Any) -> Call:
    return torch.compile(call, fullgraph=True, backend="aot_eager", **options)


@pytest.mark.parametrize("name", sample(CALLS, 2))
def test_output_and_gradients_are_those_of_the_call_without_the_compiler(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, factor = sides() + parameters(), torch.randn(2, 20, 4)
    state, expected = torch.get_rng_state(), run(CALLS[name], inputs, factor)
    forward = counted(monkeypatch, FORWARD[name], "forward") if name in FORWARD else []
    results = run(compiled(CALLS[name]), inputs, factor)
    assert torch.equal(state, torch.get_rng_state())  # a call without randomness draws nothing
    assert forward == ["forward"] * (name in FORWARD)  # backward does not compute it again
    for got, wanted in zip(results, expected, strict=True):
        assert (got is None) == (wanted is None)
        if wanted is not None:
            torch.testing.assert_close(got, wanted)


def test_parts_created_outside_the_compiled_function_are_flattened_too() -> None:
    a, b, c, _ = inputs = parameters()
    query, key, value = sides()
    part = scores.Additive(a, b, vector=c)
    mask = masks.Causal() & masks.AllowedKeys(torch.arange(20) < 15)

    def call(*tensors: Tensor) -> Tensor:
        return qkv.attend(query, key, value, score=part, mask=mask)

    factor = torch.randn(2, 20, 4)
    for got, wanted in zip(run(compiled(call), inputs[:3], factor), run(call, inputs[:3], factor), strict=True):
        torch.testing.assert_close(got, wanted)


def counted(monkeypatch: pytest.MonkeyPatch, home: Any, name: str) -> list[str]:
    """Record each call of a function."""
    calls, function = [], getattr(home, name)

    def noted(*args: Any, **options: Any) -> Any:
        calls.append(name)
        return function(*args, **options)

    monkeypatch.setattr(home, name, noted)
    return calls


@pytest.mark.parametrize(
    ("mask", "value_width"),
    sample(itertools.product([masks.AllowedKeys(torch.arange(9) < 7), masks.Causal(), None], [3, 4, 6]), 9),
)
def test_fused_backward_continues_from_the_saved_numbers(mask: masks.Mask | None, value_width: int) -> None:
    inputs = [torch.randn(shape, requires_grad=True) for shape in ((2, 4, 9, 4), (2, 1, 9, 4), (2, 1, 9, value_width))]

    def call(*tensors: Tensor) -> Tensor:
        return qkv.attend(*tensors, mask=mask, kernel="fused")

    factor = torch.randn(2, 4, 9, value_width)
    pairs = zip(run(compiled(call), inputs, factor), run(call, inputs, factor), strict=True)
    for got, wanted in pairs:
        torch.testing.assert_close(got, wanted)


def test_half_precision_and_nonfinite_inputs_give_the_same_as_without_the_compiler() -> None:
    query, key, value = sides()
    key.data[:, 3] = torch.nan
    mask = masks.AllowedKeys(torch.arange(20) != 3) & masks.Causal()
    low = [x.detach().to(torch.bfloat16).requires_grad_() for x in (query, key, value)]

    def call(*tensors: Tensor) -> Tensor:
        return qkv.attend(*tensors, mask=mask)

    for inputs in ([query, key, value], low)[not LONG :]:
        factor = torch.randn(2, 20, 4).to(inputs[0].dtype)
        pairs = zip(run(compiled(call), inputs, factor), run(call, inputs, factor), strict=True)
        for got, wanted in pairs:
            assert got.isfinite().all()
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("name", sample(["additive", "alibi, causal"], 2))
def test_operators_pass_opcheck(name: str) -> None:
    query, key, value = sides(6)
    a, b, c, d = parameters()
    score = {"additive": scores.Additive(a, b, vector=c), "alibi, causal": scores.ALiBi(scores.ScaledDot(), d)}[name]
    mask = masks.Causal() if name == "alibi, causal" else None
    asked = score, None, mask, None, 0.0
    given = operator_arguments(query, key, value, asked, None, _attend_in_operator, "tiled", "512 MiB")
    torch.library.opcheck(torch.ops.qkv.attend.default, given)
    wanted = [True] * len(given[0])
    gradient = torch.randn(2, 6, 4)
    plain = [x.detach() for x in given[0]]
    output, numbers = torch.ops.qkv.attend(plain, *given[1:])
    assert numbers[..., 0].min() > 0
    torch.library.opcheck(torch.ops.qkv.attend_backward.default, (gradient, output, numbers, plain, wanted, *given[1:]))


@pytest.mark.parametrize("kernel", sample(["fused", "tiled"], 2))
def test_a_module_splits_and_merges_heads_without_copies(kernel: str) -> None:
    x = torch.randn(2, 6, 3, 4, requires_grad=True)
    call = compiled(lambda x: qkv.attend(*[x.transpose(1, 2)] * 3, kernel=kernel).transpose(1, 2))
    output = call(x)
    assert output.is_contiguous()
    (gradient,) = torch.autograd.grad(output.square().sum(), x)
    wanted = qkv.attend(*[x.transpose(1, 2)] * 3, kernel="dense").transpose(1, 2)
    torch.testing.assert_close(output, wanted)
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted.square().sum(), x)[0])
    tensors = [x.transpose(1, 2)] * 3
    given = operator_arguments(*tensors, (None, None, None, None, 0.0), None, _attend_in_operator, kernel, "512 MiB")
    torch.library.opcheck(torch.ops.qkv.attend.default, ([y.detach().clone() for y in tensors], *given[1:]))


def test_a_second_call_and_other_lengths_are_not_compiled_again() -> None:
    import torch._dynamo

    call = compiled(CALLS["alibi, causal"], dynamic=True)
    inputs = parameters()
    for each in (CALLS["alibi, causal"], call):  # the types of arrays that the compiled code compares are known then
        each(*sides(), *inputs)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in (20, 23):
            more = sides(n)
            torch.testing.assert_close(call(*more, *inputs), CALLS["alibi, causal"](*more, *inputs))


def test_changed_number_of_a_part_takes_effect() -> None:
    query, key, value = sides()

    def call(cap: float) -> Tensor:
        return qkv.attend(query, key, value, score=scores.Softcap(scores.Dot(), cap))

    fast = compiled(call)
    for cap in (1.0, 2.0, 3.0, 1) if LONG else (1.0, 2.0):
        torch.testing.assert_close(fast(cap), call(cap))


def test_dropout_draws_anew_in_each_call_and_backward_sees_the_same_draw() -> None:
    query, key, value = sides()

    def call(value: Tensor) -> Tensor:
        return qkv.attend(query, key, value, dropout=0.5)

    fast = compiled(call)
    first, second = fast(value), fast(value)
    assert not torch.equal(first, second)
    # The output is linear in the value: gradient · value is the output again, if nothing else was dropped.
    (gradient,) = torch.autograd.grad(first.sum(), value)
    torch.testing.assert_close((gradient * value).sum(), first.sum())


def test_a_given_seed_draws_the_same_as_without_the_compiler() -> None:
    inputs = sides()

    def call(query: Tensor, key: Tensor, value: Tensor, seed: int) -> Tensor:
        return qkv.attend(query, key, value, normalizer=normalizers.Sample(), seed=seed)

    fast = compiled(call)
    for seed in (1, 2**40):
        torch.testing.assert_close(fast(*inputs, seed), call(*inputs, seed))


def test_error_messages_are_the_same_as_without_the_compiler() -> None:
    query, key, value = sides()
    hidden = torch.full((), 0.5, requires_grad=True)  # what a scaled dot multiplies by
    score = scores.Custom(lambda q, k: q @ k.mT * hidden)

    def closing() -> Tensor:
        return qkv.attend(query, key, value, score=score)

    with pytest.raises(ShapeError, match="widths 4 and 3"):
        compiled(lambda: qkv.attend(query, key[..., :3], value))()
    with pytest.raises(GradientError, match="close over"):
        compiled(closing)()
    with torch.no_grad():
        torch.testing.assert_close(compiled(closing)(), qkv.attend(query, key, value))


def test_calls_that_return_more_than_the_output_break_the_graph_or_are_refused() -> None:
    query, key, value = (x.detach() for x in sides())
    ready = qkv.prepare(qkv.Spec(), ((2, 20, 4),) * 3, library="torch")

    def observed() -> Any:
        found = qkv.observe(query + 1, key, value, readouts=[readouts.Entropy()])
        return found.output.sin() + found.readouts[0][..., None]

    for call in (observed, lambda: ready(query, key, value).output.sin()):
        torch.testing.assert_close(torch.compile(call, backend="eager")(), call())
        with pytest.raises(RefusedError, match=r"fullgraph must be False .* Call qkv\.attend in this function"):
            compiled(call)()


def recipe(part: object) -> Any:
    """Return a class and the arguments of its constructor: recipes, lists of them, tensors or other values."""
    if isinstance(part, tuple):
        return [recipe(inner) for inner in part]
    if isinstance(part, Part):
        return type(part), {f.name: recipe(getattr(part, f.name)) for f in dataclasses.fields(part)}
    return torch.from_numpy(part) if isinstance(part, np.ndarray) else part


def build(made: Any) -> Any:
    if isinstance(made, list):
        return tuple(build(inner) for inner in made)
    return made[0](**{name: build(value) for name, value in made[1].items()}) if isinstance(made, tuple) else made


BUILT = [
    *(Case(score=name, normalizer="sum" if name in NONNEGATIVE else "softmax") for name in SCORES),
    *(Case(normalizer=name, score="constant" if name == "sum" else "dot") for name in NORMALIZERS),
    *(Case(mask=name) for name in MASKS),
]


@pytest.mark.parametrize("case", BUILT if LONG else sample(BUILT, 22), ids=str)
def test_every_part_may_be_built_in_the_compiled_function(case: Case) -> None:
    call = case.call()
    x = [torch.from_numpy(np.asarray(side)) for side in (call.query, call.key, call.value)]
    parts = {"score": recipe(call.score), "normalizer": recipe(call.normalizer), "mask": recipe(call.mask)}

    def attend(*x: Tensor) -> Tensor:
        built = {name: build(made) for name, made in parts.items()}
        return qkv.attend(*x, **built, positions=call.positions, seed=call.seed)

    got = torch.compile(attend, fullgraph=True, backend="eager")(*x)
    torch.testing.assert_close(got, attend(*x))


def test_a_process_loads_the_compiler_only_when_it_compiles_and_builds_parts_that_no_call_made_before() -> None:
    code = (
        "import sys, torch, qkv; x = torch.randn(2, 9, 4); qkv.attend(x, x, x)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "parts = lambda: {'score': qkv.scores.Softcap(qkv.scores.Laplace(2.0), 3.0), 'mask': qkv.masks.Window(3, 1)}\n"
        "made = lambda x: qkv.attend(x, x, x, **parts())\n"
        "print(torch.equal(torch.compile(made, fullgraph=True, backend='eager')(x), made(x)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.stdout.strip() == "True", told.stderr


def test_transforms_of_torch_func_are_refused() -> None:
    query, key, value = sides()
    call = compiled(lambda: torch.func.vmap(qkv.attend)(query, key, value))
    with pytest.raises(Exception, match=r"transform outside of torch\.compile"):
        call()


@pytest.mark.long
def test_memory_of_forward_and_backward_is_linear() -> None:
    # A score of all pairs of one batch element would be 64 MB; a tile is 1 MB.
    code = (
        "import resource, torch, qkv; torch.set_num_threads(1)\n"
        "f = torch.compile(lambda q, s: qkv.attend(q, q, q, score=qkv.scores.ALiBi(qkv.scores.Dot(), s)),\n"
        "                  fullgraph=True, backend='aot_eager')\n"
        "def both(n):\n"
        "    q = torch.randn(n, 8, requires_grad=True); s = torch.ones((), requires_grad=True)\n"
        "    f(q, s).sum().backward()\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "both(1024); both(1030); before = both(1040); print(both(4096) - before)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(told.stdout) < 32 * 1024
