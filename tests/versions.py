"""Run the tests with the lowest and the newest versions of the packages that `pyproject.toml` allows, from the wheel.

`python -m tests.versions lowest [pytest arguments]` builds the wheel, makes an environment in a temporary folder,
installs the lowest versions of all direct requirements (or the newest, with `newest`) and runs the tests against the
installed wheel. JAX needs NumPy 2, so `numpy1` installs the lowest versions without JAX and what else needs NumPy 2:
this is how the lowest NumPy is tested, and with it the lowest TensorFlow. `make test-versions` runs the two lowest with
Python 3.11, and the newest with each of 3.11 to 3.13. PyTorch is always the version of `constraints.txt`, because other
versions take gigabytes of GPU packages.

`--keep FOLDER` keeps the environment in a folder of its own in that folder: later runs install only the wheel, unless
the list of packages changed. A part of the tests is named at the end, as for pytest:

    python -m tests.versions newest --python python3.12 --keep /tmp/environments -n 1 tests/store

With `--no-torch` PyTorch is not installed, and tests that need it are left out or skipped: a package index may have
no build for CPUs for each Python.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.xla_flags import known_flags

ROOT = Path(__file__).parent.parent
_EXTRAS = ("ask", "look", "jax", "jax-nn", "hf", "onnx", "keras", "search", "stores", "serve")
_PEERS = ("attn-gym", "tokamax", "x-transformers")
_NEED_NUMPY_2 = ("chex", "equinox", "flax", "jax", "onnx", "onnxruntime", "onnxscript")
LEFT_OUT = {"lowest": (*_PEERS, "tensorflow-cpu"), "numpy1": (*_PEERS, *_NEED_NUMPY_2), "newest": ()}
"""Packages that are not installed; tests that fail because one is missing are skipped. No extra needs the peers, which
the tests compare with. The lowest onnx runs only with a TensorFlow that needs a newer Keras than the lowest."""
_MODULES = {"tensorflow-cpu": "tensorflow", "jax": "jax jaxlib"}
_LOWEST_PYTHON = "3.11"
GPU = re.compile(r"(nvidia-|cuda-|triton|torch)")


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
        which: "lowest" for the lowest versions of direct requirements and the newest of others, "numpy1" for the
            same without packages that need NumPy 2, or "newest".
        python: version of Python, such as "3.11".
        folder: folder for the files.
    """
    wanted, pinned, listed = folder / "requirements.in", folder / "torch.txt", folder / f"{which}.txt"
    chosen = [entry for entry in requirements() if re.split(r"[^\w-]", entry)[0] not in LEFT_OUT[which]]
    wanted.write_text("\n".join(chosen) + "\n")
    pinned.write_text(torch_version() + "\n")
    command = ["uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header", "--python-version", python]
    command += ["--only-binary", ":all:", "--resolution", "highest" if which == "newest" else "lowest-direct"]
    _run([sys.executable, "-m", *command, "--override", str(pinned), "-o", str(listed), str(wanted)])
    lines = listed.read_text().splitlines()
    listed.write_text("".join(f"{line}\n" for line in lines if not GPU.match(line)))
    return listed


def install(which: str, python: str, folder: Path, *, torch: bool = True) -> str:
    """Build the wheel and install it with the chosen versions in an environment, and return the Python of that.

    Args:
        which: "lowest", "numpy1" or "newest".
        python: the Python to make the environment with.
        folder: folder for environments; one that is there already, with the same versions, is used again.
        torch: whether to install PyTorch.
    """
    version = _version(python)
    folder = folder.resolve() / f"{which}-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    listed, installed = resolve(which, version, folder), folder / "installed.txt"
    wanted = listed.read_text() + (torch_version() if torch else "")
    inside = str(folder / "environment" / "bin" / "python")
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--python", inside]
    if not installed.exists() or installed.read_text() != wanted:
        installed.unlink(missing_ok=True)
        _run([python, "-m", "venv", "--clear", str(folder / "environment")])
        _run([*command, "-r", str(listed)])
        if torch:  # by pip, whose settings may name a place with a build for CPUs
            _run([inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", torch_version()])
        installed.write_text(wanted)
    with tempfile.TemporaryDirectory() as name:
        _run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", name, str(ROOT)])
        [wheel] = Path(name).glob("qkv-*.whl")
        _run([*command, "--reinstall", str(wheel)])
    return inside


def main() -> int:
    """Run the tests with the chosen versions, and return their exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=list(LEFT_OUT))
    parser.add_argument("--python", default=sys.executable, help="the Python to make the environment with")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="folder that keeps the environment")
    parser.add_argument("--no-torch", action="store_true", help="leave out PyTorch, and the tests that need it")
    options, arguments = parser.parse_known_args()
    if options.which != "newest" and _version(options.python) != _LOWEST_PYTHON:
        print(f"The lowest versions are tested with Python {_LOWEST_PYTHON} only: many have no wheels for later ones.")
        return 0
    with tempfile.TemporaryDirectory() as name:
        python = install(options.which, options.python, options.keep or Path(name), torch=not options.no_torch)
        command = [python, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-m", "not long"]
        # Old packages warn about their own use of newer ones, which is not an error of this package.
        command += [f"-Wignore::{name}Warning" for name in ("Deprecation", "Future", "PendingDeprecation")]
        command += ["-W", "ignore:os.fork:RuntimeWarning"]  # of JAX
        command += ["-W", "ignore:It looks like:hypothesis.errors.HypothesisWarning", *(arguments or ["tests"])]
        left_out = ["torch"] * options.no_torch + [*LEFT_OUT[options.which]]
        missing = " ".join(_MODULES.get(name, name.replace("-", "_")) for name in left_out)
        if missing:
            command += ["-p", "tests.without_packages"]
        if options.which != "newest":
            command += ["--ignore=tests/peers"]
        settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": "", "QKV_WITHOUT": missing}
        settings["XLA_FLAGS"] = known_flags(python)
        return subprocess.run(command, cwd=ROOT, env=settings, check=False).returncode


def _version(python: str) -> str:
    return _run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], show=False).strip()


def _run(command: list[str], *, show: bool = True) -> str:
    if show:
        print("+", " ".join(command), flush=True)
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
