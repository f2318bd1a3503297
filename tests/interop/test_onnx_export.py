"""Modules exported to ONNX contain the operator if it can express them, and compute the same output."""

import collections
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, scores
from qkv.errors import DataError, KindError, MissingPackageError, OptionError, RefusedError
from tests.effort import sample

torch = pytest.importorskip("torch", reason="torch is not installed")
onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
nn = pytest.importorskip("qkv.nn")
export = pytest.importorskip("qkv.interop.onnx").export

D = torch.export.Dim.DYNAMIC
Inputs = tuple[Any, ...]


class Padded(torch.nn.Module):
    """Causal self-attention over rows of different lengths, which are an input."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.SelfAttention(16, 4, mask=masks.Causal())

    def forward(self, query: Any, lengths: Any) -> Any:
        return self.attention(query, mask=masks.Lengths(lengths))


class Call(torch.nn.Module):
    """One call of the engine."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, query: Any, key: Any, value: Any) -> Any:
        return qkv.attend(query, key, value, **self.options)


def made(seed: int, *shapes: tuple[int, ...]) -> Inputs:
    r = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=r) for shape in shapes)


SELF = (made(0, (2, 5, 16)), made(1, (3, 8, 16)), ({0: D, 1: D},))
NAMED = (*SELF[:2], ({0: D, 1: torch.export.Dim("length")},))
CROSS = (made(0, (2, 5, 16), (2, 7, 16)), made(1, (3, 6, 16), (3, 11, 16)), ({0: D, 1: D}, {0: D, 1: D}))
PADDED = ((*SELF[0], torch.tensor([3, 5])), (*SELF[1], torch.tensor([8, 1, 0])), ({0: D, 1: D}, {0: D}))


def heads(**options: Any) -> Callable[[], Any]:
    return lambda: nn.MultiHeadAttention(16, 4, **options)


Case = tuple[Callable[[], Any], tuple[Inputs, Inputs, Any], bool]
QUICK: dict[str, Case] = {
    "lengths as an input, causal": (Padded, PADDED, True),
    "grouped queries, causal at the end": (
        heads(key_heads=2, mask=masks.Causal(align="end"), head_value_width=6),
        CROSS,
        True,
    ),
    "soft cap and a learned bias": (
        heads(score=functools.partial(nn.ALiBi, score=scores.Softcap(scores.ScaledDot(), 3.0))),
        SELF,
        True,
    ),
}
MORE: dict[str, Case] = {
    "plain": (heads(), SELF, True),
    "cross": (heads(), CROSS, True),
    "multi-query": (heads(key_heads=1), SELF, True),
    "window": (heads(mask=masks.Window(2, 1)), SELF, True),
    "blocks of a mask": (heads(mask=~masks.Window(2, 1) | masks.Causal()), SELF, True),
    "norm and gate": (heads(query_key_norm="rms", extensions=["output_gate"]), SELF, True),
    "temperature": (heads(extensions=["temperature"]), SELF, True),
    "extra keys": (heads(extensions=["learned_key", "zero_key"], mask=masks.Causal()), NAMED, True),
    "ALiBi": (heads(score=nn.ALiBi, mask=masks.Causal()), SELF, True),
    "bilinear": (heads(score=nn.Bilinear), SELF, True),
    "cosine": (heads(score=nn.Cosine), SELF, True),
    "Gaussian": (heads(score=nn.Gaussian), SELF, True),
    "sink": (heads(extensions=["sink"], mask=masks.Causal()), SELF, False),
    "talking heads": (heads(extensions=["talking_heads"]), SELF, False),
    "additive": (heads(score=nn.Additive), SELF, False),
    "gated": (heads(score=nn.Gated), SELF, False),
    "Laplace": (heads(score=nn.Laplace), SELF, False),
    "entmax": (heads(normalizer=normalizers.Entmax15(), mask=masks.Causal()), SELF, False),
    "sparsemax": (heads(normalizer=normalizers.Sparsemax()), SELF, False),
    "top 3": (heads(normalizer=normalizers.TopK(3)), SELF, False),
    "hard": (heads(normalizer=normalizers.Hard()), SELF, False),
    "sigmoid": (heads(normalizer=normalizers.Sigmoid()), SELF, False),
}


def operators(path: Path) -> collections.Counter[str]:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return collections.Counter(node.op_type for node in model.graph.node)


def run(path: Path, inputs: Inputs) -> np.ndarray:
    session = onnxruntime.InferenceSession(path)
    names = [x.name for x in session.get_inputs()]
    return session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True)))[0]


def check(case: Case, path: Path, dynamic: bool) -> None:
    make, (inputs, others, shapes), node = case
    torch.manual_seed(0)
    module = make().eval()
    export(module, inputs, path, dynamic_shapes=shapes if dynamic else None)
    assert operators(path)["Attention"] == int(node)
    for given in (inputs, others) if dynamic else (inputs,):
        wanted = module(*given).detach().numpy()
        np.testing.assert_allclose(run(path, given), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("name", sample(QUICK, 3))
def test_an_exported_module_gives_the_same_for_lengths_it_was_not_exported_with(name: str, tmp_path: Path) -> None:
    check(QUICK[name], tmp_path / "model.onnx", dynamic=True)


def test_a_score_that_the_operator_does_not_know_becomes_plain_operators(tmp_path: Path) -> None:
    check(MORE["additive"], tmp_path / "model.onnx", dynamic=False)


@pytest.mark.long
@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "fixed"])
@pytest.mark.parametrize("name", MORE)
def test_every_exported_module_gives_the_same(name: str, dynamic: bool, tmp_path: Path) -> None:
    check(MORE[name], tmp_path / "model.onnx", dynamic)


@pytest.mark.parametrize("opset", sample([23, 25], 2))
def test_of_finite_data_a_call_is_one_node_which_the_reference_and_the_runtime_agree_on(
    opset: int, tmp_path: Path
) -> None:
    from onnx.reference import ReferenceEvaluator

    module = Call(mask=masks.Causal(), score=scores.Softcap(scores.ScaledDot(), 2.0)).eval()
    inputs = made(0, (2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 6))
    path = export(module, inputs, tmp_path / "model.onnx", opset=opset, finite=True)
    model = onnx.load(path)
    (node,) = model.graph.node
    assert (node.op_type, model.opset_import[0].version) == ("Attention", opset)
    names = [x.name for x in model.graph.input]
    wanted = module(*inputs).numpy()
    given = dict(zip(names, (x.numpy() for x in inputs), strict=True))
    (reference,) = ReferenceEvaluator(model).run(None, given)
    np.testing.assert_allclose(reference, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    np.testing.assert_allclose(run(path, inputs), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


GUARDED = {
    "causal": {"mask": masks.Causal()},
    "pairs": {"mask": masks.Window(2, 1) & masks.Lengths(5)},
    "bias": {"score": scores.Biased(scores.Dot(), torch.zeros(6, 6).masked_fill(torch.eye(6) > 0, -torch.inf))},
}


@pytest.mark.parametrize("name", sample(GUARDED, 3))
def test_masked_values_do_not_reach_the_output_of_the_exported_file(name: str, tmp_path: Path) -> None:
    query, key, value = made(0, (2, 6, 4), (2, 6, 4), (2, 6, 3))
    module = Call(**GUARDED[name]).eval()
    path = export(module, (query, key, value), tmp_path / "model.onnx")
    clean = run(path, (query, key, value))
    key[:, 5], value[:, 5, 0] = torch.nan, torch.inf
    got = run(path, (query, key, value))
    reads = ~np.eye(6, dtype=bool)[5] if name == "bias" else {"causal": [0] * 5 + [1], "pairs": [0] * 6}[name]
    reads = np.asarray(reads, bool)
    np.testing.assert_array_equal(got[:, ~reads], clean[:, ~reads])
    assert np.isnan(got[:, reads]).all()


# -- which kernels an exported program holds ------------------------------------------------------------

PORTABLE = {
    "causal": {"mask": masks.Causal(align="start")},
    "window": {"mask": masks.Window(300, 0), "positions": qkv.Positions(align="start")},
    "softcap": {"score": scores.Softcap(scores.ScaledDot(), 2.0)},
    "sparsemax": {"normalizer": normalizers.Sparsemax()},
}


@pytest.mark.parametrize("name", sample(PORTABLE, 2))
def test_while_exporting_only_the_dense_kernel_and_pytorchs_own_attention_are_chosen(name: str) -> None:
    # As long as this, the tiled and The row-block kernel are chosen where nothing is exported.
    x = torch.randn(1, 4, 1024, 16)
    options = PORTABLE[name]
    program = torch.export.export(Call(**options), (x, x, x), strict=False)
    graphs = [part.graph for part in program.graph_module.modules() if hasattr(part, "graph")]
    called = [node.target for graph in graphs for node in graph.nodes if node.op == "call_function"]
    targets = {str(target) for target in called if isinstance(target, torch._ops.OpOverload)}
    assert {target.split(".")[0] for target in targets} == {"aten"}
    assert not any("_flash_attention_for_cpu" in target for target in targets)
    assert ("aten.scaled_dot_product_attention.default" in targets) == (name == "causal")
    assert qkv.explain(x, x, x, **options).kernel.name != "dense"
    small = torch.randn(1, 4, 1024, 16)
    torch.testing.assert_close(program.module()(small, small, small), qkv.attend(small, small, small, **options))


@pytest.mark.parametrize("name", sample(["causal", "sparsemax"], 2))
def test_a_program_of_dynamic_lengths_gives_the_same_for_others(name: str) -> None:
    module = Call(**PORTABLE[name])
    inputs = made(0, (2, 3, 5, 8), (2, 1, 7, 8), (2, 3, 7, 6))
    shapes = ({0: D, 2: D}, {0: D, 2: D}, {0: D, 2: D})
    program = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False).module()
    for given in (inputs, made(1, (4, 3, 9, 8), (4, 1, 6, 8), (4, 3, 6, 6))):
        torch.testing.assert_close(program(*given), module(*given))


def test_a_kernel_that_plans_by_lengths_is_refused_where_they_are_not_known() -> None:
    x = torch.randn(2, 5, 4)
    with pytest.raises(RefusedError, match="while exporting with dynamic shapes"):
        torch.export.export(Call(kernel="tiled"), (x, x, x), dynamic_shapes=({1: D},) * 3, strict=False)


# -- the file -------------------------------------------------------------------------------------------


def test_a_failure_leaves_the_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    x = torch.randn(2, 5, 4)

    def half(self: Any, destination: Any, **_: Any) -> None:
        Path(destination).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.onnx.ONNXProgram, "save", half)
    with pytest.raises(DataError, match="No space left"):
        export(Call().eval(), (x, x, x), path)
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["model.onnx"]


def test_a_folder_that_is_not_there_is_an_error_that_names_the_path(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 4)
    with pytest.raises(DataError, match=r"nowhere/model\.onnx"):
        export(Call().eval(), (x, x, x), tmp_path / "nowhere" / "model.onnx")


def test_modules_that_cannot_be_exported_are_refused(tmp_path: Path) -> None:
    x, path = torch.randn(2, 5, 16), tmp_path / "model.onnx"
    with pytest.raises(OptionError, match="eval"):
        export(nn.MultiHeadAttention(16, 4), (x,), path)
    with pytest.raises(OptionError, match="opset must be 23, 24 or 25"):
        export(nn.MultiHeadAttention(16, 4).eval(), (x,), path, opset=22)
    with pytest.raises(KindError, match="tuple"):
        export(nn.MultiHeadAttention(16, 4).eval(), x, path)
    with pytest.raises(KindError, match="function"):
        export(qkv.attend, (x, x, x), path)
    assert not path.exists()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingPackageError, match=r"onnxscript.*qkv\[torch,onnx\]"):
        export(Call().eval(), (torch.zeros(1, 1, 1),) * 3, tmp_path / "model.onnx")


def test_exporting_leaves_the_planner_as_it_was(tmp_path: Path) -> None:
    from qkv.torch_bridge.export import EXPORT_KERNEL

    x = torch.randn(2, 5, 4)

    class Broken(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        export(Broken().eval(), (x,), tmp_path / "model.onnx")
    assert EXPORT_KERNEL.get() is None
