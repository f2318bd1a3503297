"""Check a release: `python -m tests.release lowest newest` builds it, checks its files, and runs its examples.

Builds the source distribution, and from it the wheel, compares their files with `release_contents.txt` and with the
files of `src/qkv` that git tracks, installs the wheel without extras and with `ask` and `look` in fresh environments,
with the lowest and the newest versions that the metadata of the wheel allow, and runs the first example of each face
there, in a folder without the repository. `--python` may be given several times. With `--torch`, PyTorch of
`constraints.txt` is installed for the first Python, and the examples of the README run as the wheel holds them.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from tests.versions import _LOWEST_PYTHON, ROOT, _run, _version, torch_version

CONTENTS = Path(__file__).with_name("release_contents.txt")
FACES = ("## Ask a table", "## Build and train models", "## Look at attention")

BASE = """
import numpy as np, qkv
x = np.arange(12.0).reshape(4, 3)
result = qkv.observe(x, x, x, mask=qkv.masks.Causal(), readouts=[qkv.readouts.TopWeights(2)])
assert np.array_equal(result.output, qkv.attend(x, x, x, mask=qkv.masks.Causal()))
print("build:", result.output.shape, qkv.explain(x, x, x).kernel.name)
"""
ASK = """
import qkv
people = qkv.Database.open("examples/people.csv", key="name", value="income")
answer = people.ask("Jon Smiht")
assert answer.rows[0].record["name"] == "John Smith" and round(answer.value) == 48200, answer
print("ask:", str(answer).splitlines()[0])
"""
LOOK = """
import numpy as np, pathlib
from qkv import look
look.heatmaps(np.full((1, 2, 4, 4), 0.25)).savefig("weights.png")
assert pathlib.Path("weights.png").stat().st_size > 1000 and pathlib.Path("answer.png").stat().st_size > 1000
print("look:", pathlib.Path("weights.png").stat().st_size, "bytes")
"""
README = """
import doctest, importlib.metadata, re, sys
text, faces = importlib.metadata.metadata("qkv").get_payload(), sys.argv[1:]
blocks = [re.search(r"```python\\n(.*?)```", text[text.index(face):], re.DOTALL)[1] for face in faces]
parsed = doctest.DocTestParser().get_doctest("\\n".join(blocks), {}, "README", None, 0)
runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
failed, tried = runner.run(parsed)
print("README:", tried, "examples")
sys.exit(failed > 0)
"""


def patterns(section: str) -> list[str]:
    """Return the patterns of a section of the list of contents."""
    text = CONTENTS.read_text(encoding="utf-8")
    lines = text.partition(f"[{section}]\n")[2].partition("\n[")[0].splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def matches(name: str, pattern: str) -> bool:
    """Return whether a path matches a pattern, in which * matches one name or a part of it, and ** any folders."""
    expression = re.escape(pattern).replace(r"\*\*/", "(.+/)?").replace(r"\*\*", ".+").replace(r"\*", "[^/]*")
    return re.fullmatch(expression, name) is not None


def difference(section: str, names: Iterable[str], needed: Iterable[str]) -> list[str]:
    """Return one sentence for each file that is not in the list, each pattern without a file, and each missing file."""
    names, listed = set(names), patterns(section)
    problems = [f"{name} matches no pattern" for name in names if not any(matches(name, each) for each in listed)]
    problems += [f"no file matches {each}" for each in listed if not any(matches(name, each) for name in names)]
    problems += [f"{name} is missing" for name in set(needed) - names]
    return [f"{section}: {problem}" for problem in sorted(problems)]


def build(folder: Path) -> tuple[Path, Path]:
    """Build the source distribution and, from it, the wheel, and return their paths."""
    _run([sys.executable, "-m", "uv", "build", "--quiet", "--out-dir", str(folder), str(ROOT)])
    [sdist], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def check_contents(sdist: Path, wheel: Path) -> list[str]:
    """Return the differences between the files of a release and those that it should have."""
    tracked = _run(["git", "ls-files", "src/qkv"], show=False).split()
    with tarfile.open(sdist) as archive:
        sources = [entry.name.partition("/")[2] for entry in archive.getmembers() if entry.isfile()]
    with zipfile.ZipFile(wheel) as files:
        installed = [name for name in files.namelist() if not name.endswith("/")]
    print(f"{sdist.name}: {len(sources)} files, {wheel.name}: {len(installed)} files", flush=True)
    problems = difference("sdist", sources, tracked)
    return problems + difference("wheel", installed, [name.removeprefix("src/") for name in tracked])


def check_examples(which: str, python: str, wheel: Path, folder: Path, *, torch: bool) -> None:
    """Install a wheel in fresh environments and run the first example of each face in a folder without the repository.

    Raises:
        subprocess.CalledProcessError: an installation or an example fails.
    """
    place = folder / "examples"
    place.mkdir(parents=True)
    for name in ("people.csv", "gpa.csv"):
        (place / name).write_bytes((ROOT / "examples" / name).read_bytes())
    base = _environment(which, python, wheel, "", folder / "base")
    _example([base, "-c", BASE], folder)
    full = _environment(which, python, wheel, "[ask,look]", folder / "full")
    command = str(Path(full).with_name("qkv"))
    _example([full, "-c", ASK], folder)
    _example([full, "-c", BASE], folder)
    words = "ask examples/gpa.csv --key gpa --value starting_salary 3.5 --plot answer.png --top 1"
    _example([command, *words.split()], folder)
    _example([full, "-c", LOOK], folder)
    _example([command, "--version"], folder)
    if torch:
        _run([full, "-m", "ensurepip"])
        _run([full, "-m", "pip", "install", "-q", torch_version()])
        _example([full, "-c", README, *FACES], folder)


def _environment(which: str, python: str, wheel: Path, extras: str, place: Path) -> str:
    """Install a wheel in a fresh environment, as its metadata say, and return the Python of the environment."""
    _run([sys.executable, "-m", "uv", "venv", "--quiet", "--python", python, str(place)])
    inside = str(place / "bin" / "python")
    resolution = "lowest-direct" if which == "lowest" else "highest"
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", inside, "--resolution", resolution]
    _run([*command, "--only-binary", ":all:", f"qkv{extras} @ {wheel.as_uri()}"])
    return inside


def _example(command: list[str], folder: Path) -> None:
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "QKV_", "VIRTUAL"))}
    settings |= {"QKV_CACHE": str(folder / "cache"), "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=folder, env=settings, check=True)


def main() -> int:
    """Check a release, and return 0 if it has the listed files and every example runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", default=["lowest", "newest"], choices=["lowest", "newest"])
    parser.add_argument("--python", action="append", help="a Python to make the environments with")
    parser.add_argument(
        "--torch", action="store_true", help="run the examples of the README, too, with PyTorch for the first Python"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        sdist, wheel = build(Path(name) / "dist")
        problems = check_contents(sdist, wheel)
        if problems:
            print(*problems, sep="\n", file=sys.stderr)
            return 1
        pythons = options.python or [sys.executable]
        for python in pythons:
            for which in options.which:
                version = _version(python)
                if which == "lowest" and version != _LOWEST_PYTHON:
                    continue  # many of the lowest versions have no wheels for later Pythons
                print(f"== {which} versions, Python {version}", flush=True)
                place = Path(name) / f"{which}-{version}"
                check_examples(
                    which, python, wheel, place, torch=options.torch and which == "newest" and python == pythons[0]
                )
    print("The release has the listed files, and every example ran.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
