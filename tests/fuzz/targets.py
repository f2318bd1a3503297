"""Saved files to damage: how each kind is made, and what a reader of the intact files answers."""

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

__all__ = ["TARGETS", "Target", "as_text"]

_NAMES = ["Ada Lovelace", "Alan Turing", "Grace Hopper", "Edsger Dijkstra", "Barbara Liskov", "Tony Hoare", "Größe Ø"]
_TEXTS = ["a golden ring", "shadows in the den", "the ship sails at dawn", "gold and silver", "a dark den of shadows"]


@dataclass(frozen=True)
class Target:
    """A kind of saved files.

    Attributes:
        make: writes the files into a folder, given a seed and how many of its writes are made; fewer writes give the
            files of an earlier time.
        read: reads everything that the files say, as a value that is compared as text.
        checked: whether the files have checksums, so that damage may not change what is read.
        subset: whether the reader is allowed to leave out rows of damaged files.
        single: whether everything is in one file, so that another intact file in its place is what the user meant.
        slow: whether the reader takes tenths of a second, so that a tenth of the faults must do.
    """

    make: Callable[[Path, int, int], None]
    read: Callable[[Path], object]
    checked: bool = True
    subset: bool = False
    slow: bool = False
    single: bool = False


def _people(seed: int, start: int, stop: int) -> pa.Table:
    generator = np.random.default_rng([seed, start])
    names = [f"{_NAMES[i % len(_NAMES)]} {i}" if i % 5 else None for i in range(start, stop)]
    vectors = generator.normal(size=(stop - start, 4)).astype(np.float32)
    return pa.table(
        {
            "name": names,
            "city": pa.array([f"city {i % 3}" for i in range(start, stop)]).dictionary_encode(),
            "income": generator.integers(1000, 9000, stop - start).astype(np.float64),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 4),
            "tags": pa.array([[i, i + 1] if i % 4 else None for i in range(start, stop)], pa.list_(pa.int32())),
        }
    )


def _answer(database: object, query: object, **options: object) -> object:
    answer = database.ask(query, **options)  # type: ignore[attr-defined]
    return [answer.value, answer.perplexity, answer.reason, [(row.record, row.weight) for row in answer.rows]]


# -- stores ---------------------------------------------------------------------------------------------


def _store(path: Path, seed: int, writes: int, backend: str = "arrow") -> None:
    from qkv.database import Database

    database = Database.create(path / "store", _people(seed, 0, 12), "name", "income", backend=backend)
    if writes > 0:
        database.append(_people(seed, 12, 30))
    if writes > 1:
        database.delete("income < 3000")
    if writes > 2:
        database.append(_people(seed, 30, 31))
    for memory in (1, "512 MiB"):
        opened = Database.open(path / "store", "vector", "income", memory=memory)
        opened.ask([0.1, 0.2, 0.3, 0.4])  # writes the notes


def _read_store(path: Path, damaged: str = "refuse") -> object:
    from qkv.database import Database

    database = Database.open(path / "store", damaged=damaged)
    rows = database.store.to_table().to_pylist()
    if damaged == "skip":
        return rows
    streamed = Database.open(path / "store", "vector", "income", memory=1)
    return [
        rows,
        [(version.number, version.operation, version.rows) for version in database.versions()],
        _answer(database, "Alan Turing 1"),
        _answer(streamed, [0.1, 0.2, 0.3, 0.4]),
        _answer(streamed, [0.1, 0.2, 0.3, 0.4], score="cosine"),
    ]


def _encoded_store(path: Path, seed: int, writes: int) -> None:
    from qkv.database import Database

    texts = pa.table({"text": _TEXTS * 2, "label": [f"label {seed} {i}" for i in range(10)]})
    database = Database.create(path / "store", texts, "text", "label", encoder="latent:3")
    if writes > 1:
        database.append(texts.slice(2, 3))


def _read_encoded_store(path: Path) -> object:
    from qkv.database import Database

    return _answer(Database.open(path / "store"), "a golden den")


# -- models ---------------------------------------------------------------------------------------------


def _index(path: Path, seed: int, writes: int, encoder: str = "latent") -> None:
    from qkv.search import Document, Index

    for write in range(1 + writes):
        texts = [Document(f"{i}", f"{text} {seed} {write}") for i, text in enumerate(_TEXTS)]
        Index.from_texts(texts, encoder=encoder).save(path / "index")


def _read_index(path: Path) -> object:
    from qkv.search import Index

    index = Index.open(path / "index")
    found = [index.search(query) for query in ("golden ring", "den")]
    return [[(hit.text, hit.document, hit.title, hit.score) for hit in hits] for hits in found]


def _table_vectors(path: Path, seed: int, writes: int) -> None:
    from qkv.encoders import TableVectors

    table = _people(seed, 0, 12 + writes).select(["name", "city", "income", "vector"])
    TableVectors().fit(table).save(path / "table.npz")


def _read_table_vectors(path: Path) -> object:
    from qkv.encoders import TableVectors

    table = _people(0, 3, 9).select(["name", "city", "income", "vector"])
    return TableVectors.load(path / "table.npz").encode(table).tolist()


def _join(path: Path, seed: int, writes: int) -> None:
    from qkv.join import SoftJoin

    left = pa.table({"name": [name + str(seed) for name in _NAMES], "year": list(range(1900, 1907))})
    right = left.slice(writes)
    join = SoftJoin("name,year")
    join.fit(left, right)
    join.save(path / "people.model")


def _read_join(path: Path) -> object:
    from qkv.join import SoftJoin

    left = pa.table({"name": _NAMES, "year": list(range(1900, 1907))})
    found = SoftJoin.load(path / "people.model").join(left, left)
    return found.table.to_pylist()


def _estimator(path: Path, seed: int, writes: int, classes: bool = False) -> None:
    from qkv.estimators import AttentionClassifier, AttentionRegressor

    table = _people(seed, 0, 24 + writes).select(["income", "city"])
    quick = {"max_steps": 2, "n_estimators": 2, "hidden": 4, "n_components": 2, "random_state": seed}
    if classes:
        AttentionClassifier("diagonal", **quick).fit(table, table["city"].to_pylist()).save(path / "a.model")
    else:
        AttentionRegressor(**quick).fit(table, np.arange(len(table)) % 5.0).save(path / "a.model")


def _read_regressor(path: Path) -> object:
    from qkv.estimators import AttentionRegressor

    table, model = _people(5, 0, 6).select(["income", "city"]), AttentionRegressor.load(path / "a.model")
    return [model.predict(table).tolist(), model.explain_rows(table, 2).rows.tolist()]


def _read_classifier(path: Path) -> object:
    from qkv.estimators import AttentionClassifier

    table = _people(5, 0, 6).select(["income", "city"])
    return AttentionClassifier.load(path / "a.model").predict_proba(table).tolist()


def _cache(path: Path, seed: int, writes: int, uneven: bool = False) -> None:
    import torch

    from qkv.nn import KeyValueCache

    torch.manual_seed(seed)
    cache = KeyValueCache(chunk=2, int8=not uneven, lengths=torch.tensor([3, 1]) if uneven else None)
    for _ in range(1 + writes):
        cache.append(torch.randn(2, 1, 3, 4), torch.randn(2, 1, 3, 4))
    cache.save(path / "cache.safetensors")


def _read_cache(path: Path) -> object:
    import torch

    from qkv.nn import KeyValueCache, MultiHeadAttention

    cache = KeyValueCache.load(path / "cache.safetensors")
    torch.manual_seed(0)
    with torch.no_grad():
        answer = MultiHeadAttention(4, 1)(torch.ones(2, 1, 4), cache=cache)
    return [repr(cache), answer.tolist()]


def _times(path: Path, seed: int, writes: int) -> None:
    from qkv.plan.time_model import WORK
    from qkv.tuning.fit import save_table

    save_table({f"kernel {n}": [float(seed + n)] * len(WORK) for n in range(3 + writes)}, path / "times.json")


def _read_times(path: Path) -> object:
    from qkv.plan.time_model import load_table

    before = os.environ.get("QKV_CACHE")
    os.environ["QKV_CACHE"] = str(path)
    try:
        load_table.cache_clear()
        return len(load_table()) > 0
    finally:
        load_table.cache_clear()
        if before is None:
            del os.environ["QKV_CACHE"]
        else:
            os.environ["QKV_CACHE"] = before


# -- tables ---------------------------------------------------------------------------------------------


def _arrow(path: Path, seed: int, writes: int) -> None:
    from pyarrow import feather

    table = _people(seed, 0, 3 + writes)
    with pa.ipc.new_file(str(path / "people.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pa.OSFile(str(path / "stream.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    feather.write_feather(table, str(path / "packed.feather"), compression="lz4")


def _feather(path: Path, seed: int, writes: int) -> None:
    from pyarrow import feather

    table = _people(seed, 0, 3 + writes).select(["name", "income"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the version is deprecated
        feather.write_feather(table, str(path / "first.feather"), version=1)


def _read_arrow(path: Path) -> object:
    from qkv.database import Database

    for file in sorted(path.iterdir()):
        database = Database.open(file, "name", "income")
        database.ask("Alan Turing 1")
        database.table.to_pylist()
        if "city" in database.table.column_names:
            Database.open(file, "city,income", "name").ask(("city 1", 2000.0))
    return None


def _lance(path: Path, seed: int, writes: int) -> None:
    _store(path, seed, writes, "lance")


TARGETS: dict[str, Target] = {
    "store": Target(_store, _read_store),
    "store that skips": Target(_store, lambda path: _read_store(path, "skip"), subset=True),
    "encoded store": Target(_encoded_store, _read_encoded_store),
    "index": Target(_index, _read_index, single=True),
    "sparse index": Target(lambda path, seed, writes: _index(path, seed, writes, "tfidf"), _read_index, single=True),
    "table vectors": Target(_table_vectors, _read_table_vectors, single=True),
    "join": Target(_join, _read_join, single=True),
    "estimator": Target(_estimator, _read_regressor, single=True),
    "classifier": Target(
        lambda path, seed, writes: _estimator(path, seed, writes, True), _read_classifier, single=True
    ),
    "key-value cache": Target(_cache, _read_cache, single=True),
    "uneven cache": Target(lambda path, seed, writes: _cache(path, seed, writes, True), _read_cache, single=True),
    "tuned times": Target(_times, _read_times),
    "arrow": Target(_arrow, _read_arrow, checked=False),
    "feather 1": Target(_feather, _read_arrow, checked=False, slow=True),
    "lance": Target(_lance, _read_store),
}


def as_text(value: object) -> str:
    """Return a value that a reader returned as text, in which equal numbers are equal texts."""
    return json.dumps(value, default=str, sort_keys=True)
