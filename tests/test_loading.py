"""Lazy imports: a process that queries a table loads no module that only PyTorch's kernels need."""

from pathlib import Path

import numpy as np
import pytest

from tests.processes import run_python

PEOPLE = Path(__file__).parent.parent / "examples" / "people.csv"
APART = (
    "qkv.kernels.tiled.attention",
    "qkv.kernels.tiled.softmax",
    "qkv.kernels.fused.sdpa",
    "qkv.kernels.row_blocks.rows",
)
HEAVY = {"torch", "jax", "matplotlib", "numpy.f2py", "array_api_compat"}
if getattr(np, "__array_api_version__", "") < "2024.12":  # then functions of the standard are taken from the package
    HEAVY -= {"numpy.f2py", "array_api_compat"}


def loaded(code: str) -> set[str]:
    """Return the names of the modules that are loaded in a new process after it ran this code."""
    printed = run_python("-c", f"{code}\nimport sys\nprint('\\n', *sys.modules)")
    return set(printed.splitlines()[-1].split())


CALL = """
import numpy, qkv
x = numpy.ones((3, 2))
print(qkv.explain(x, x, x))
qkv.attend(x, x, x, kernel='numpy_blocks')
qkv.attend(x, x, x, kernel='dense')
"""
ASK = f"""
from qkv.cli.main import run
assert run(["ask", {str(PEOPLE)!r}, "--key", "name", "--value", "income", "Jon Smiht"]) == 0
"""
OPERATOR = """
import numpy, qkv.interop.huggingface
from qkv.interop.onnx import attention
x = numpy.ones((1, 1, 2, 4))
attention(x, x, x, qk_matmul_output_mode=3)
"""


@pytest.mark.parametrize(
    ("code", "needed", "others"),
    [
        (CALL, {"qkv.kernels.numpy_blocks.kernel"}, {*APART, *HEAVY, "pandas"}),
        (ASK, {"qkv.kernels.numpy_blocks.kernel", "qkv.database.answer"}, {*APART, *HEAVY}),
        (OPERATOR, {"qkv.interop.onnx"}, {"torch", "jax", "keras", "onnx", "transformers"}),
    ],
    ids=["a call of NumPy", "a question to a table", "the operator of ONNX"],
)
def test_a_process_loads_what_its_calls_need_and_no_other_library(code, needed, others):
    names = loaded(code)
    assert needed <= names
    assert not names & others


def test_importing_qkv_loads_neither_numpy_nor_a_part_of_its_own():
    names = loaded("import qkv")
    assert not {name for name in names if name.startswith(("numpy", "qkv."))}
    assert not names & {*HEAVY, "sklearn", "pandas", "polars", "duckdb", "pyarrow", "rich", "typer"}


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("stable", [False, True])
def test_sorting_in_numpy_agrees_with_array_api_compat(descending, stable):
    package = pytest.importorskip("array_api_compat.numpy")
    from qkv.core.arrays import argsort

    x = np.array([[2.0, np.nan, 1.0, 2.0, -np.inf], [0.0, 0.0, -0.0, 5.0, np.inf]])
    for axis in (0, 1, -1):
        ours = argsort(x, axis=axis, descending=descending, stable=stable)
        assert np.array_equal(ours, package.argsort(x, axis=axis, descending=descending, stable=stable))


def test_functions_taken_from_numpy_agree_with_array_api_compat():
    package = pytest.importorskip("array_api_compat.numpy")
    from qkv.core.arrays import OWN, STANDARD, NumPyFunctions

    if getattr(np, "__array_api_version__", "") < STANDARD:
        pytest.skip("this NumPy states an earlier standard: everything is taken from the package")
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    ask = {
        "arange": lambda xp: xp.arange(1, 9, 2, dtype=xp.int32),
        "asarray": lambda xp: xp.asarray([1.0, 2.0], dtype=xp.float32),
        "astype": lambda xp: xp.astype(x, xp.int64),
        "cumulative_sum": lambda xp: xp.cumulative_sum(x, axis=1, include_initial=True),
        "full": lambda xp: xp.full((2, 2), 3.0, dtype=xp.float64),
        "full_like": lambda xp: xp.full_like(x, 3.0),
        "matmul": lambda xp: xp.matmul(x, x.T),
        "matrix_transpose": lambda xp: xp.matrix_transpose(x[None]),
        "ones": lambda xp: xp.ones((2, 2), dtype=xp.float32),
        "ones_like": lambda xp: xp.ones_like(x),
        "permute_dims": lambda xp: xp.permute_dims(x[None], (2, 0, 1)),
        "take_along_axis": lambda xp: xp.take_along_axis(x, xp.argsort(-x, axis=-1)),
        "zeros": lambda xp: xp.zeros((2, 2), dtype=xp.float32),
        "zeros_like": lambda xp: xp.zeros_like(x, dtype=xp.int64),
    }
    own = NumPyFunctions()
    for name in sorted(OWN):
        if name not in ask:
            assert getattr(package, name) is getattr(np, name), name
            continue
        one, other = ask[name](own), ask[name](package)
        assert one.dtype == other.dtype, name
        assert np.array_equal(one, other), name
