"""Interleaved timing: every round runs each implementation once, in rotating order, so load affects all alike."""

from __future__ import annotations

import gc
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks._claim import Goal, Row

__all__ = ["Race", "alternate", "cpu_seconds", "race"]

LEAST = 0.05
"""Minimum seconds per sample; short calls are repeated."""


def cpu_seconds() -> float:
    """Return the CPU time of this process and its finished children, which other load affects less than wall time."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@dataclass(frozen=True)
class Race:
    """CPU and wall seconds of one call, for each implementation and round."""

    cpu: dict[str, list[float]]
    wall: dict[str, list[float]]

    def fastest(self, names: Iterable[str]) -> str:
        """Return which of several implementations takes the least median CPU time."""
        return min(names, key=lambda name: statistics.median(self.cpu[name]))

    def row(
        self,
        case: str,
        peer: str,
        goal: Goal | None = None,
        *,
        ours: str = "qkv",
        clock: str = "CPU time",
        smallest: bool = False,
        faster: bool = False,
        scale: float = 1.0,
        **more: Any,
    ) -> Row:
        """Return the ratio of the median or smallest times.

        Args:
            case: shape and direction.
            peer: name of the implementation to compare with.
            goal: limit of the ratio.
            ours: name of the implementation of qkv.
            clock: "CPU time", or "wall time".
            smallest: compare the smallest times, which other load affects least, instead of the medians.
            faster: report the speed-up over the peer instead of the fraction of its time.
            scale: fraction of the work that the peer did; its times are divided by it.
            **more: further fields of the row.
        """
        times = dict(self.cpu if clock == "CPU time" else self.wall)
        times[peer] = [t / scale for t in times[peer]]
        above, below = (peer, ours) if faster else (ours, peer)
        typical: Callable[[list[float]], float] = min if smallest else statistics.median
        number = typical(times[above]) / typical(times[below])
        paired = [a / b for a, b in zip(times[above], times[below], strict=True)]
        shown = (ours, peer)
        cpu = {name: typical(self.cpu[name]) for name in shown}
        wall = {name: typical(self.wall[name]) for name in shown}
        cpu[peer] /= scale
        wall[peer] /= scale
        return Row(
            case,
            f"{above} / {below}, {clock}{', minima' if smallest else ''}",
            number,
            "×",
            goal,
            (min(paired), max(paired)),
            seconds=cpu,
            wall=wall,
            **more,
        )


def race(implementations: dict[str, Callable[[], object]], rounds: int, least: float = LEAST) -> Race:
    """Run each implementation once untimed, then all of them in rounds; a sample takes `least` seconds."""
    loops = {}
    for name, run in implementations.items():
        run()
        start = time.perf_counter()
        run()
        loops[name] = max(1, round(least / max(time.perf_counter() - start, 1e-6)))
    names = list(implementations)
    cpu: dict[str, list[float]] = {name: [] for name in names}
    wall: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            for step in range(len(names)):
                name = names[(turn + step) % len(names)]
                run = implementations[name]
                began, start = cpu_seconds(), time.perf_counter()
                for _ in range(loops[name]):
                    run()
                wall[name].append((time.perf_counter() - start) / loops[name])
                cpu[name].append((cpu_seconds() - began) / loops[name])
            gc.collect()
    finally:
        gc.enable()
    return Race(cpu, wall)


def alternate(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the CPU seconds of single calls in rotating order: the lowest fifth, which other load affects little.

    All implementations find the caches in the same state, and slower phases of the machine affect them alike.
    """
    names, found = list(runs), {name: [math.inf] * rounds for name in runs}
    gc.disable()
    try:
        for turn in range(-2, rounds):
            for step in range(len(names)):
                name = names[(turn + step) % len(names)]
                start = time.process_time()
                runs[name]()
                if turn >= 0:  # the first two rounds fill caches
                    found[name][turn] = time.process_time() - start
    finally:
        gc.enable()
    return {name: sorted(seconds)[rounds // 5] for name, seconds in found.items()}
