"""Writers wait for their turn, first come, first served, and lose no row, also if they are killed."""

import collections
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qkv import store as stores
from qkv.errors import StoreBusyError
from qkv.store import locking
from qkv.store.locking import writer_lock
from qkv.testing.stores import ids_of, numbered
from tests.effort import sample

APPENDS = """
import sys
from qkv import store as stores
from qkv.testing.stores import numbered
store = stores.open(sys.argv[1])
for i in range(int(sys.argv[3])):
    first = int(sys.argv[2]) + 7 * i
    store.append(numbered(first, first + 7))
"""
BACKENDS = ["arrow", "lance"]  # which wait for the same lock


def start(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def wait_for_tickets(path: Path, count: int) -> None:
    while len([*path.glob("writer.lock.*")]) < count:
        time.sleep(0.001)


def test_the_lock_is_given_in_the_order_in_which_writers_came(tmp_path: Path) -> None:
    order: list[int] = []

    def write(number: int) -> None:
        with writer_lock(tmp_path):
            order.append(number)

    with writer_lock(tmp_path):
        threads = []
        for number in range(12):  # more than ten: tickets are ordered as numbers
            threads.append(start(lambda number=number: write(number)))
            wait_for_tickets(tmp_path, number + 1)
    for thread in threads:
        thread.join()
    assert order == list(range(12))
    assert [file.name for file in tmp_path.iterdir()] == ["writer.lock"]


def test_a_writer_that_writes_again_waits_behind_those_who_wait(tmp_path: Path) -> None:
    ends: list[tuple[int, float]] = []
    waits: list[tuple[int, float, float]] = []

    def write(number: int) -> None:
        for _ in range(15):
            began = time.monotonic()
            with writer_lock(tmp_path):
                time.sleep(0.001)
                ended = time.monotonic()
                waits.append((number, began, ended))
            ends.append((number, ended))

    threads = [start(lambda number=number: write(number)) for number in range(6)]
    for thread in threads:
        thread.join()
    assert len(ends) == 90
    for number, began, ended in waits:
        during = collections.Counter(other for other, at in ends if began < at < ended and other != number)
        assert max(during.values(), default=0) <= 8, during  # 37 of 40 without turns


def test_the_time_of_waiting_begins_anew_when_another_writer_gets_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locking, "WAIT_SECONDS", 0.6)
    failed: list[StoreBusyError] = []

    def write() -> None:
        try:
            with writer_lock(tmp_path):
                time.sleep(0.15)
        except StoreBusyError as error:
            failed.append(error)

    threads = []
    with writer_lock(tmp_path):
        for number in range(6):  # the last waits for 0.9 seconds
            threads.append(start(write))
            wait_for_tickets(tmp_path, number + 1)
    for thread in threads:
        thread.join()
    assert failed == []
    with writer_lock(tmp_path):
        start(write).join()
    assert "for 1 seconds. Wait until that process" in str(failed[0])
    assert [file.name for file in tmp_path.iterdir()] == ["writer.lock"]


def test_a_process_that_died_while_it_waited_is_nobody_to_wait_for(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from qkv.store.locking import writer_lock\n"
        "with writer_lock(Path(sys.argv[1])):\n    print('locked', flush=True)"
    )
    with writer_lock(tmp_path):
        waiting = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        wait_for_tickets(tmp_path, 1)
        waiting.kill()
        printed, _ = waiting.communicate()
    assert printed == ""
    assert len([*tmp_path.glob("writer.lock.*")]) == 1
    with writer_lock(tmp_path):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["writer.lock"]


def test_writers_wait_without_tickets_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, written = locking.file_lock, []

    def full(path: Path) -> object:
        if path.name != "writer.lock" and not path.exists():
            raise OSError(28, "No space left on device")
        return real(path)

    monkeypatch.setattr(locking, "file_lock", full)

    def write() -> None:
        with writer_lock(tmp_path):
            written.append(1)

    with writer_lock(tmp_path):
        thread = start(write)
        time.sleep(0.03)
        assert written == []
    thread.join()
    assert written == [1]


def test_removing_a_store_removes_its_tickets(tmp_path: Path) -> None:
    stores.create(tmp_path / "s", numbered(0, 1).schema)
    (tmp_path / "s" / "writer.lock.0000000003.0a0b0c0d").touch()
    stores.remove(tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("backend", sample(BACKENDS, 2))
def test_writers_in_two_processes_lose_no_row(tmp_path: Path, backend: str) -> None:
    if backend == "lance":
        pytest.importorskip("lance")
    path, count = tmp_path / "store", 8 if backend == "arrow" else 4
    stores.create(path, numbered(0, 1).schema, backend=backend)
    writers = [
        subprocess.Popen([sys.executable, "-c", APPENDS, str(path), str(start), str(count)]) for start in (0, 1_000_000)
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    found = ids_of(stores.open(path))
    assert sorted(found) == sorted(start + i for start in (0, 1_000_000) for i in range(count * 7))
    assert [version.operation for version in stores.open(path).versions()].count("append") == 2 * count
