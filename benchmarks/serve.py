"""Load of `qkv serve` from another process: errors, the gain of shared scans, and memory.

    python -m benchmarks.serve                   # all of it, some minutes
    python -m benchmarks.serve --requests 2000   # fewer requests
    python -m benchmarks.serve --only gain

errors  requests from 64 connections at the same time to a small table: how many have another status than 200
gain    requests per second of 64 connections relative to one connection, in rounds one after the other: of a store of
        vectors that is read block by block, of one in memory, and of a column of numbers
memory  resident memory of the server after each tenth of many requests

The server and the load share the cores of this machine. Rates are those of wall time; their ratio, the median of the
rounds, changes less with other load. CPU times are those of the server alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from qkv.database import Database

CONNECTIONS = 64


@contextlib.contextmanager
def server(path: Path, *options: str) -> Iterator[tuple[int, int]]:
    """Run `qkv serve`, and yield its port and the id of its process."""
    line = [sys.executable, "-m", "qkv", "serve", str(path), "--port", "0", *options]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    ) as process:
        try:
            yield int(process.stdout.readline().split()[0].rsplit(":", 1)[1]), process.pid
        finally:
            process.terminate()


def request(fields: dict[str, object]) -> bytes:
    """Return the bytes of a question."""
    body = json.dumps(fields).encode()
    head = (
        f"POST /ask HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    return head.encode() + b"\r\n\r\n" + body


async def load(port: int, requests: list[bytes], count: int, connections: int) -> tuple[float, int]:
    """Send requests over connections that each wait for a response, and return the seconds and the errors."""
    left, errors = count, 0

    async def connection(first: int) -> None:
        nonlocal left, errors
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        place = first
        while left > 0:
            left -= 1
            writer.write(requests[place % len(requests)].replace(b":PORT", b":%d" % port))
            place += connections
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r")[0])
            await reader.readexactly(length)
            errors += b" 200 " not in head[:16]
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(connection(i) for i in range(connections)))
    return time.perf_counter() - started, errors


def cpu_seconds(process: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(process: int) -> float:
    """Return the resident memory of a process in MB."""
    text = Path(f"/proc/{process}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


def small(folder: Path) -> tuple[Path, list[bytes]]:
    """Create a store of 2,000 rows of numbers, and return 1,000 questions to it."""
    generator = np.random.default_rng(0)
    years = generator.uniform(0, 40, 2000)
    Database.create(folder / "small", {"years": years, "pay": 2 * years + generator.normal(size=2000)}, "years", "pay")
    return folder / "small", [request({"query": float(x), "top": 3}) for x in generator.uniform(0, 40, 1000)]


def vectors(folder: Path, width: int, rows: int) -> tuple[Path, list[bytes]]:
    """Create a store of vectors, which answers by the 10 nearest ones, and return 256 questions to it."""
    generator = np.random.default_rng(0)
    keys = generator.normal(size=(rows, width)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(keys.ravel()), width)
    table = pa.table({"vector": column, "value": generator.normal(size=rows)})
    path = folder / f"vectors-{width}-{rows}"
    Database.create(path, table, "vector", "value", score="cosine", normalizer="topk:10", min_similarity=-1.0)
    near = keys[generator.integers(0, rows, 256)] + generator.normal(size=(256, width))
    return path, [request({"query": np.round(query, 3).tolist(), "top": 3}) for query in near]


def numbers(folder: Path, rows: int) -> tuple[Path, list[bytes]]:
    """Create a store of a column of numbers, and return 1,000 questions to it."""
    generator = np.random.default_rng(0)
    years = generator.uniform(0, 40, rows)
    pay = 2 * years + generator.normal(size=rows)
    Database.create(folder / f"numbers-{rows}", {"years": years, "pay": pay}, "years", "pay")
    return folder / f"numbers-{rows}", [request({"query": float(x), "top": 3}) for x in generator.uniform(0, 40, 1000)]


def measure_errors(folder: Path, count: int) -> None:
    """Print the errors and the rate of many requests from 64 connections."""
    path, requests = small(folder)
    with server(path) as (port, _):
        seconds, errors = asyncio.run(load(port, requests, count, CONNECTIONS))
    print(f"errors: {errors} of {count:,} requests at concurrency {CONNECTIONS}; {count / seconds:,.0f} per second")


def measure_gain(folder: Path, rounds: int) -> None:
    """Print the rates of one connection and of 64, and their ratio."""
    stores = {
        "100,000 vectors of 384, read block by block": (*vectors(folder, 384, 100_000), 40),
        "20,000 vectors of 384, in memory": (*vectors(folder, 384, 20_000), 100),
        "2,000 numbers, in memory": (*small(folder), 300),
        "100,000 numbers, in memory": (*numbers(folder, 100_000), 40),
    }
    for name, (path, requests, one) in stores.items():
        rates: dict[int, list[float]] = {1: [], CONNECTIONS: []}
        costs: dict[int, list[float]] = {1: [], CONNECTIONS: []}
        with server(path) as (port, process):
            asyncio.run(load(port, requests, 5, 1))
            for _ in range(rounds):
                for connections, count in ((1, one), (CONNECTIONS, 8 * one)):
                    before = cpu_seconds(process)
                    seconds, errors = asyncio.run(load(port, requests, count, connections))
                    assert not errors
                    rates[connections].append(count / seconds)
                    costs[connections].append(1000 * (cpu_seconds(process) - before) / count)
        gains = [many / few for few, many in zip(rates[1], rates[CONNECTIONS], strict=True)]
        savings = [few / many for few, many in zip(costs[1], costs[CONNECTIONS], strict=True)]
        middle = statistics.median
        print(
            f"gain: {name}: one connection {middle(rates[1]):,.1f} requests per second, {CONNECTIONS} connections "
            f"{middle(rates[CONNECTIONS]):,.1f}: ratio {middle(gains):.1f} ({min(gains):.1f} to {max(gains):.1f}); CPU "
            f"time of the server per request {middle(costs[1]):.2f} and {middle(costs[CONNECTIONS]):.2f} ms: ratio "
            f"{middle(savings):.1f}",
            flush=True,
        )


def measure_memory(folder: Path, count: int) -> None:
    """Print the resident memory of the server after each tenth of the requests."""
    path, requests = small(folder)
    with server(path) as (port, process):
        asyncio.run(load(port, requests, 1000, CONNECTIONS))
        sizes, errors = [resident(process)], 0
        for _ in range(10):
            errors += asyncio.run(load(port, requests, count // 10, CONNECTIONS))[1]
            sizes.append(resident(process))
    print(f"memory: MB after each tenth of {count:,} requests: {', '.join(f'{size:.1f}' for size in sizes)}")
    print(f"memory: {errors} errors")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("errors", "gain", "memory"))
    asked = parser.parse_args()
    parts = {
        "errors": lambda folder: measure_errors(folder, asked.requests),
        "gain": lambda folder: measure_gain(folder, asked.rounds),
        "memory": lambda folder: measure_memory(folder, 5 * asked.requests),
    }
    for name, measure in parts.items():
        if asked.only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                measure(Path(folder))


if __name__ == "__main__":
    main()
