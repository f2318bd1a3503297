"""Claim: codes of one byte for each number answer questions to a store exactly, or within a tolerance, in less time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks._calls import WrongError
from benchmarks._claim import AtLeast, AtMost, Claim, Row, Setting
from benchmarks._race import race
from qkv import Database, normalizers

KEYS, WIDTH, CLUSTERS = 1_000_000, 128, 1000
TOLERANCE = 1e-3
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ten nearest by cosine", {"score": "cosine", "normalizer": "topk:10"}),
    *(
        (f"softmax at temperature {t}", {"score": "dot", "normalizer": normalizers.Softmax(t), "tolerance": TOLERANCE})
        for t in (0.005, 0.01, 0.1)
    ),
)
FLAT = "softmax at temperature 0.1"
"""The call under which a thousand rows and more have weight, so that all rows are compared."""


def rows(setting: Setting) -> Iterator[Row]:
    """Compare the answers of a store before and after it was compressed."""
    count = KEYS // 5 if setting.quick else KEYS
    setting.say(f"writing {count:,} × {WIDTH}")
    draw = np.random.default_rng(0)
    centers = draw.standard_normal((CLUSTERS, WIDTH), dtype=np.float32)
    keys = centers[draw.integers(0, CLUSTERS, count)] + 0.5 * draw.standard_normal((count, WIDTH), dtype=np.float32)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    noise = 0.03 * draw.standard_normal((64, WIDTH), dtype=np.float32)
    asked = (keys[draw.integers(0, count, 64)] + noise).tolist()
    values = draw.standard_normal(count)
    with tempfile.TemporaryDirectory(prefix="qkv-certified") as folder:
        column = pa.FixedSizeListArray.from_arrays(pa.array(keys.reshape(-1)), WIDTH)
        table = pa.table({"key": column, "value": values})
        plain = Database.create(Path(folder) / "store", table, "key", "value", memory="64 MiB")
        plain.ask(asked[0], **CALLS[0][1])  # it continues without the codes
        store = Database.open(Path(folder) / "store", memory="64 MiB")
        store.compress()
        for queries in (asked, asked[:1]):
            many = "64 queries" if len(queries) > 1 else "one query"
            for name, call in CALLS:
                yield _row(f"{many}, {name}", queries, call, store, plain, setting)


def _row(case: str, queries: Any, call: Any, store: Any, plain: Any, setting: Setting) -> Row:
    found, exact = store.ask(queries, **call), plain.ask(queries, **call)
    if exact.plan.codes:
        raise WrongError(f"{case}: the peer reads codes")
    error = max(_difference(case, one, other, call) for one, other in zip(found, exact, strict=True))
    # A sample of single queries has some that try the codes where all rows have to be read, which happens now and then.
    sides = {"codes": lambda: store.ask(queries, **call), "all rows": lambda: plain.ask(queries, **call)}
    run = race(sides, setting.rounds, least=0.05 if setting.quick else 0.5)
    goal = AtMost(1.1) if FLAT in case else AtLeast(1.6 if len(queries) > 1 and "tolerance" in call else 1.3)
    return run.row(
        case,
        "all rows",
        goal,
        ours="codes",
        faster=FLAT not in case,
        smallest=True,
        errors={"all rows, value": error},
        kernel="codes" if found.plan.codes else "all rows",
        plan=str(found.plan),
        note=f"a tolerance of {TOLERANCE:g}; the most that was left out: {max(found.omitted):.2g}"
        if "tolerance" in call
        else "the same rows, in the same order",
    )


def _difference(case: str, found: Any, exact: Any, call: Any) -> float:
    """Return the difference of two values, which the weight that was left out must bound.

    Raises:
        WrongError: A value differs by more, or the nearest rows differ.
    """
    if found.omitted > call.get("tolerance", 0):
        raise WrongError(f"{case}: {found.omitted:.2g} of the weight may be left out")
    if "tolerance" not in call and [row.index for row in found.rows] != [row.index for row in exact.rows]:
        raise WrongError(f"{case}: the rows are not those of the scan of all rows")
    error = abs(found.value - exact.value)
    span = 12.0  # of the values, a million standard normal numbers
    if not error <= found.omitted * span + 1e-6:
        raise WrongError(f"{case}: the value differs by {error:.2g}, and {found.omitted:.2g} was left out")
    return float(error)


CLAIM = Claim(
    "A store of 1,000,000 × 128 keys with codes of one byte for each number answers for 64 queries and for one in less "
    "time: with the same nearest rows, and a softmax within a tolerance of 0.001 where few rows have weight.",
    "at least 1.3 × as fast as the scan of all rows, 1.6 × for a softmax of 64 queries; at most 1.1 × its time where a "
    "thousand rows and more have weight",
    ("the scan of all rows",),
    rows,
)
