"""Interleaved timing of implementations by events of the GPU, and of a dry run by the clock of the CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks._claim import Goal, MissingError, Row
from benchmarks._race import Race
from benchmarks.gpu._setting import Setting

__all__ = ["Contest", "contest", "peak_megabytes", "reason", "reason_to_skip"]

Implementation = Callable[[], object]


def reason(error: BaseException) -> str:
    """Return the first line of an error, shortened."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:160].removeprefix("MissingError: ")


def reason_to_skip(setting: Setting, error: Exception) -> str:
    """Return why a peer takes no part; a dry run raises every error except that something is missing on the CPU."""
    if not setting.on_gpu and not isinstance(error, MissingError):
        raise error
    return reason(error)


@dataclass
class Contest:
    """Seconds of one call, for each implementation and round, and why others did not take part.

    Attributes:
        times: seconds by implementation.
        skipped: reasons by implementation.
    """

    times: dict[str, list[float]]
    skipped: dict[str, str] = field(default_factory=dict)

    def best(self, *names: str) -> str | None:
        """Return the fastest of some implementations, or of all except "qkv" if none is named."""
        among = [name for name in (names or self.times) if name in self.times and not name.startswith("qkv")]
        return min(among, key=lambda name: statistics.median(self.times[name])) if among else None

    def row(self, case: str, peer: str | None, goal: Goal | None = None, *, ours: str = "qkv", **more: Any) -> Row:
        """Return the ratio of our time to that of a peer; without a peer, our time alone.

        Args:
            case: shape, dtype and direction.
            peer: name of the peer, or None if none of them runs here.
            goal: limit of the ratio.
            ours: name of our implementation.
            **more: as in `Race.row`.
        """
        note = more.pop("note", "")
        left_out = "; ".join(f"{name}: {why}" for name, why in self.skipped.items())
        note = " ".join(part for part in (note, f"Not run: {left_out}." if left_out else "") if part)
        everyone = {name: statistics.median(times) for name, times in self.times.items()}
        if peer is None or peer not in self.times:
            return Row(case, f"{ours}, time", 1e3 * everyone[ours], "ms", None, seconds=everyone, note=note)
        row = Race(self.times, self.times).row(case, peer, goal, ours=ours, clock="GPU time", note=note, **more)
        row.seconds, row.wall = everyone | row.seconds, {}
        return row


def contest(
    setting: Setting, implementations: dict[str, Implementation], skipped: dict[str, str] | None = None
) -> Contest:
    """Run implementations in rounds of rotating order. One that fails is left out, unless it is ours.

    Args:
        setting: where they run.
        implementations: functions by name; names that start with "qkv" are ours.
        skipped: reasons why others cannot run, by name.
    """
    found = Contest({}, dict(skipped or {}))
    loops = {}
    for name, run in implementations.items():
        try:
            run()
            loops[name] = max(1, round(setting.least / max(_seconds(setting, run, 1), 1e-7)))
        except Exception as error:  # of another library, or of its compiler
            if name.startswith("qkv"):
                raise
            found.skipped[name] = reason_to_skip(setting, error)
            if setting.on_gpu:
                torch.cuda.empty_cache()
    names = list(loops)
    found.times = {name: [] for name in names}
    for turn in range(setting.size(setting.rounds, 2)):
        for step in range(len(names)):
            name = names[(turn + step) % len(names)]
            found.times[name].append(_seconds(setting, implementations[name], loops[name]) / loops[name])
    return found


def _seconds(setting: Setting, run: Implementation, times: int) -> float:
    if not setting.on_gpu:
        start = time.perf_counter()
        for _ in range(times):
            run()
        return time.perf_counter() - start
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(times):
        run()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3


def peak_megabytes(setting: Setting, run: Implementation) -> float:
    """Return the growth of the memory of the GPU during a call, in 10⁶ bytes.

    Raises:
        MissingError: there is no GPU whose memory could be measured.
    """
    result = run()
    if not setting.on_gpu:
        raise MissingError("the memory of a GPU is measured on a GPU alone")
    del result
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6
