"""Results: one file per day and machine, with one entry per claim; a later run replaces an earlier one."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks._claim import Claim, Row

__all__ = ["RESULTS", "latest", "machine", "onednn_gain", "save"]

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = (
    *("numpy", "torch", "scipy", "keras", "pykeops", "entmax", "statsmodels", "scikit-learn", "faiss-cpu"),
    *("pyarrow", "duckdb", "qkv"),
)


def onednn_gain() -> float:
    """Return the speed-up of a tile product by oneDNN over `torch.mm`, on one thread."""
    import torch

    try:
        product = torch.ops.mkldnn._linear_pointwise
        a, b = torch.randn(512, 64), torch.randn(512, 64)
        product(a, b, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return 0.0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = []
    for _ in range(7):
        began = time.process_time()
        for _ in range(20):
            torch.mm(a, b.T)
        middle = time.process_time()
        for _ in range(20):
            product(a, b, None, "none", [], "")
        found.append((middle - began) / (time.process_time() - middle))
    torch.set_num_threads(threads)
    return statistics.median(found)


def machine() -> dict[str, Any]:
    """Return a description of the machine, without its name and its user."""
    name, flags = platform.processor() or platform.machine(), ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", info.read_text(), re.MULTILINE))
        name, flags = found.get("model name", name), found.get("flags", "")
    cores = os.cpu_count() or 1
    words = re.sub(r"\((r|tm|c)\)|\bcpu\b|@.*", " ", name.lower())
    slug = re.sub(r"[^a-z0-9]+", "-", f"{words} {cores} cores").strip("-")
    sets = [kind for kind in ("avx2", "avx512f", "amx_tile") if kind in flags.split()]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"slug": slug, "cpu": name, "cores": cores, "instructions": sets, "memory_gib": round(memory)}


def save(
    name: str, claim: Claim, rows: list[Row], command: str, seconds: float, folder: Path, gain: float = 0.0
) -> Path:
    """Save the rows of a claim in the file of this day and machine; `gain` is `onednn_gain()`."""
    found = machine()
    today = datetime.date.today().isoformat()
    path = folder / f"{today}-{found['slug']}.json"
    held = json.loads(path.read_text()) if path.exists() else {"machine": found, "claims": {}}
    held["machine"]["onednn_gain"] = round(gain, 2)
    held["claims"][name] = {
        "says": claim.says,
        "goal": claim.goal,
        "date": today,
        "command": command,
        "seconds": round(seconds, 1),
        "commit": _commit(),
        "versions": _versions(),
        "rows": [dataclasses.asdict(row) | {"met": row.met} for row in rows],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(held, indent=1, ensure_ascii=False) + "\n")
    return path


def latest(folder: Path = RESULTS) -> dict[str, list[dict[str, Any]]]:
    """Return the latest entry of each claim on each machine, newest first, with the machine."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        held = json.loads(path.read_text())
        for name, entry in held["claims"].items():
            found.setdefault(name, {})[held["machine"]["slug"]] = entry | {"machine": held["machine"]}
    return {
        name: sorted(entries.values(), key=lambda entry: str(entry["date"]), reverse=True)
        for name, entries in found.items()
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()
