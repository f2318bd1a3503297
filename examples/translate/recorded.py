"""`python -m examples.translate.recorded PAIRS FOLDER`: run all experiments of docs/evidence/translation.md.

Each run consists of two commands, `train` and `evaluate`, in separate processes. The same command line resumes
an interrupted experiment and skips finished ones.
"""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from examples.translate import files

__all__ = ["RACE", "RESULTS", "RUNS"]

RESULTS = Path(__file__).parent / "results"

_LONG = "--steps 4000 --batch-tokens 1600 --rate 0.0015 --warm-up 300"
_SHORT = "--width 128 --dropout 0 --steps 1500 --batch-tokens 1600 --rate 0.002 --warm-up 150"
RUNS = {
    "gru-additive": f"--score additive {_LONG}",
    "gru-none": f"--score none {_LONG}",
    "transformer": "--model transformer --score scaled-dot --layers 2 --dropout 0 --steps 3000 "
    "--batch-tokens 1600 --rate 0.001 --warm-up 400",
    "short-additive": f"--score additive {_SHORT}",
    "short-scaled-dot": f"--score scaled-dot {_SHORT}",
    "short-bilinear": f"--score bilinear {_SHORT}",
    "short-gated": f"--score gated {_SHORT}",
    "short-gaussian": f"--score gaussian {_SHORT}",
}
"""Options of `train` for each run; all others have the defaults of `Options`."""
RACE = "race"
"""Name of the experiment that runs `racing.race` with the options of the short runs."""


def main() -> int:
    """Run the experiments that are not finished yet."""
    parser = argparse.ArgumentParser(prog="python -m examples.translate.recorded", description=__doc__)
    parser.add_argument("pairs", type=Path, metavar="PAIRS", help="the file of sentence pairs")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder for checkpoints; may be deleted afterwards")
    parser.add_argument(
        "--only", nargs="+", choices=[*RUNS, RACE], default=[*RUNS, RACE], metavar="RUN", help="run only these"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="default: results")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    asked.results.mkdir(parents=True, exist_ok=True)
    for name in asked.only:
        kept = asked.results / f"{name}.json"
        if kept.exists():
            print(f"{name}: already finished, see {kept.name}", flush=True)
            continue
        if name == RACE:
            _race(asked.pairs, asked.folder / name, kept)
        elif code := _run(name, asked.pairs, asked.folder / name, kept):
            return code
    return 0


def _run(name: str, pairs: Path, folder: Path, kept: Path) -> int:
    measured, said = folder / "measured.json", folder / "said.tsv"
    for words in (
        ["train", str(pairs), "--out", str(folder), *RUNS[name].split()],
        ["evaluate", str(folder), "--json", str(measured), "--said", str(said)],
    ):
        print(f"{name}: {words[0]}", flush=True)
        done = subprocess.run([sys.executable, "-m", "examples.translate", *words])
        if done.returncode:
            return done.returncode
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    result = _facts(name) | {
        "command": f"python -m examples.translate train fra.txt.gz --out {name} {RUNS[name]}",
        "options": json.loads((folder / "options.json").read_text())["options"],
        "training": log[-1],
        "watched": [[each["step"], round(each["watched_loss"], 4)] for each in log if "watched_loss" in each],
        "measured": json.loads(measured.read_text()),
    }
    files.write_json(kept, result)
    return 0


def _race(pairs: Path, folder: Path, kept: Path) -> None:
    import torch

    from examples.translate.__main__ import options_of
    from examples.translate.racing import race

    torch.set_num_threads(1)
    print(f"{RACE}: measuring the time of a step for all scores in alternation", flush=True)
    options = options_of(_SHORT.split())
    files.write_json(kept, _facts(RACE) | {"options": vars(options), "race": race(pairs, folder, options)})


def _facts(name: str) -> dict[str, Any]:
    packages = {each: version(each) for each in ("torch", "tokenizers", "sacrebleu")}
    today = datetime.date.today().isoformat()
    return {"run": name, "date": today, "machine": _machine(), "versions": packages}


def _machine() -> dict[str, Any]:
    """Describe the machine without naming it or its user."""
    info = Path("/proc/cpuinfo")
    found = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", info.read_text(), re.MULTILINE)) if info.exists() else {}
    sets = [one for one in ("avx2", "avx512f", "amx_tile") if one in found.get("flags", "").split()]
    cpu = found.get("model name", platform.machine())
    return {"cpu": cpu, "cores": os.cpu_count(), "instructions": sets, "threads": 1}


if __name__ == "__main__":
    sys.exit(main())
