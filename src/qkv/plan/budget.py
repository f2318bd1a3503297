"""The memory budget of a call: its default, which depends on the total memory of the machine, and what fits it.

The default is the larger of 512 MiB and an eighth of the total memory. On a GPU, the memory of the GPU is the total,
and under a limit of a container (cgroup) that limit. Memory that happens to be free is never read, so that the same
program on the same machine always gets the same plan.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Hashable
from dataclasses import replace
from functools import cache
from pathlib import Path

from qkv.core.formatting import memory_bytes
from qkv.errors import MemoryBudgetWarning
from qkv.plan.devices import CPU, Device
from qkv.plan.kernel_protocol import Kernel
from qkv.plan.plan import Plan
from qkv.plan.problem import Problem

_MAX_WARNED = 10_000
"""Number of signatures after which nothing is warned of."""
_INSIDE = ("qkv", "torch", "jaxtyping")
"""Packages whose frames are not those of the caller; PyTorch's call the modules of qkv."""
_WARNED: set[Hashable] = set()


def warn_of_slowdown(plan: Plan) -> None:
    """Warn if the memory budget slows a call down by more than 1.5 ×, unless such a call was warned of before.

    Calls count as the same whose batch axes and lengths have the same number of binary digits, because a sequence that
    grows by one key at a time would otherwise warn at every step.
    """
    if plan.slowdown is None:
        return
    requested = plan.requested
    axes = requested.axes
    sizes = tuple(tuple(int(n).bit_length() for n in shape) for shape in (axes.query, axes.key, axes.value))
    parts = (
        plan.kernel.name,
        *(type(x).__name__ for x in (requested.score, requested.normalizer, requested.spec.mask)),
    )
    signature = (sizes, parts, requested.library, requested.dtype, requested.gradient, requested.memory)
    if signature in _WARNED or len(_WARNED) >= _MAX_WARNED:
        return
    _WARNED.add(signature)
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        depth, frame = depth + 1, frame.f_back
    warnings.warn(
        f"The memory budget must be larger for the fastest plan: {plan.slowdown}",
        MemoryBudgetWarning,
        stacklevel=depth + 1,
    )


_LEAST = 512 * 2**20
_SHARE = 8
"""The default budget is the total memory divided by this number."""


def budget_bytes(memory: int | str | None, device: Device = CPU) -> int:
    """Return a budget in bytes, or the default budget of a device if `memory` is None.

    Args:
        memory: the budget, as a number of bytes or as text; None for the default.
        device: the device of the call; a CPU is that of this machine.

    Raises:
        OptionError: `memory` is not a positive amount of memory.

    Example:
        >>> budget_bytes("1.5 KiB")
        1536
    """
    return default_budget(device) if memory is None else memory_bytes(memory)


def default_budget(device: Device = CPU) -> int:
    """Return the default budget in bytes: the larger of 512 MiB and an eighth of the total memory of the device.

    Args:
        device: the device of the call; a CPU is that of this machine.
    """
    return max(_LEAST, (device.memory if device.is_gpu else machine_memory()) // _SHARE)


@cache
def machine_memory() -> int:
    """Return the total memory in bytes: of the machine, or of the container if it has less; 0 if it is unknown."""
    limits = [*container_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")), _physical_memory()]
    return min((limit for limit in limits if limit > 0), default=0)


def container_limits(groups: Path, root: Path) -> list[int]:
    """Return the memory limits in bytes of the control groups of a process and of all groups that contain them.

    Args:
        groups: the file that lists the groups of the process, such as /proc/self/cgroup.
        root: the folder of the groups, such as /sys/fs/cgroup, for both versions of control groups.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files and
    https://docs.kernel.org/admin-guide/cgroup-v1/memory.html.
    """
    try:
        lines = groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        folder, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts) + 1):
            try:
                text = folder.joinpath(*parts[:depth], name).read_text(encoding="utf-8").strip()
            except OSError:  # a container may not show the groups that contain it
                continue
            if text.isdecimal():  # version 2 writes "max" where there is no limit
                limits.append(int(text))
    return limits


def _physical_memory() -> int:
    """Return the memory of the machine in bytes, or 0 if the operating system does not state it."""
    if sys.platform == "win32":
        import ctypes

        class Status(ctypes.Structure):
            _fields_ = [("length", ctypes.c_ulong), ("load", ctypes.c_ulong)] + [
                (f"amount_{n}", ctypes.c_ulonglong) for n in range(7)
            ]

        status = Status(length=ctypes.sizeof(Status))
        found = ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
        return int(status.amount_0) if found else 0
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def smallest_budget(kernel: Kernel, problem: Problem) -> int:
    """Return the smallest budget in bytes with which a kernel can run a problem, with its smallest tiles."""
    return max(1, math.ceil(_scratch(kernel, replace(problem, memory=1))))


def _scratch(kernel: Kernel, problem: Problem) -> float:
    """Return the scratch memory of a kernel and of the readouts of a problem, in bytes."""
    return kernel.scratch(problem) + problem.readout_bytes


def fit_to_budget(kernel: Kernel, problem: Problem) -> tuple[Problem, float] | None:
    """Return the problem for which a kernel chooses tiles within the budget, and its scratch memory; None if none fits.

    A kernel assumes that tiles may use half of `Problem.memory`. Where its other arrays need more than the other half,
    the amount in the returned problem is less than the budget, so that the tiles are smaller.
    """
    fitted, scratch = problem, _scratch(kernel, problem)
    if scratch <= problem.memory:
        return problem, scratch
    if smallest_budget(kernel, problem) > problem.memory:
        return None
    while scratch > problem.memory:
        fitted = replace(fitted, memory=max(1, fitted.memory // 2))
        scratch = _scratch(kernel, fitted)
    return fitted, scratch
