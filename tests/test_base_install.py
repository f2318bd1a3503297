"""The base install: NumPy and array-api-compat run every verb, and errors name the extra that another feature needs."""

import subprocess
import sys

import pytest

WITHOUT = """
import sys
from importlib.machinery import PathFinder

ABSENT = {"pyarrow", "duckdb", "rapidfuzz", "filelock", "typer", "rich", "torch", "jax", "tensorflow", "keras", "scipy"}
ABSENT |= {"platformdirs", "sklearn", "pandas", "polars", "matplotlib"}

class Without:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.split(".")[0] in ABSENT else PathFinder.find_spec(name, path, target)

sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
import numpy as np
import qkv
"""
X = "np.arange(12.0).reshape(4, 3)"


def without(code: str) -> str:
    """Return the output of a process in which only NumPy and array-api-compat can be imported."""
    done = subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_verb_runs_with_numpy_alone() -> None:
    code = f"""
x = {X}
plan = qkv.explain(x, x, x)
seen = qkv.observe(x, x, x, readouts=[qkv.readouts.TopWeights(2)], mask=qkv.masks.Causal())
run = qkv.prepare(qkv.Spec(), (x.shape,) * 3, dtype="float64")
print(qkv.attend(x, x, x).shape, seen.output.shape, run(x, x, x).output.shape, plan.kernel.name)
print(qkv.attend(np.array(["a"]), np.array(["a", "b"]), x[:2], score=qkv.scores.Exact()).tolist())
"""
    assert without(code).splitlines() == ["(4, 3) (4, 3) (4, 3) dense", "[[0.0, 1.0, 2.0]]"]


@pytest.mark.parametrize(
    "call",
    [
        "qkv.Database",
        "qkv.scores.JaroWinkler()",
        "qkv.scores.Spelling()",
        "__import__('qkv.store')",
        "__import__('qkv.search').search.Index",
        "__import__('qkv.join').join.SoftJoin",
    ],
)
def test_what_needs_the_extra_ask_names_it_in_one_sentence(call: str) -> None:
    code = f"""
try:
    {call}
    print("no error")
except qkv.errors.MissingPackageError as error:
    print(error)
"""
    said = without(code)
    assert 'Run: pip install "qkv[' in said
    assert "(in a clone: pip install -c constraints.txt -e" in said
    assert "\n" not in said
