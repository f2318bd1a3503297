"""The NumPy faces run in Pyodide, and where it cannot be obtained, in a process that lacks what Pyodide lacks.

`QKV_PYODIDE` names a folder with the files of the npm package `pyodide` (`npm pack pyodide`). For the first example of
the README it must also hold the wheels of numpy, pyarrow, duckdb and what they need, under the names in its
`pyodide-lock.json`, which are in the releases of Pyodide on GitHub; neither PyPI nor npm had them on 2026-11-23.
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
FOLDER = os.environ.get("QKV_PYODIDE", "")
PURE = ("array_api_compat", "filelock", "packaging", "platformdirs")
NEEDS_PYODIDE = pytest.mark.skipif(
    not (FOLDER and shutil.which("node")),
    reason="QKV_PYODIDE must name a folder with pyodide.mjs, and node be installed",
)
WHEELS = list(Path(FOLDER).glob("numpy-*wasm32.whl")) if FOLDER else []


def pyodide(code: str, tmp_path: Path, packages: str = "", **mounts: Path) -> str:
    """Return the last value of some Python code, run in Pyodide under Node with folders of this machine."""
    script = tmp_path / "code.py"
    script.write_text(code, encoding="utf-8")
    places = ",".join(f"/host/{name}={path}" for name, path in mounts.items())
    command = ["node", str(ROOT / "tests" / "pyodide.mjs"), str(Path(FOLDER).resolve()), packages, places, str(script)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def first_example() -> str:
    """Return the first Python example of the README, as statements and the value of its last line."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return "\n".join(
        re.findall(r"^(?:>>>|\.\.\.) (.*)$", re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], re.MULTILINE)
    )


@NEEDS_PYODIDE
@pytest.mark.skipif(bool(FOLDER) and not WHEELS, reason=f"{FOLDER} has no wheel of numpy for Pyodide")
def test_the_first_example_of_the_readme_runs_in_pyodide(tmp_path: Path) -> None:
    mounts = {name: Path(importlib.util.find_spec(name).origin).parent for name in PURE}
    code = "import os, sys\nsys.path += ['/host', '/host/src']\nos.chdir('/host/root')\n" + first_example()
    packages = "numpy,pyarrow,duckdb"
    printed = pyodide(code, tmp_path, packages, src=ROOT / "src", root=ROOT, **mounts)
    assert printed == "('John Smith', 48200)"


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
