"""The command without the packages of its extra."""

import subprocess
import sys

import pytest

from .conftest import EXAMPLES, ROOT

BLOCKED = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {blocked!r}:
            return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
from qkv.cli.main import main
main()
"""
ASK = ("ask", "people.csv", "--key", "name", "--value", "income", "Jon")


def run_without(blocked, *arguments):
    code = BLOCKED.format(blocked=blocked)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=EXAMPLES,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )


@pytest.mark.parametrize(
    ("blocked", "arguments"),
    [
        (["typer"], ["--help"]),
        (["rich"], ["--help"]),
        (["typer", "rich"], ASK),
        (["duckdb", "pyarrow", "rapidfuzz"], ASK),
    ],
    ids=["typer", "rich", "both", "database"],
)
def test_a_missing_package_is_one_sentence_that_names_the_extra(blocked, arguments):
    done = run_without(blocked, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("qkv: ")
    assert 'pip install "qkv[ask]"' in done.stderr
    assert 'pip install -c constraints.txt -e ".[ask]"' in done.stderr
    assert done.stderr.count("\n") == 1


def test_plots_of_weights_need_no_package_of_a_database():
    code = BLOCKED.format(blocked=["duckdb", "pyarrow", "rapidfuzz", "typer", "rich"]).replace(
        "from qkv.cli.main import main\nmain()",
        "import numpy as np\nfrom qkv import look\nprint(look.rollout(np.eye(2)[None, None]).tolist())",
    )
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, encoding="utf-8", timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "[[1.0, 0.0], [0.0, 1.0]]\n"), done.stderr
