"""`python -m benchmarks.gpu [TOPIC …] [--dry]`: measure on the GPU of this machine, in less than 8 minutes.

Without a GPU it says so and fails. `--dry` needs none: it runs every row on tiny shapes on the CPU, with Triton's
programs in the interpreter, checks the results, measures nothing and saves nothing.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gpu._run import TOPICS, run_topics

RESULTS = Path(__file__).parent.parent / "results" / "gpu"


def main() -> int:
    """Run every topic in a process that is replaced when a topic fails or exceeds its time."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help=f"{', '.join(TOPICS)} (default: all)")
    parser.add_argument("--dry", action="store_true", help="check the results of tiny shapes on the CPU; save nothing")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for results (default: %(default)s)")
    parser.add_argument("--cold", metavar="CALL", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    for name in asked.topics:
        if name not in TOPICS:
            parser.error(f"topics must be among {', '.join(TOPICS)}, got {name!r}.")
    os.environ["TRITON_INTERPRET"] = str(int(asked.dry))  # before the first import of Triton
    import torch

    if not asked.dry and not torch.cuda.is_available():
        print("No GPU: PyTorch finds no CUDA device on this machine, so that nothing was measured.", file=sys.stderr)
        return 1
    device = "cpu" if asked.dry else "cuda"
    if asked.cold:
        from benchmarks.gpu._setting import Setting, prepare_cpu
        from benchmarks.gpu.compiling import cold_seconds

        if asked.dry:
            prepare_cpu()
        print(json.dumps(cold_seconds(Setting(device), asked.cold)))
        return 0
    with tempfile.TemporaryDirectory(prefix="qkv-bench-gpu") as caches:
        os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"] = f"{caches}/inductor", f"{caches}/triton"
        os.environ.setdefault("KEOPS_CACHE_FOLDER", f"{caches}/keops")
        found = run_topics(asked.topics or list(TOPICS), device)
    failed = [name for name, entry in found.items() if entry["error"]]
    if asked.dry:
        print(f"A dry run measures nothing: {f'{len(failed)} topics failed' if failed else 'all results are right'}.")
        return int(bool(failed))
    print(f"saved in {save(found, asked.results)}")
    return int(bool(failed))


def save(found: dict[str, dict[str, Any]], folder: Path) -> Path:
    """Save the rows in a file that is named by the day and the GPU; topics measured earlier that day stay in it."""
    import torch

    from benchmarks._record import _commit, _versions, machine

    properties = torch.cuda.get_device_properties(0)
    gpu = {
        "name": properties.name,
        "memory": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
    }
    today = datetime.date.today().isoformat()
    slug = re.sub(r"[^a-z0-9]+", "-", properties.name.lower()).strip("-")
    path = folder / f"{today}-{slug}.json"
    folder.mkdir(parents=True, exist_ok=True)
    versions = _versions() | {"triton": importlib.import_module("triton").__version__}
    earlier = json.loads(path.read_text())["topics"] if path.exists() else {}
    state = {"commit": _commit(), "versions": versions}
    topics = earlier | {name: entry | state for name, entry in found.items()}
    content = {"gpu": gpu, "machine": machine(), "date": today, "topics": topics}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
