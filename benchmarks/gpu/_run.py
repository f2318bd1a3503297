"""Measurement of topics in a process of its own, which is replaced when a topic fails or exceeds its time."""

from __future__ import annotations

import dataclasses
import importlib
import multiprocessing
import time
import warnings
from typing import Any

__all__ = ["TOPICS", "describe", "run_topics"]

TOPICS = {
    "dot": ("products", 90),
    "additive": ("pairs", 60),
    "additive_long": ("pairs", 25),
    "sparse": ("pairs", 45),
    "gated": ("pairs", 40),
    "decode": ("products", 30),
    "retrieval": ("uses", 40),
    "pooled_map": ("pairs", 30),
    "model": ("uses", 40),
    "modified": ("products", 100),
    "window": ("products", 80),
    "overhead": ("uses", 45),
    "compilation": ("compiling", 80),
    "lengths": ("compiling", 60),
    "keops": ("pairs", 60),
}
"""File of each topic, and seconds after which it is ended; the most valuable come first."""
TOTAL = 465
"""Seconds after which all topics are ended: 8 minutes less the time to start and to save."""


def run_topics(names: list[str], device: str) -> dict[str, dict[str, Any]]:
    """Return the rows of each topic, and the error that ended it, or ""; a dry run on "cpu" has no limits of time."""
    measured = device != "cpu"
    context, began = multiprocessing.get_context("spawn"), time.monotonic()
    found: dict[str, dict[str, Any]] = {}
    worker: Any = None
    notes = {""}
    pipe: Any = None
    for name in names:
        entry = found[name] = {"rows": [], "error": "", "seconds": 0.0}
        left = TOTAL - (time.monotonic() - began)
        if measured and left < 5:
            entry["error"] = f"not begun: the {TOTAL} s of all topics had passed"
            continue
        if worker is None:
            pipe, other = context.Pipe()
            worker = context.Process(target=work, args=(other, device), daemon=False)
            worker.start()
            other.close()
        start = time.monotonic()
        limit = min(TOPICS[name][1], left) if measured else 600.0
        pipe.send(name)
        print(f"── {name}", flush=True)
        while True:
            try:
                if not pipe.poll(max(0.0, limit - (time.monotonic() - start))):
                    entry["error"] = f"ended after {limit:.0f} s"
                    break
                kind, given = pipe.recv()
            except (EOFError, OSError):
                entry["error"] = "its process died"
                break
            if kind == "row":
                entry["rows"].append(given)
                print(f"   {describe(given, measured)}", flush=True)
                if given["note"] not in notes:
                    print(f"      {given['note']}", flush=True)
                notes.add(given["note"])
            else:
                entry["error"] = given
                break
        entry["seconds"] = round(time.monotonic() - start, 1)
        if entry["error"]:
            print(f"   FAILED: {entry['error']}", flush=True)
            # An error of the GPU may have spoiled the process.
            worker.kill()
            worker.join()
            worker = None
    if worker is not None:
        pipe.send(None)
        worker.join()
    return found


def work(pipe: Any, device: str) -> None:
    """Measure the topics that arrive, and send their rows as soon as they are complete."""
    from benchmarks.gpu._setting import Setting, prepare_cpu

    warnings.simplefilter("ignore")  # FlexAttention warns that it is not compiled in a dry run
    if device == "cpu":
        prepare_cpu()
    setting = Setting(device)
    while (name := pipe.recv()) is not None:
        error = ""
        try:
            measure = getattr(importlib.import_module(f"benchmarks.gpu.{TOPICS[name][0]}"), name)
            for row in measure(setting):
                pipe.send(("row", dataclasses.asdict(row) | {"met": row.met}))
        except Exception as problem:
            from benchmarks._claim import MissingError
            from benchmarks.gpu._contest import reason

            error = "" if isinstance(problem, MissingError) and not setting.on_gpu else reason(problem)
        pipe.send(("end", error))


def describe(row: dict[str, Any], measured: bool = True) -> str:
    """Return a row as a line of text; of a dry run only what ran, because times of an interpreter mean nothing."""
    if not measured:
        names = ", ".join(row["seconds"]) or row["measure"]
        return f"{row['case']}: ran {names}"
    mark = {True: ", met", False: ", missed", None: ""}[row["met"]]
    goal = "" if row["goal"] is None else f" (goal: {row['goal']['sense']} {row['goal']['limit']:g}{mark})"
    times = ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in row["seconds"].items())
    text = f"{row['case']}: {row['measure']} {row['number']:.3g} {row['unit']}{goal}"
    return " · ".join(part for part in (text, times) if part)
