"""Claim: the ten nearest of many keys take hardly longer than a loop of matrix products and `topk`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import qkv
from benchmarks import _peers
from benchmarks._calls import WrongError
from benchmarks._claim import AtMost, Claim, MissingError, Row, Setting
from benchmarks._race import race
from qkv import Database, masks, normalizers, readouts, scores

BEST = 10
KEYS, WIDTH = 500_000, 128
QUERIES = (64, 1)
BLOCKS = (4096, 16_384, 65_536)
"""Keys at a time in the loop; the fastest is the peer."""
LIMIT = AtMost(1.2)

Rows = tuple[torch.Tensor, torch.Tensor]
"""Logits and keys of the nearest rows of each query, nearest first."""


def rows(setting: Setting) -> Iterator[Row]:
    """Compare readouts and normalizers of NumPy and PyTorch, and a store, with the loop."""
    count = KEYS // 10 if setting.quick else KEYS
    draw = np.random.default_rng(0)
    keys = draw.standard_normal((count, WIDTH), dtype=np.float32)
    values = draw.standard_normal((count, 1), dtype=np.float32)
    with tempfile.TemporaryDirectory(prefix="qkv-nearest") as folder:
        column = pa.FixedSizeListArray.from_arrays(pa.array(keys.reshape(-1)), WIDTH)
        table = pa.table({"key": column, "value": values[:, 0]})
        database = Database.create(Path(folder) / "store", table, "key", "value", memory="64 MiB")
        for queries in QUERIES:
            query = draw.standard_normal((queries, WIDTH)).astype(np.float32)
            many = "64 queries" if queries > 1 else "one query"
            chosen = masks.AllowedKeys(values[:, 0] > 0)
            for library in ("torch", "NumPy"):
                arrays = [torch.from_numpy(x) if library == "torch" else x for x in (query, keys, values)]
                yield from _in_memory(f"{many}, {library}", arrays, None, setting)
                yield from _in_memory(f"{many}, {library}, half of the keys masked", arrays, chosen, setting)
            yield from _stored(many, database, query, keys, values, setting)
            yield from _faiss(many, query, keys, setting)


def loop(block: int, query: Any, keys: Any, allowed: Any = None) -> Rows:
    """Return the nearest rows from a product and a `topk` of each block of keys, merged with those found so far."""
    query, keys = torch.as_tensor(query), torch.as_tensor(keys)
    best: Rows | None = None
    for start in range(0, len(keys), block):
        logits = query @ keys[start : start + block].T
        if allowed is not None:
            logits.masked_fill_(~allowed[start : start + block], -torch.inf)
        found, index = logits.topk(min(BEST, logits.shape[-1]), dim=-1)
        index = index + start
        if best is not None:
            found, index = torch.cat([best[0], found], -1), torch.cat([best[1], index], -1)
            found, order = found.topk(BEST, dim=-1)
            index = index.gather(-1, order)
        best = found, index
    assert best is not None
    return best


def same_rows(case: str, found: Any, wanted: Rows) -> None:
    """Raise an error unless both sides of a comparison name the same rows in the same order.

    Raises:
        WrongError: the rows differ.
    """
    if not np.array_equal(np.asarray(found), wanted[1].numpy()):
        raise WrongError(f"{case}: the rows are not those of the loop")


def same_output(case: str, output: Any, wanted: Rows, values: Any, count: int) -> dict[str, float]:
    """Return the difference of an output from the softmax over the `count` nearest rows of the loop.

    Raises:
        WrongError: the difference exceeds 1e-4.
    """
    weights = wanted[0][:, :count].double().softmax(-1)
    mean = (weights[..., None] * torch.as_tensor(values)[wanted[1][:, :count]]).sum(1)
    error = float((torch.as_tensor(np.asarray(output)).double() - mean).abs().max())
    if not error <= 1e-4:
        raise WrongError(f"{case}: the output is {error:.2g} from that of the rows of the loop")
    return {"loop, output": error}


def _in_memory(case: str, arrays: list[Any], mask: Any, setting: Setting) -> Iterator[Row]:
    query, keys, values = arrays
    allowed = None if mask is None else torch.as_tensor(np.asarray(values))[:, 0] > 0
    loops = {f"loop, blocks of {n:,}": _loop(n, query, keys, allowed) for n in BLOCKS}
    wanted = loop(BLOCKS[0], query, keys, allowed)
    call = {"score": scores.Dot(), "mask": mask}
    top = {"readouts": [readouts.TopWeights(BEST)]}
    options: dict[str, dict[str, Any]] = {
        "TopWeights": call | top,
        "TopK": call | {"normalizer": normalizers.TopK(BEST)},
        "TopK and TopWeights": call | {"normalizer": normalizers.TopK(BEST)} | top,
        "Hard": call | {"normalizer": normalizers.Hard()},
    }
    errors: dict[str, dict[str, float]] = {}
    for name, each in options.items():
        found = qkv.observe(*arrays, **each)
        if "readouts" in each:
            same_rows(f"{case}, {name}", found.readouts[0].keys, wanted)
        if "normalizer" in each:
            count = 1 if name == "Hard" else BEST
            errors[name] = same_output(f"{case}, {name}", found.output, wanted, values, count)
    run = race({name: _ours(arrays, each) for name, each in options.items()} | loops, setting.rounds)
    for name, each in options.items():
        plan = qkv.explain(*arrays, **each)
        yield run.row(
            f"{case}, {name}",
            run.fastest(loops),
            LIMIT,
            ours=name,
            errors=errors.get(name, {}),
            kernel=plan.kernel.name,
            plan=str(plan),
        )


def _loop(block: int, query: Any, keys: Any, allowed: Any) -> Callable[[], Rows]:
    return lambda: loop(block, query, keys, allowed)


def _ours(arrays: list[Any], options: dict[str, Any]) -> Callable[[], Any]:
    return lambda: qkv.observe(*arrays, **options)


def _stored(many: str, database: Any, query: Any, keys: Any, values: Any, setting: Setting) -> Iterator[Row]:
    asked = [q.tolist() for q in query]
    for name, where in (("", None), (", where", "value > 0")):
        allowed = None if where is None else torch.as_tensor(values[:, 0] > 0)
        loops = {f"loop, blocks of {n:,}": _loop(n, query, keys, allowed) for n in BLOCKS}

        def ask(where: Any = where) -> Any:
            return database.ask(asked, score="dot", normalizer=normalizers.TopK(BEST), top=BEST, where=where)

        case = f"{many}, store{name}, TopK"
        found = ask()
        same_rows(case, [[row.index for row in answer.rows] for answer in found], loop(BLOCKS[0], query, keys, allowed))
        run = race({"qkv": ask} | loops, setting.rounds)
        yield run.row(
            case,
            run.fastest(loops),
            LIMIT,
            kernel="streamed over blocks",
            plan=str(found.plan),
            note="a store answers from memory-mapped files with 64 MiB of memory; an answer also has the value, its "
            "spread and the cells of ten rows",
        )


def _faiss(many: str, query: Any, keys: Any, setting: Setting) -> Iterator[Row]:
    """Compare TopWeights with faiss, without a goal, because its time depends on the BLAS that it was built with."""
    try:
        faiss = _peers.peer("faiss")
    except MissingError:
        return
    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(WIDTH)
    index.add(keys)
    same_rows(f"{many}, faiss", index.search(query, BEST)[1], loop(BLOCKS[0], query, keys))
    as_installed = faiss.cvar.distance_compute_blas_threshold

    def search(threshold: int) -> Any:
        faiss.cvar.distance_compute_blas_threshold = threshold
        return index.search(query, BEST)

    arrays = [torch.from_numpy(x) for x in (query, keys, keys[:, :1])]
    call = {"score": scores.Dot(), "readouts": [readouts.TopWeights(BEST)]}
    sides = {"faiss": as_installed, "faiss by matmul": 1}
    run = race(
        {"qkv": _ours(arrays, call)} | {name: lambda n=n: search(n) for name, n in sides.items()}, setting.rounds
    )
    libraries = {_blas(each) for each in _peers.peer("threadpoolctl").threadpool_info() if "faiss" in each["filepath"]}
    for name in sides:
        yield run.row(
            f"{many}, torch, TopWeights, compared with {name}",
            name,
            note=f"faiss IndexFlatIP on one thread with {', '.join(sorted(libraries)) or 'an unknown BLAS'}; by matmul "
            "has distance_compute_blas_threshold = 1; no goal",
        )


def _blas(library: dict[str, Any]) -> str:
    return f"{library['internal_api']} {library['version']}"


CLAIM = Claim(
    "The ten nearest of 500,000 × 128 keys, for 64 queries and for one, take hardly longer than a loop of torch "
    "products, topk and a merge, and are the same rows.",
    "at most 1.2 × the fastest of three loops, in memory and from a store, also with masks",
    ("torch product and topk", "faiss IndexFlatIP"),
    rows,
)
