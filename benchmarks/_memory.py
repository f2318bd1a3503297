"""Peak memory of one call in a new process: the increase of VmHWM, after a small warm-up."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Peak", "in_fresh_process", "peak", "status"]

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Peak:
    """Memory of the process, in bytes.

    Attributes:
        growth: increase of the peak since the start; it excludes the inputs and includes output and gradients.
        gradients: bytes of all gradients.
        output: bytes of the output.
        planned: peak memory beyond inputs according to the plan; 0 for peers.
        kernel: name of the kernel that qkv chose.
        plan: text of the plan.
        seconds: CPU time of the call.
        errors: differences from the float64 oracle, if requested.
    """

    growth: int
    gradients: int
    output: int
    planned: float
    kernel: str
    plan: str
    seconds: float
    errors: dict[str, float]


def peak(
    call: str,
    shape: Any,
    *,
    gradient: bool = False,
    library: str = "torch",
    who: str = "qkv",
    kernel: str | None = None,
    memory: str = "512 MiB",
    check: bool = False,
) -> Peak:
    """Run a call once in a new process.

    Args:
        call: a name of `_calls.CALLS`.
        shape: shapes of query, key and value.
        gradient: whether to run the backward pass too.
        library: "torch" or "numpy".
        who: "qkv", or a function of `_peers`.
        kernel: name of a fixed kernel; None: the planner chooses.
        memory: memory limit of the call.
        check: whether to compare some queries with the float64 oracle after the peak was read.
    """
    asked = dict(locals())  # the arguments
    return Peak(**in_fresh_process("benchmarks._memory", asked))


def in_fresh_process(module: str, asked: Any) -> Any:
    """Run a module with one thread and JSON arguments, and return the JSON that it prints last."""
    done = subprocess.run(
        [sys.executable, "-m", module, json.dumps(asked)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise RuntimeError(f"{asked}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def status(field: str) -> int:
    """Return a memory figure of this process in bytes, such as VmHWM, from /proc."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def _measure(asked: dict[str, Any]) -> dict[str, Any]:
    import torch

    from benchmarks import _calls, _peers
    from benchmarks._race import cpu_seconds

    torch.set_num_threads(1)
    who, kernel, check = asked["who"], asked["kernel"], asked["check"]
    options = {name: asked[name] for name in ("gradient", "library", "memory")}

    def step(shape: Any) -> tuple[Any, Any]:
        call = _calls.make(asked["call"], tuple(tuple(x) for x in shape), **options)
        return call, (lambda: call.run(kernel)) if who == "qkv" else getattr(_peers, who)(call)

    # A first call, so that lazy imports, the thread pool and microbenchmarks do not count.
    # It is small, so that the heap that it leaves behind does not hide later growth.
    for _ in range(2):
        step([(*x[:-2], min(x[-2], 16), x[-1]) for x in asked["shape"]])[1]()
    call, run = step(asked["shape"])
    rows = slice(0, 4)
    if check and call.towards is not None:
        call.towards[..., rows.stop :, :] = 0
    plan = None
    if who == "qkv":
        import qkv

        plan = qkv.explain(call.query, call.key, call.value, **call.options, kernel=kernel)
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here, not with the inputs
        before = status("VmRSS")
    except OSError:
        before = status("VmHWM")
    began = cpu_seconds()
    result = run()
    seconds = cpu_seconds() - began
    return {
        "growth": status("VmHWM") - before,
        "gradients": call.gradient_bytes,
        "output": result[0].nbytes,
        "planned": plan.cost.peak if plan else 0,
        "kernel": plan.kernel.name if plan else "",
        "plan": str(plan) if plan else "",
        "seconds": seconds,
        "errors": call.compare(result, rows) if check else {},
    }


if __name__ == "__main__":
    print(json.dumps(_measure(json.loads(sys.argv[1]))))
