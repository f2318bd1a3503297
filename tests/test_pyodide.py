"""The NumPy faces run in Pyodide under Node, and in a process that lacks what Pyodide lacks.

`make pyodide` fetches Pyodide with NumPy, pyarrow and Matplotlib into `build/pyodide`; `QKV_PYODIDE` names another
folder. No package index has DuckDB for Pyodide, so tables are read without it.
"""

import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = Path(os.environ.get("QKV_PYODIDE", ROOT / "build" / "pyodide"))
PURE = ("array_api_compat", "filelock", "packaging", "platformdirs")
NEEDS_PYODIDE = pytest.mark.skipif(
    not (list(FOLDER.glob("numpy-*wasm32.whl")) and shutil.which("node")),
    reason="make pyodide must have written build/pyodide, and node be installed",
)


def pyodide(code: str, tmp_path: Path, packages: str = "", **mounts: Path) -> str:
    """Return the last value of some Python code, run in Pyodide under Node with folders of this machine."""
    script = tmp_path / "code.py"
    script.write_text(code, encoding="utf-8")
    places = ",".join(f"/host/{name}={path}" for name, path in mounts.items())
    command = ["node", str(ROOT / "tests" / "pyodide.mjs"), str(FOLDER.resolve()), packages, places, str(script)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def first_example() -> str:
    """Return the first Python example of the README, as statements and the value of its last line."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return "\n".join(
        re.findall(r"^(?:>>>|\.\.\.) (.*)$", re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], re.MULTILINE)
    )


def pyodide_with_library(code: str, tmp_path: Path, packages: str) -> str:
    """Return the last value of some Python code, run in Pyodide in the folder of the repository, with the library."""
    mounts = {name: Path(importlib.util.find_spec(name).origin).parent for name in PURE}
    code = "import os, sys\nsys.path += ['/host', '/host/src']\nos.chdir('/host/root')\n" + code
    return pyodide(code, tmp_path, packages, src=ROOT / "src", root=ROOT, **mounts)


@pytest.mark.long
@NEEDS_PYODIDE
def test_the_first_example_of_the_readme_runs_in_pyodide(tmp_path: Path) -> None:
    assert pyodide_with_library(first_example(), tmp_path, "numpy,pyarrow") == "('John Smith', 48200)"


DOCSTRINGS = """
import doctest, importlib, pkgutil
import matplotlib, qkv.plan.budget
matplotlib.use("agg")
qkv.plan.budget.machine_memory = lambda: 2**32
names = "core", "scores", "masks", "normalizers", "readouts", "plan", "database", "look"
parts = tuple(f"qkv.{name}" for name in names)
passed, failed = 0, []
for module in pkgutil.walk_packages(qkv.__path__, "qkv.", onerror=lambda name: None):
    if module.name.startswith(parts):
        try:
            found = doctest.DocTestFinder().find(importlib.import_module(module.name), module.name)
        except ImportError:
            continue
        for test in found:
            text = []
            flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
            doctest.DocTestRunner(optionflags=flags).run(test, out=text.append)
            if text and not any(part in "".join(text) for part in ("No module named", "not installed", "new thread")):
                failed.append(test.name)
            passed += bool(test.examples) and not text
passed, failed
"""


@pytest.mark.long
@NEEDS_PYODIDE
def test_the_examples_of_docstrings_run_in_pyodide_where_integers_have_32_bits(tmp_path: Path) -> None:
    passed, failed = eval(pyodide_with_library(DOCSTRINGS, tmp_path, "numpy,pyarrow,matplotlib"))
    # A message of another reader of JSON, a dtype that is printed, and a store, of which two versions are opened.
    expected = {"core.untrusted_json.parse_json", "core.ordering.RunningTopK", "database.storage.stored.StoredDatabase"}
    assert set(failed) <= {f"qkv.{name}" for name in expected}
    assert passed > 200


@pytest.mark.long
@NEEDS_PYODIDE
def test_strings_are_compared_in_pyodide_as_by_rapidfuzz(tmp_path: Path) -> None:
    rapidfuzz = pytest.importorskip("rapidfuzz")
    draw = random.Random(0)
    texts = ["".join(draw.choices("abcé λ", k=draw.choice([0, 1, 5, 12, 70]))) for _ in range(60)]
    names = ("Levenshtein", "OSA", "JaroWinkler")
    code = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("distances", "/host/scores/string_distances.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
[[module.similarities({texts!r}, {texts!r}, getattr(module, name).normalized_similarity) for name in {names}]]
"""
    [found] = eval(pyodide(code, tmp_path, scores=ROOT / "src" / "qkv" / "scores"))
    for name, matrix in zip(names, found, strict=True):
        scorer = getattr(rapidfuzz.distance, name).normalized_similarity
        assert matrix == pytest.approx(rapidfuzz.process.cdist(texts, texts, scorer=scorer, dtype="float64"), abs=1e-12)


SIMULATED = """
import numpy, pyarrow, duckdb
from tests import pyodide_machine
pyodide_machine.use()
import qkv
x = numpy.arange(12.0).reshape(4, 3)
print(qkv.attend(x, x, x).shape, qkv.observe(x, x, x, readouts=[qkv.readouts.TopWeights(2)]).readouts[0].keys.shape)
print(qkv.explain((8, 4096, 64), (8, 4096, 64), (8, 4096, 64)).kernel.name)
people = qkv.Database.open("examples/people.csv", key="name", value="income")
print(people.ask("Jon Smiht").rows[0].record["name"])
grades = qkv.Database.open("examples/gpa.csv", key="gpa", value="starting_salary")
print(round(grades.ask(3.5).value, -1))
"""
PICTURES = """
import matplotlib
matplotlib.use("agg")
from qkv import look
look.save_query_plot(grades, grades.ask(3.5), sys.argv[1] + "/answer.png")
look.heatmaps(numpy.full((1, 1, 4, 4), 0.25)).savefig(sys.argv[1] + "/weights.png")
"""


def simulate(code: str, tmp_path: Path) -> list[str]:
    settings = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "QKV_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", "import sys\n" + code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_arrays_and_tables_need_no_thread_process_or_package_that_pyodide_lacks(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    assert simulate(SIMULATED, tmp_path) == ["(4, 3) (4, 2)", "numpy_blocks", "John Smith", "73020.0"]


@pytest.mark.long
def test_pictures_need_nothing_that_pyodide_lacks(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    simulate(SIMULATED + PICTURES, tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {"answer.png", "weights.png"}
