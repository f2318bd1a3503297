"""Operations that are interrupted: what is there before, their steps, and what a reader finds."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..fuzz.targets import TARGETS

__all__ = ["OPERATIONS", "Operation"]


@dataclass(frozen=True)
class Operation:
    """An operation of one or more steps, each of which is done or not done after an interruption.

    Attributes:
        prepare: writes what is there before into a folder, given a seed.
        steps: returns the steps for a folder and the same seed.
        read: returns what a reader finds, as JSON values; raises an error for damage.
        check: raises an error for anything that must not be there after the operation was repeated.
        slow: whether an operation takes a second, so that a fifth of the points must do.
    """

    prepare: Callable[[Path, int], None]
    steps: Callable[[Path, int], Sequence[Callable[[], object]]]
    read: Callable[[Path], object]
    check: Callable[[Path], None] = lambda path: None
    slow: bool = False


# -- stores ---------------------------------------------------------------------------------------------


def _rows(start: int, stop: int) -> pa.Table:
    names = [f"person {i * 7919 % 1000}" for i in range(start, stop)]
    return pa.table(
        {"id": list(range(start, stop)), "name": names, "income": [float(i % 11) for i in range(start, stop)]}
    )


def _write_csv(path: Path, start: int, stop: int) -> None:
    from pyarrow import csv

    csv.write_csv(_rows(start, stop), path)


def _command(*arguments: object) -> Callable[[], None]:
    """Return a function that runs a command of `qkv` in this process."""

    def run() -> None:
        from qkv.cli.main import run

        code = run([str(argument) for argument in arguments])
        if code == 130:
            raise KeyboardInterrupt
        assert code == 0, f"qkv {' '.join(map(str, arguments))}: exit code {code}"

    return run


def _prepare_store(path: Path, seed: int, backend: str = "arrow") -> None:
    """Write a store after a random number of appends and deletions."""
    from qkv.database import Database

    draw = random.Random(seed)
    database = Database.create(path / "store", _rows(0, 20), "name", "income", backend=backend)
    start = 20
    for _ in range(draw.randrange(3, 20 if backend == "arrow" else 6)):
        if draw.random() < 0.15:
            database.delete(f"id % 13 = {draw.randrange(13)}")
        count = draw.choice([1, 5, 10, 40])
        database.append(_rows(start, start + count))
        start += count
    _write_csv(path / "more.csv", start, start + 30)


def _read_store(path: Path, name: str = "store") -> object:
    """Return the rows of the newest version; every version must be intact, and its rows as many as it says."""
    from qkv import store as stores

    if not stores.is_store(path / name):
        assert not (path / name).exists() or not any((path / name).iterdir()), "half a store"
        return None
    store = stores.open(path / name)
    damages = store.verify()
    assert damages == [], damages
    for version in store.versions():
        ids = store.at(version.number).to_table(["id"]).column("id").to_pylist()
        assert len(set(ids)) == len(ids) == version.rows, f"version {version.number}"
    return store.to_table(["id"]).column("id").to_pylist()


def _check_store(path: Path) -> None:
    """The next operations work, and what an interrupted process left is removed by a compaction."""
    from qkv.database import Database

    # The database, because rows of a store with an encoder need their vectors.
    database = Database.open(path / "store")
    before = len(database.store)
    database.append(_rows(10**6, 10**6 + 3))
    assert database.delete("id >= 1000000") == 3
    database.compact(keep=1)
    assert len(Database.open(path / "store").store) == before
    left = [file.name for file in path.rglob("*") if ".writing-" in file.name or ".part" in file.name]
    assert left == [], left
    assert sorted(entry.name for entry in path.iterdir() if entry.name.startswith(".")) == []


def _append_steps(path: Path, seed: int) -> list[Callable[[], object]]:
    from qkv import store as stores
    from qkv.database import Database

    draw = random.Random(seed)
    whole = Database.open(path / "store")
    start = 10**5

    def append(first: int, count: int) -> Callable[[], object]:
        # Another process appended before, or the same one.
        return lambda: stores.open(path / "store").append(_rows(first, first + count))

    steps: list[Callable[[], object]] = []
    for _ in range(4):
        count = draw.choice([1, 8, 10])
        steps.append(append(start, count))
        start += count
    steps.append(lambda: whole.append(_rows(start, start + 9)))
    steps.append(_command("store", "append", path / "store", path / "more.csv"))
    return steps


def _create_steps(path: Path, seed: int) -> list[Callable[[], object]]:
    options = [[], ["--encoder", "latent:3"], ["--score", "exact"]][seed % 3]
    return [_create(path, *options)]


def _create(path: Path, *options: str) -> Callable[[], None]:
    arguments = ["--key", "name", "--value", "income", *options]
    return _command("store", "create", path / "store", path / "more.csv", *arguments)


def _prepare_copy(path: Path, seed: int) -> None:
    """Write a store, and for every other seed a copy of another one, which is replaced."""
    from qkv.database import Database

    _prepare_store(path, seed)
    if seed % 2:
        Database.create(path / "copy", _rows(500, 520), "name", "income")
        (path / "copy.parquet").write_bytes(b"another file")


def _copy_steps(path: Path, seed: int) -> list[Callable[[], object]]:
    overwrite = ["--overwrite"] if seed % 2 else []
    return [_command("store", "copy", path / "store", path / "copy", *overwrite)]


def _export_steps(path: Path, seed: int) -> list[Callable[[], object]]:
    overwrite = ["--overwrite"] if seed % 2 else []
    return [_command("store", "export", path / "store", path / "copy.parquet", *overwrite)]


def _read_export(path: Path) -> object:
    from pyarrow import parquet

    file = path / "copy.parquet"
    if not file.exists() or file.read_bytes() == b"another file":
        return file.exists()
    return parquet.read_table(file).column("id").to_pylist()


def _check_copy(path: Path) -> None:
    """The next copy removes the hidden folder that a killed process left."""
    _command("store", "copy", path / "store", path / "copy", "--overwrite")()
    left = [entry.name for entry in path.iterdir() if entry.name.startswith(".")]
    assert left == [], left


def _damaging(backend: str = "arrow") -> Callable[[Path, int], None]:
    """Return a function that writes a store and damages some of its files."""

    def prepare(path: Path, seed: int) -> None:
        _prepare_store(path, seed, backend)
        draw = random.Random(seed)
        files = sorted(file for file in (path / "store").rglob("*") if file.is_file() and file.name != "writer.lock")
        for file in draw.sample(files, draw.choice([1, 1, 2, 3])):
            data = bytearray(file.read_bytes())
            if draw.random() < 0.2:
                file.unlink()
            elif draw.random() < 0.2:
                file.write_bytes(data[: draw.randrange(len(data))])
            else:
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
                file.write_bytes(data)

    return prepare


def _read_repaired(path: Path) -> object:
    """Return the rows of a store that was repaired completely."""
    from qkv import store as stores

    return "damaged" if stores.verify(path / "store").damages else _read_store(path)


def _repair_steps(path: Path, seed: int) -> list[Callable[[], object]]:
    return [_command("store", "repair", path / "store")]


def _answers(path: Path) -> object:
    from qkv.database import Database

    database = Database.open(path / "store", "income,id", "id", memory=1)
    return [database.ask((3.0, 20)).value, database.ask((5.0, 2), score="gaussian:2").value]


def _prepare_vectors(path: Path, seed: int) -> None:
    from qkv.database import Database

    draw = np.random.default_rng(seed)
    for number in range(3):
        rows = {"id": np.arange(40) + 40 * number, "key": draw.standard_normal((40, 32))}
        if number:
            Database.open(path / "store").append(rows)
        else:
            Database.create(path / "store", rows, "key", "id")


def _vector_answer(path: Path) -> object:
    from qkv.database import Database

    return Database.open(path / "store", memory=1).ask([1.0] * 32, score="dot", normalizer="topk:3").value


def _store(steps: Callable[[Path, int], Sequence[Callable[[], object]]], **options: object) -> Operation:
    return Operation(_prepare_store, steps, _read_store, _check_store, **options)  # type: ignore[arg-type]


def _on_lance(operation: Operation) -> Operation:
    def prepare(path: Path, seed: int) -> None:
        _prepare_store(path, seed, "lance")

    return Operation(prepare, operation.steps, operation.read, _check_store, slow=True)


def _check_repaired(path: Path) -> None:
    _check_store(path)
    assert _unchecked(path) == 0


def _unchecked(path: Path) -> int:
    from qkv import store as stores

    return stores.verify(path / "store").unchecked


_DELETE = _store(lambda path, seed: [_command("store", "delete", path / "store", f"id % 3 = {seed % 3}")])
_COMPACT = _store(
    lambda path, seed: [_command("store", "compact", path / "store", *[["--keep", "1"], ["--keep", "3"], []][seed % 3])]
)
_APPEND = _store(_append_steps)


# -- saved objects --------------------------------------------------------------------------------------


def _saving(target: str) -> Operation:
    """An object of the fuzzer is saved in the place of another one."""
    kind = TARGETS[target]

    def prepare(path: Path, seed: int) -> None:
        (path / "saved").mkdir()
        kind.make(path / "saved", seed, 1)

    def steps(path: Path, seed: int) -> list[Callable[[], object]]:
        return [lambda: kind.make(path / "saved", seed + 1, 0)]

    def check(path: Path) -> None:
        left = [file.name for file in path.rglob("*") if ".part" in file.name]
        assert left == [], left

    return Operation(prepare, steps, lambda path: kind.read(path / "saved"))


OPERATIONS: dict[str, Operation] = {
    "create": Operation(
        lambda path, seed: _write_csv(path / "more.csv", 0, 60), _create_steps, _read_store, _check_store
    ),
    "append": _APPEND,
    "delete": _DELETE,
    "compact": _COMPACT,
    "copy": Operation(
        _prepare_copy, _copy_steps, lambda path: [_read_store(path), _read_store(path, "copy")], _check_copy
    ),
    "repair": Operation(_damaging(), _repair_steps, _read_repaired, _check_store),
    "export": Operation(_prepare_copy, _export_steps, _read_export),
    "ask": Operation(
        _prepare_store, lambda path, seed: [lambda: _answers(path)], lambda path: [_read_store(path), _answers(path)]
    ),
    "compress": Operation(
        _prepare_vectors,
        lambda path, seed: [_command("store", "compress", path / "store")],
        lambda path: [_read_store(path), _vector_answer(path)],
    ),
    "index": _saving("index"),
    "join": _saving("join"),
    "table vectors": _saving("table vectors"),
    "estimator": _saving("estimator"),
    "key-value cache": _saving("key-value cache"),
    "Lance append": _on_lance(_APPEND),
    "Lance delete": _on_lance(_DELETE),
    "Lance compact": _on_lance(_COMPACT),
    "Lance create": Operation(
        lambda path, seed: _write_csv(path / "more.csv", 0, 60),
        lambda path, seed: [_create(path, "--backend", "lance")],
        _read_store,
        _check_store,
        slow=True,
    ),
    "Lance copy": Operation(
        lambda path, seed: _prepare_store(path, seed, "lance"),
        lambda path, seed: [_command("store", "copy", path / "store", path / "copy", "--backend", "lance")],
        lambda path: [_read_store(path), _read_store(path, "copy")],
        slow=True,
    ),
    "Lance repair": Operation(_damaging("lance"), _repair_steps, _read_repaired, _check_repaired, slow=True),
}
