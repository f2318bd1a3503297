"""Run the tests with the lowest and the newest versions of the packages that `pyproject.toml` allows, from the wheel.

`python -m tests.versions lowest [pytest arguments]` builds the wheel, makes an environment in a temporary folder,
installs the lowest versions of all direct requirements (or the newest, with `newest`) and runs the tests against the
installed wheel. `make test-versions` does both with each Python of 3.11 to 3.13 on the machine. PyTorch is always the
version of `constraints.txt`, because other versions take gigabytes of GPU packages.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
_EXTRAS = ("ask", "look", "jax", "hf", "translate", "onnx", "keras", "flax", "equinox", "sklearn", "search", "lance")
_NEEDS_NEWEST = ("attn-gym", "jupyterlab", "tensorflow-cpu", "tokamax", "x-transformers")
"""Peers and tools of the tests that themselves need newer packages; their tests are left out."""
_LEFT_OUT = ("tests/peers", "tests/look/test_notebook.py")
_GPU = re.compile(r"(nvidia-|cuda-|triton|torch)")


def requirements() -> list[str]:
    """Return the direct requirements of the package, of its extras, and of the tests, as `pyproject.toml` has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    listed = project["dependencies"] + [entry for extra in (*_EXTRAS, "test") for entry in extras[extra]]
    return [entry for entry in dict.fromkeys(listed) if not re.match(r"qkv\[|torch\b", entry)]


def torch_version() -> str:
    """Return the pinned requirement of PyTorch."""
    return next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))


def resolve(which: str, python: str, folder: Path) -> Path:
    """Write the versions to install to a file: all packages, direct or not, except PyTorch and what it needs for GPUs.

    Args:
        which: "lowest" for the lowest versions of direct requirements and the newest of others, or "newest".
        python: version of Python, such as "3.11".
        folder: folder for the files.
    """
    wanted, pinned, listed = folder / "requirements.in", folder / "torch.txt", folder / f"{which}.txt"
    chosen = [entry for entry in requirements() if which == "newest" or not entry.startswith(_NEEDS_NEWEST)]
    wanted.write_text("\n".join(chosen) + "\n")
    pinned.write_text(torch_version() + "\n")
    command = ["uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header", "--python-version", python]
    command += ["--only-binary", ":all:", "--resolution", "lowest-direct" if which == "lowest" else "highest"]
    _run([sys.executable, "-m", *command, "--override", str(pinned), "-o", str(listed), str(wanted)])
    lines = listed.read_text().splitlines()
    listed.write_text("\n".join(line for line in lines if not _GPU.match(line)) + f"\n{torch_version()}\n")
    return listed


def main() -> int:
    """Run the tests with the chosen versions, and return their exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=["lowest", "newest"])
    parser.add_argument("--python", default=sys.executable, help="the Python to make the environment with")
    options, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        version = _run([options.python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], show=False).strip()
        listed = resolve(options.which, version, folder)
        _run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", name, str(ROOT)])
        _run([options.python, "-m", "venv", str(folder / "environment")])
        python = str(folder / "environment" / "bin" / "python")
        [wheel] = folder.glob("qkv-*.whl")
        _run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", str(listed), str(wheel)])
        command = [python, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-m", "not long"]
        # Old packages warn about their own use of newer ones, which is not an error of this package.
        command += ["-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"]
        command += ["-W", "ignore:It looks like:hypothesis.errors.HypothesisWarning", *(arguments or ["tests"])]
        if options.which == "lowest":
            command += [f"--ignore={path}" for path in _LEFT_OUT]
        settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
        return subprocess.run(command, cwd=ROOT, env=settings, check=False).returncode


def _run(command: list[str], *, show: bool = True) -> str:
    if show:
        print("+", " ".join(command), flush=True)
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
