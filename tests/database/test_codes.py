"""Codes of keys in stores: bounds that no row violates, and answers that are those of the exact scan."""

import gzip
import os
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from qkv import masks, normalizers, scores
from qkv.database import Database
from qkv.database.execute import code_scan
from qkv.database.execute.block_scan import excluded_rows
from qkv.database.execute.code_scan import CertifiedRows, CodeScan, VectorCodes
from qkv.database.execute.row_reader import RowTile
from qkv.database.execute.scan import VectorLogits, VectorNorms
from qkv.encoders.columns import Column
from qkv.errors import DataError, OptionError
from qkv.store import Block

WIDTH = 32
TOLERANCES = 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6
TEMPERATURES = 1e-3, 1e-2, 0.05, 0.3, 1.0, 10.0


def _normal(draw, n, width):
    return draw.standard_normal((n, width))


def _clusters(draw, n, width):
    return draw.standard_normal((8, width))[draw.integers(0, 8, n)] + 0.1 * draw.standard_normal((n, width))


def _words(draw, n, width):
    """Vectors as those of words: a common direction, a few strong components, and norms that fall with the rank."""
    spectrum = 1 / np.arange(1, width + 1)
    vectors = draw.standard_normal((n, width)) * spectrum + 0.5 * spectrum
    return vectors * (1 + 3 / np.sqrt(np.arange(1, n + 1)))[:, None]


def _dominant(draw, n, width):
    keys = 0.01 * draw.standard_normal((n, width))
    keys[draw.integers(n)] = draw.standard_normal(width)
    return keys


def _huge(draw, n, width):
    keys = draw.standard_normal((n, width))
    keys[draw.integers(0, n, 3)] *= 1e9
    return keys


KEYS = {
    "normal": _normal,
    "clusters": _clusters,
    "words": _words,
    "equal": lambda draw, n, width: np.tile(draw.standard_normal(width), (n, 1)),
    "zero": lambda draw, n, width: np.zeros((n, width)),
    "some zero": lambda draw, n, width: _normal(draw, n, width) * (draw.random((n, 1)) < 0.5),
    "huge": _huge,
    "dominant": _dominant,
    "far": lambda draw, n, width: -np.abs(draw.standard_normal((n, width))) - 3,
    "tiny": lambda draw, n, width: 1e-9 * _normal(draw, n, width),
    "norms of twelve orders": lambda draw, n, width: _normal(draw, n, width) * 10 ** draw.uniform(-6, 6, (n, 1)),
    "sparse": lambda draw, n, width: _normal(draw, n, width) * (draw.random((n, width)) < 0.1),
    "one component": lambda draw, n, width: np.eye(width)[draw.integers(0, width, n)],
}
if "QKV_DATA" in os.environ:

    @cache
    def _word_vectors() -> np.ndarray:
        with gzip.open(Path(os.environ["QKV_DATA"]) / "vectors" / "googlenews8k_300d_f16.npy.gz") as file:
            return np.load(file).astype(np.float64)

    def _real(draw, n, width):
        return _word_vectors()[draw.integers(0, len(_word_vectors()), n)][:, draw.permutation(300)[:width]]

    KEYS["vectors of words"] = _real

NORMALIZERS = (
    normalizers.TopK(1),
    normalizers.TopK(7),
    normalizers.Hard(),
    normalizers.Sparsemax(),
    normalizers.Entmax(),
)


def _draw_case(seed: int, folder: Path) -> None:
    """Compare the rows that codes prove to have no weight with weights in float64."""
    draw = np.random.default_rng(seed)
    kind = list(KEYS)[seed % len(KEYS)]
    n, width, count = int(draw.integers(1, 700)), int(draw.integers(1, 80)), int(draw.choice([1, 3, 20]))
    dtype = draw.choice([np.float32, np.float32, np.float64])
    keys = KEYS[kind](draw, n, width).astype(dtype)
    queries = keys[draw.integers(0, n, count)] + draw.choice([0, 0.01, 1]) * draw.standard_normal((count, width))
    cosine = draw.random() < 0.5
    if draw.random() < 0.7:
        tolerance, temperature = draw.choice(TOLERANCES), draw.choice(TEMPERATURES)
        normalizer = normalizers.Softmax(temperature=float(temperature), sink=draw.choice([None, 0.5], p=[0.8, 0.2]))
    else:
        tolerance, normalizer = 0.0, draw.choice(NORMALIZERS)
    excluded = draw.random(n) < draw.choice([0, 0.3])
    found = _certify(folder, keys, queries, cosine, normalizer, tolerance, excluded)
    if found is None:  # a vector that codes cannot hold
        return
    exact, query = keys.astype(np.float64), queries.astype(np.float64)
    score = scores.Cosine() if cosine else scores.Dot()
    logits = np.where(excluded, -np.inf, np.asarray(score(query, exact)))
    weights = np.asarray(normalizer.weights(logits))
    left_out = np.delete(weights, found.rows, axis=1).sum(axis=1)
    case = f"seed {seed}: {kind}, {n} × {width}, {normalizer}, tolerance {tolerance}"
    assert (left_out <= found.omitted * (1 + 1e-9) + 1e-300).all(), f"{case}: {left_out.max()} left out"
    assert (found.omitted <= tolerance).all(), f"{case}: {found.omitted.max()} is more than the tolerance"


def _certify(folder, keys, queries, cosine, normalizer, tolerance, excluded) -> CertifiedRows | None:
    flat = pa.array(np.ascontiguousarray(keys).reshape(-1))
    table = pa.table({"key": pa.FixedSizeListArray.from_arrays(flat, keys.shape[1])})
    step = -(-len(keys) // 2)
    block = Block("rows", table)
    tiles = [RowTile(i, table.slice(i, step), block, i, folder) for i in range(0, len(keys), step)]
    column = Column.from_table(table, "key", False)
    score = scores.Cosine() if cosine else scores.Dot()
    logits = VectorLogits(score, column, queries, VectorNorms())
    scan = CodeScan(logits, normalizer, VectorCodes(), len(keys), float(tolerance))
    if not scan.usable:
        return None
    return scan.find(
        lambda: tiles, lambda tile: excluded_rows(~excluded[tile.number : tile.number + tile.table.num_rows])
    )


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read codes however many rows have to be read exactly."""
    monkeypatch.setattr(code_scan, "_MOST", dict.fromkeys(code_scan._MOST, (np.inf, np.inf)))
    monkeypatch.setattr(code_scan, "_LEAST_WIDTH", 1)


@pytest.mark.parametrize("part", range(4))
def test_no_row_left_out_has_more_weight_than_its_bound(part: int, tmp_path: Path, always: None) -> None:
    for seed in range(part, 120, 4):
        (folder := tmp_path / str(seed)).mkdir()
        _draw_case(seed, folder)


@pytest.mark.long
def test_no_row_left_out_has_more_weight_than_its_bound_in_ten_thousand_cases(tmp_path: Path, always: None) -> None:
    for seed in range(1000, 11_000):
        (folder := tmp_path / str(seed)).mkdir()
        _draw_case(seed, folder)


# -- stores -------------------------------------------------------------------------------------------


@pytest.fixture(name="store")
def _store(tmp_path: Path, always: None) -> Database:
    draw = np.random.default_rng(0)
    return Database.create(tmp_path / "store", _rows(draw, 600), "key", "value", memory="1 KiB")


def _rows(draw: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    keys = _clusters(draw, n, WIDTH).astype(np.float32)
    return {"key": keys, "value": draw.standard_normal(n), "number": np.arange(n)}


def _asked(store: Database, tolerance: float = 0.0, **options: object) -> list[tuple[float, list[int]]]:
    query = store.store.to_table(["key"]).column("key").to_pylist()[::97]
    answer = store.ask(query, tolerance=tolerance, **options)
    assert bool(answer.plan.codes) == bool(VectorCodes.saved(store.store.cache_folder)), answer.plan
    return [(one.value, [row.index for row in one.rows]) for one in answer]


def _same(found: object, exact: object) -> None:
    assert [rows for _, rows in found] == [rows for _, rows in exact]
    assert [value for value, _ in found] == pytest.approx([value for value, _ in exact], abs=1e-12)


CALLS = {
    "cosine": {"score": "cosine", "normalizer": "topk:5"},
    "dot": {"score": "dot", "normalizer": "topk:5"},
    "sparse weights": {"score": "dot", "normalizer": "entmax"},
    "predicate": {"score": "cosine", "normalizer": "topk:5", "where": "number % 3 = 0"},
    "mask": {"score": "dot", "normalizer": "hard", "mask": masks.AllowedKeys(np.arange(600) % 2 == 0)},
}


@pytest.mark.parametrize("call", CALLS)
def test_answers_of_a_compressed_store_are_those_of_all_rows(store: Database, call: str) -> None:
    exact = _asked(store, **CALLS[call])
    store.compress()
    _same(_asked(store, **CALLS[call]), exact)


def test_answers_remain_right_after_append_delete_and_compact(store: Database, tmp_path: Path) -> None:
    store.compress()
    for change in ("append", "delete", "append", "compact"):
        if change == "append":
            store.append(_rows(np.random.default_rng(1), 150))
        elif change == "delete":
            assert store.delete("number % 7 = 3") > 0
        else:
            store.compact()
        whole = store.copy(tmp_path / "whole", overwrite=True)
        for call in ("cosine", "sparse weights", "predicate"):
            _same(_asked(store, **CALLS[call]), _asked(whole, **CALLS[call]))


def test_a_softmax_leaves_out_no_more_weight_than_its_tolerance_and_says_how_much(store: Database) -> None:
    call = {"score": "dot", "normalizer": normalizers.Softmax(temperature=0.5)}
    exact = _asked(store, **call)
    store.compress()
    query = store.store.to_table(["key"]).column("key").to_pylist()[::97]
    answer = store.ask(query, tolerance=1e-2, **call)
    span = 10  # of the values
    assert any(0 < one.omitted <= 1e-2 for one in answer)
    assert any("left out: rows with at most" in note for one in answer for note in one.remarks)
    assert "read exactly" in str(answer.plan)
    for one, (value, _) in zip(answer, exact, strict=True):
        assert abs(one.value - value) <= one.omitted * span + 1e-12
    # Without a tolerance all rows count, and none is left out.
    answer = store.ask(query, **call)
    assert [one.value for one in answer] == pytest.approx([value for value, _ in exact], abs=1e-12)
    assert (answer.plan.codes, set(answer.omitted)) == ("", {0.0})


def test_rows_without_a_value_have_no_weight_in_a_compressed_store(tmp_path: Path, always: None) -> None:
    rows = _rows(np.random.default_rng(0), 300)
    values = [None if i % 5 == 0 else float(i) for i in range(300)]
    store = Database.create(tmp_path / "store", {**rows, "value": values}, "key", "value", memory="1 KiB")
    exact = _asked(store, **CALLS["dot"])
    store.compress()
    _same(_asked(store, **CALLS["dot"]), exact)


def test_damaged_codes_are_made_again(store: Database) -> None:
    store.compress()
    exact = _asked(store, **CALLS["dot"])
    (file,) = VectorCodes.saved(store.store.cache_folder)
    data = bytearray(file.read_bytes())
    data[-2000] ^= 255
    file.write_bytes(data)
    _same(_asked(Database.open(store.store.path, memory="1 KiB"), **CALLS["dot"]), exact)
    assert file.read_bytes()[-2000] != data[-2000]


def test_vectors_with_a_missing_number_are_compared_without_codes(tmp_path: Path, always: None) -> None:
    rows = _rows(np.random.default_rng(0), 100)
    keys = [None if i == 4 else key for i, key in enumerate(rows["key"].tolist())]
    kind = pa.list_(pa.float32(), WIDTH)
    table = pa.table({"key": pa.array(keys, kind), "value": rows["value"]})
    store = Database.create(tmp_path / "store", table, "key", "value", memory="1 KiB")
    exact = store.ask(keys[7], score="dot", normalizer="topk:3")
    store.compress()
    found = store.ask(keys[7], score="dot", normalizer="topk:3")
    assert (found.value, found.plan.codes) == (exact.value, "")


def test_a_library_whose_products_are_cut_off_is_not_used(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    multiply = code_scan._multiply
    monkeypatch.setattr(code_scan, "_multiply", lambda *sides: multiply(*sides).clamp(-(2**15), 2**15 - 1))
    code_scan.multiplies_codes.cache_clear()
    assert not code_scan.multiplies_codes(WIDTH)
    store.compress()
    assert store.ask([1.0] * WIDTH, **CALLS["dot"]).plan.codes == ""
    code_scan.multiplies_codes.cache_clear()


def test_where_most_rows_have_weight_all_rows_are_compared(tmp_path: Path) -> None:
    rows = _rows(np.random.default_rng(0), 3000)
    store = Database.create(tmp_path / "store", rows, "key", "value", memory="1 KiB")
    call = {"score": "dot", "normalizer": normalizers.Softmax(temperature=100.0), "tolerance": 1e-3}
    exact = store.ask(rows["key"][:3].tolist(), **call)
    store.compress()
    found = store.ask(rows["key"][:3].tolist(), **call)
    assert (found.value, found.plan.codes, found.omitted) == (exact.value, "", [0.0] * 3)


def test_only_stores_of_vectors_in_files_are_compressed(tmp_path: Path) -> None:
    store = Database.create(tmp_path / "numbers", {"key": [1.0], "value": [2.0]}, "key", "value")
    with pytest.raises(DataError, match="must be one column of vectors of floats, got double"):
        store.compress()
    pytest.importorskip("lance")
    rows = _rows(np.random.default_rng(0), 10)
    store = Database.create(tmp_path / "lance", rows, "key", "value", backend="lance")
    with pytest.raises(DataError, match="must be in Arrow files"):
        store.compress()


@pytest.mark.parametrize("tolerance", [-1e-9, 1.0, float("nan"), "much", None])
def test_a_tolerance_is_a_share(store: Database, tolerance: object) -> None:
    with pytest.raises(OptionError, match="tolerance must be a number from 0 to below 1"):
        store.ask([1.0] * WIDTH, tolerance=tolerance)
