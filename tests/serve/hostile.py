"""A client that sends costly requests to a server on this machine, with ordinary requests beside them.

    python -m tests.serve.hostile --minutes 10

It starts `qkv serve` over drawn stores, speaks to 127.0.0.1 alone, has at most eight connections, and stops by itself.
"""

import argparse
import json
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from qkv.database import Database

HOSTILE = 6
"""Number of hostile clients."""
_ROWS = 30_000
_SYLLABLES = [first + second for first in "bdklmnrs" for second in "aeio"]
Fields = dict[str, object]


def drawn_name(rng: random.Random) -> str:
    """Return two or three drawn words."""
    return " ".join("".join(rng.choices(_SYLLABLES, k=rng.randint(2, 4))) for _ in range(rng.randint(2, 3)))


def create_store(path: Path, rows: int, seed: int = 0) -> list[str]:
    """Create a store with drawn names and incomes, and return some names."""
    rng = random.Random(seed)
    names = [drawn_name(rng) for _ in range(rows)]
    years = [rng.uniform(0, 100) for _ in names]
    key = {"name": names, "years": years, "income": [rng.uniform(0, 1e5) for _ in names]}
    Database.create(path, key, key="name", value="income")
    return names[:1000]


def hostile_request(rng: random.Random) -> tuple[str, bytes]:
    """Return the path and the body of a drawn costly request."""
    words = rng.choice((10, 300, 1_600, 4_000))
    texts: list[object] = [
        "a " * words,
        " ".join(drawn_name(rng).split()[0] for _ in range(words)),
        " ".join(map(str, range(words))),
        " ".join(f"a{i}" for i in range(words)),
        "1a" * words,
        "ab" * words,
        "".join(rng.choices("abcdefgh i", k=words)),
        "a" + "\u0301\u0316" * words,
        "\ufdfa" * words,
        [0] * words,
        {"$": "decimal", "v": "1e999999999"},
        -(10**words) if words < 4000 else 1e300,
        None,
    ]
    fields: Fields = {"query": rng.choice(texts)}
    if rng.random() < 0.4:
        one = rng.choice([drawn_name(rng), "a b c d e f g h", rng.choice(texts)])
        fields = {"queries": [one] * min(8192, rng.choice((50, 1000, 8192)))}
    if rng.random() < 0.5:
        fields["on_bad_query"] = "report"
    if rng.random() < 0.4:
        fields["score"] = rng.choice(["names", "spelling", "levenshtein", "jaro-winkler", "token-set-ratio"])
    if rng.random() < 0.3:
        fields["normalizer"] = rng.choice(["softmax", "topk:1000:0.1", "sum", "sparsemax", "sample", "mean"])
    if rng.random() < 0.3:
        fields["top"] = rng.choice((1, 100, 1000))
    if rng.random() < 0.3:
        fields["min_similarity"] = rng.random()
    body = json.dumps(fields).encode()
    if rng.random() < 0.1:
        inner = rng.choice((b"[]", b"0", b"{}", b"[[0]]", b'"a"'))
        body = b'{"queries": [' + b",".join([inner] * rng.choice((1000, 10**5, 10**6))) + b"]}"
    if rng.random() < 0.03:
        body = b'{"query": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    return rng.choice(("/ask", "/ask", "/ask", "/explain", "/search")), body


@dataclass
class Seen:
    """What the clients saw."""

    ordinary: list[float] = field(default_factory=list)
    failed: list[object] = field(default_factory=list)
    statuses: dict[int | str, int] = field(default_factory=dict)
    ends: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    def count(self, status: int | str) -> None:
        """Count a response."""
        self.statuses[status] = self.statuses.get(status, 0) + 1


def send(port: int, path: str, body: bytes, seconds: float) -> tuple[int, bytes]:
    """Send a request, and return the status and the body of the response.

    Raises:
        TimeoutError: There is no response after some seconds. The connection is closed.
    """
    until = time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        parts = []
        while True:
            connection.settimeout(max(0.001, until - time.monotonic()))
            if not (part := connection.recv(2**20)):
                break
            parts.append(part)
            if time.monotonic() > until:
                raise TimeoutError
    head, _, content = b"".join(parts).partition(b"\r\n\r\n")
    return int(head.split()[1]), content


def attack(port: int, seed: int, stop: threading.Event, seen: Seen, longest: float = 20.0) -> None:
    """Send costly requests until an event; most connections are closed before the answer."""
    rng = random.Random(seed)
    while not stop.is_set():
        path, body = hostile_request(rng)
        try:
            seen.count(send(port, path, body, min(longest, rng.choice((0.05, 0.3, 2.0, 20.0))))[0])
        except (OSError, ValueError, IndexError) as error:
            seen.count(type(error).__name__)


def ask(port: int, names: list[str], seed: int, stop: threading.Event, seen: Seen) -> None:
    """Ask ordinary questions until an event, and note how long each answer takes."""
    rng = random.Random(seed)
    while not stop.is_set():
        name, started = rng.choice(names), time.monotonic()
        try:
            status, content = send(port, "/ask", json.dumps({"query": name, "top": 3}).encode(), 60.0)
        except OSError as error:
            seen.failed.append(repr(error))
            continue
        seen.ordinary.append(time.monotonic() - started)
        if status != 200 or not json.loads(content)["answers"][0]["found"]:
            seen.failed.append((status, content[:200]))
        stop.wait(0.05)


def run(minutes: float, rows: int = _ROWS, memory: str = "512 MiB", hostile: int = HOSTILE, seed: int = 0) -> Seen:
    """Attack a server of its own process for some minutes, or until two ordinary requests have an answer."""
    with tempfile.TemporaryDirectory() as folder:
        names = create_store(Path(folder) / "people", rows, seed)
        command = [sys.executable, "-m", "qkv", "serve", str(Path(folder) / "people"), "--port", "0"]
        command += ["--memory", memory, "--timeout", "30"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                port = int(server.stdout.readline().split()[0].rpartition(":")[2])
                return _attack_server(server.pid, port, names, minutes, hostile, seed)
            finally:
                server.terminate()
                try:
                    server.wait(40)
                except subprocess.TimeoutExpired:
                    server.kill()


def _attack_server(process: int, port: int, names: list[str], minutes: float, hostile: int, seed: int) -> Seen:
    seen, stop = Seen(), threading.Event()
    send(port, "/ask", json.dumps({"query": names[0]}).encode(), 60)
    clients = [threading.Thread(target=attack, args=(port, seed + n, stop, seen, 30 * minutes)) for n in range(hostile)]
    clients.append(threading.Thread(target=ask, args=(port, names, seed + hostile, stop, seen)))
    for client in clients:
        client.start()
    until = time.monotonic() + 60 * minutes
    # A busy machine answers the first ordinary requests later.
    while time.monotonic() < until or (len(seen.ordinary) < 2 and not seen.failed and clients[-1].is_alive()):
        seen.memory.append(resident(process))
        time.sleep(min(5.0, max(0.01, until - time.monotonic())))
    stop.set()
    for client in clients:
        client.join()
    # All connections are closed: the time until the server is idle is that of the scan which was abandoned last.
    seen.ends.append(idle_after(process))
    seen.memory.append(resident(process))
    return seen


def resident(process: int) -> float:
    """Return the resident memory of a process in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def idle_after(process: int, seconds: float = 120.0) -> float:
    """Return the CPU time that a process uses until it uses none for half a second."""

    def used() -> float:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    started, until = used(), time.monotonic() + seconds
    while time.monotonic() < until:
        before = used()
        time.sleep(0.5)
        if used() - before <= 0.02:
            return before - started
    return math.inf


def main() -> None:
    """Run the client and print what it saw."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rows", type=int, default=_ROWS)
    parser.add_argument("--memory", default="512 MiB")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    seen = run(given.minutes, given.rows, given.memory, seed=given.seed)
    ordinary = sorted(seen.ordinary)
    shares = {share: ordinary[min(len(ordinary) - 1, int(share * len(ordinary)))] for share in (0.5, 0.9, 0.99, 1.0)}
    print(f"{len(ordinary):,} ordinary requests:", {share: f"{1e3 * time:.0f} ms" for share, time in shares.items()})
    print(f"{len(seen.failed)} failed", seen.failed[:3])
    print("hostile responses:", seen.statuses)
    print("CPU seconds after the last connection closed:", seen.ends)
    step = max(1, len(seen.memory) // 12)
    print("resident MB:", [round(size) for size in seen.memory[::step]], "last", round(seen.memory[-1]))


if __name__ == "__main__":
    main()
