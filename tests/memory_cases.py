"""Measure the peak memory of calls, each in a process forked after the imports: `python -m tests.memory_cases JSON`.

The JSON is a list of cases: the name of a function below, arguments of a small call, which imports and compiles what is
needed, and those of the call that is measured. For each case a line is printed: the growth of VmHWM in bytes after the
inputs exist, and what the function states about the call.
"""

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import qkv
import qkv.kernels
from qkv import masks, normalizers, readouts, scores

Step = Callable[[], Any]
"""A call of which the inputs exist."""


def made(*shape: int, gradient: bool = True) -> torch.Tensor:
    return torch.randn(shape, requires_grad=gradient)


def planned(plan: Any) -> dict[str, Any]:
    return {"kernel": plan.kernel.name, "planned": plan.cost.peak}


def attention(n: int, score: str, gradient: bool, normalizer: str, width: int) -> Step:
    """One call on the kernel that the planner chooses."""
    weights = [made(*shape, gradient=gradient) for shape in ((64, width), (64, width), (64,), (64,))]
    options: dict[str, Any] = {"score": scores.Additive(*weights) if score == "additive" else scores.ScaledDot()}
    options["normalizer"] = eval(normalizer, vars(normalizers))
    sides = [made(n, width, gradient=gradient) for _ in range(3)]

    def step() -> dict[str, Any]:
        seen = qkv.observe(*sides, **options)
        if gradient:
            seen.output.sum().backward()
        return planned(seen.plan)

    return step


def maps(n: int, gradient: bool) -> Step:
    """Maps and received mass on the tiled kernel."""
    sides = [made(n, 8, gradient=gradient) for _ in range(3)]
    wanted = [readouts.PooledMap(512), readouts.PooledMap(512, "max"), readouts.ColumnSum(), readouts.MeanDistance()]

    def step() -> dict[str, Any]:
        seen = qkv.observe(*sides, readouts=wanted, kernel="tiled")
        if gradient:
            sum(x.square().sum() for x in seen.readouts).backward()
        return planned(seen.plan)

    return step


def fused(n: int, code: str) -> Step:
    """Forward and backward of an expression, of which `attend` runs on the fused kernel."""

    def attend(*sides: torch.Tensor, **options: Any) -> Any:
        return qkv.attend(*sides, kernel="fused", **options)

    keys = masks.AllowedKeys(torch.arange(n) % 3 > 0)
    names = {"attend": attend, "made": made, "n": n, "keys": keys, "masks": masks, "scores": scores, "torch": torch}
    return lambda: eval(code, names).sum().backward()


def mapped(n: int, kernel: str | None) -> Step:
    """The gradient of four calls under `vmap`, with a limit of memory."""
    options: dict[str, Any] = {"score": scores.Gaussian(1.0), "kernel": kernel, "memory": "16 MiB"}
    rows = made(4, n, 8, gradient=False)
    gradient = torch.func.grad(lambda x: qkv.attend(x, x, x, **options).sum())

    def step() -> None:
        torch.func.vmap(gradient)(rows)

    return step


def units(n: int) -> Step:
    """Logits and gradients of an additive score with 32 hidden units, tile by tile."""
    from qkv.kernels.runtime.workspace import Workspace
    from qkv.kernels.tiled.logits.additive import prepare_units

    sides = [made(n, 32, gradient=False), made(n, 32, gradient=False), made(32, gradient=False)]
    to = tuple(torch.zeros_like(x) for x in sides)

    def step() -> None:
        prepared, workspace = prepare_units(*sides), Workspace()
        for i in range(0, n, 512):
            for j in range(0, n, 512):
                rows, keys = (i, min(i + 512, n)), (j, min(j + 512, n))
                tile = torch.zeros(rows[1] - i, keys[1] - j)
                for each in prepared.terms:
                    each.add_logits(rows, keys, tile, workspace)
                    each.add_gradient(rows, keys, tile, *to, workspace)

    return step


def tiled_map(n: int) -> Step:
    """The map of a long text."""
    from qkv.look.tiled_map import TiledMap

    rows = made(n, 64, gradient=False)
    needs = TiledMap.required_bytes(n, n, 64)
    return lambda: {"needs": needs, "most": float(TiledMap.from_arrays(rows, rows).max_overview.max())}


def peak() -> int:
    return next(int(x.split()[1]) for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x) * 1024


def main(cases: list[tuple[str, list[Any], list[Any]]]) -> None:
    """Print the measurement of each case as a line of JSON."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, small, large in cases:
        function = globals()[name]
        function(*small)()
        if os.fork() == 0:
            function(*small)()  # reads the pages of the libraries, which would count otherwise
            gc.collect()
            step = function(*large)
            before = peak()
            found = step()
            print(json.dumps({"peak": peak() - before, **(found or {})}), flush=True)
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
