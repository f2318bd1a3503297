"""What is chosen from the rows of a file is saved in the cache folder, and used only for the same file and options."""

import json
import os
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from qkv.core.checksums import digest
from qkv.core.untrusted_json import Fields
from qkv.database import Database, choice_cache, database
from qkv.database.choice_cache import ChoiceCache, cache_folder, read_calibration, write_calibration
from qkv.database.execute import base
from qkv.database.execute.uncertainty import Calibration
from qkv.database.keys import choose
from qkv.estimators.regression.local_scale import LocalScale
from qkv.testing.libraries import turn
from tests.effort import sample

LONG_AGO = 1_700_000_000


def write(path: Path, rows: int = 300, seed: int = 0) -> Path:
    draw = np.random.default_rng(seed)
    x = draw.uniform(0, 10, rows).round(3)
    lines = [f"{a:.3f},{np.sin(a) + draw.normal(0, 0.1):.4f},{'ab'[i % 2]}" for i, a in enumerate(x)]
    path.write_text("x,y,shop\n" + "\n".join(lines) + "\n")
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(choice_cache, "_FEWEST_ROWS", 100)
    return write(tmp_path / "rows.csv")


@pytest.fixture
def chosen(monkeypatch):
    """The list of what has been chosen from rows, in order."""
    out = []

    def recorded(name, function):
        def call(*args, **options):
            out.append(name)
            return function(*args, **options)

        return call

    for module, name in (
        (choose, "choose_bandwidth"),
        (choose, "nearest_distance_quantile"),
        (base, "calibrate"),
        (base, "comparison_note"),
    ):
        monkeypatch.setattr(module, name, recorded(name, getattr(module, name)))
    return out


def entries():
    return sorted(cache_folder().glob("*"))


def ask(file, query=3.5, key="x", where=None, aggregate="mean", **options):
    answer = Database.open(file, key=key, value="y", **options).ask(query, where=where, aggregate=aggregate)
    return answer.value, answer.standard_error, answer.prediction_interval, answer.notes, str(answer.plan)


def test_the_tests_have_a_cache_folder_of_their_own():
    home = Path.home()
    assert home not in cache_folder().parents
    assert Path(os.environ["QKV_CACHE"]) in cache_folder().parents


def test_the_folder_is_that_of_the_platform_unless_a_variable_names_one(monkeypatch):
    import platformdirs

    monkeypatch.delenv("QKV_CACHE")
    assert cache_folder() == Path(platformdirs.user_cache_dir("qkv", appauthor=False)) / "choices"
    monkeypatch.setenv("QKV_CACHE", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/choices")


def test_a_second_question_chooses_nothing_and_has_the_same_answer(file, chosen):
    first = ask(file)
    assert chosen == ["choose_bandwidth", "nearest_distance_quantile", "calibrate", "comparison_note"]
    content = {path.name: path.read_bytes() for path in entries()}
    assert len(content) == 4
    chosen.clear()
    assert ask(file) == first
    assert ask(file, 4.0) != first
    assert not chosen
    assert {path.name: path.read_bytes() for path in entries()} == content
    assert ask(file, cache=False) == first


def test_an_entry_states_its_identity_and_is_named_by_it(file):
    ask(file)
    for path in entries():
        entry = json.loads(path.read_bytes())
        assert entry["identity"]["files"] == [[str(file.resolve()), *choice_cache._state(str(file))]]
        assert entry["identity"]["options"]["key"] == ["x"]
        assert path.name == f"{digest(choice_cache._json(entry['identity']))}.json"
        assert entry["digest"] == digest(choice_cache._json(entry["content"]))


@pytest.mark.parametrize(
    "change",
    [
        {"where": "shop = 'a'"},
        {"key": "x,shop", "query": (3.5, "a")},
        {"aggregate": "local-linear"},
        {"delimiter": ","},
        *(pytest.param(each, marks=pytest.mark.long) for each in ({"where": "x > 2"}, {"fold": False})),
    ],
    ids=str,
)
def test_other_rows_columns_and_options_have_entries_of_their_own(file, chosen, change):
    ask(file)
    old = set(entries())
    chosen.clear()
    fresh = ask(file, **change, cache=False)
    chosen.clear()
    assert ask(file, **change) == fresh
    assert {"choose_bandwidth", "calibrate"} & set(chosen)
    assert set(entries()) > old
    chosen.clear()
    assert ask(file, **change) == fresh
    assert not chosen


@pytest.mark.parametrize("moment", [LONG_AGO, LONG_AGO + 5])
def test_a_changed_file_is_chosen_for_again(file, chosen, moment):
    ask(file)
    chosen.clear()
    write(file, seed=1)
    os.utime(file, (moment, moment))
    fresh = ask(file, cache=False)
    chosen.clear()
    assert ask(file) == fresh
    assert "choose_bandwidth" in chosen


def test_a_predicate_that_selects_the_same_rows_shares_the_entries(file, chosen):
    ask(file, where="shop = 'a'")
    chosen.clear()
    ask(file, where="shop <> 'b'")
    assert not chosen


def damages(entry: bytes):
    record = json.loads(entry)
    yield b""
    yield entry[: len(entry) // 2]
    yield b"[" * 100_000
    yield b"\xff" + entry[1:]
    yield entry.replace(b'"value":', b'"value":1', 1)
    yield json.dumps({**record, "digest": "0" * 64}).encode()
    other = {**record["identity"], "item": "another"}
    yield choice_cache._json({**record, "identity": other})
    for value in (-1.0, float("nan"), "0.5", None, 10**400):
        if "value" in record["content"]:
            content = {**record["content"], "value": value}
            yield choice_cache._json({**record, "content": content, "digest": digest(choice_cache._json(content))})


def test_damaged_entries_are_ignored_and_replaced(file, chosen):
    first = ask(file)
    whole = {path: path.read_bytes() for path in entries()}
    for number, (path, entry) in enumerate(whole.items()):
        for damaged in turn(list(damages(entry)), number, 3):
            path.write_bytes(damaged)
            chosen.clear()
            assert ask(file) == first
            assert len(chosen) == 1
            assert path.read_bytes() == entry


def test_an_entry_that_is_a_folder_or_a_folder_that_is_a_file_is_ignored(file, tmp_path):
    first = ask(file, cache=False)
    (tmp_path / "cache").write_text("no folder")
    assert ask(file) == first
    (tmp_path / "cache").unlink()
    ask(file)
    for path in entries():
        path.unlink()
        path.mkdir()
    assert ask(file) == first
    assert all(path.is_dir() for path in entries())


def test_a_file_that_was_modified_just_now_has_no_entries(file, chosen):
    os.utime(file, None)
    ask(file)
    later = time.time() + 3600
    os.utime(file, (later, later))
    ask(file)
    assert not cache_folder().exists()


def test_a_file_that_changes_while_it_is_read_has_no_entries(file, monkeypatch):
    read = database.read

    def read_and_change(*args):
        out = read(*args)
        write(file, seed=2)
        return out

    monkeypatch.setattr(database, "read", read_and_change)
    ask(file)
    assert not cache_folder().exists()


def test_small_files_other_sources_and_unnamed_scores_have_no_entries(file, tmp_path, monkeypatch):
    ask(write(tmp_path / "small.csv", rows=50))
    Database.open({"x": np.arange(200.0), "y": np.arange(200.0)}, key="x", value="y").ask(3.5)
    assert not cache_folder().exists()
    from qkv.scores import Gaussian

    Database.open(file, key="x", value="y").ask(3.5, score=Gaussian(0.3))
    assert len(entries()) == 1
    assert "distance in own units" in entries()[0].read_text()


def test_the_oldest_entries_are_removed(file, monkeypatch):
    monkeypatch.setattr(choice_cache, "_MOST_ENTRIES", 4)
    for row in range(3):
        ask(file, where=f"x > {row}")
    assert len(entries()) == 4


def growing(path: Path) -> Path:
    draw = np.random.default_rng(0)
    x = draw.random(300)
    lines = [f"{a:.4f},{a * b:.4f},1.0" for a, b in zip(x, draw.normal(size=300), strict=True)]
    path.write_text("x,y,one\n" + "\n".join(lines) + "\n")
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


@pytest.mark.parametrize("key", sample(["x,one", "x"], 2))
def test_the_scale_of_intervals_along_the_key_is_saved(file, chosen, tmp_path, key):
    rows = growing(tmp_path / "growing.csv")
    queries = [(0.1, 0.9), ((0.1, 1.0), (0.9, 1.0))][key == "x,one"]
    first = [ask(rows, query, key=key) for query in queries]
    chosen.clear()
    assert [ask(rows, query, key=key) for query in queries] == first
    assert not chosen
    narrow, wide = (np.ptp(answer[2]) for answer in first)
    assert wide > 3 * narrow
    entry = next(path for path in entries() if b"logs" in path.read_bytes())
    record = json.loads(entry.read_bytes())
    for name, value in (("points", [1.0]), ("logs", []), ("widths", [-1.0]), ("widths", [])):
        content = {**record["content"], name: value}
        changed = {**record, "content": content, "digest": digest(choice_cache._json(content))}
        entry.write_bytes(choice_cache._json(changed))
        assert ask(rows, queries[0], key=key) == first[0]
        assert chosen == ["calibrate"]
        chosen.clear()


@pytest.fixture(params=["512 MiB", 1], ids=["in memory", "streamed"])
def store(request, tmp_path, monkeypatch):
    """Return a function that opens a store of 300 rows, and asks it."""
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(choice_cache, "_FEWEST_ROWS", 100)
    path = tmp_path / "rows"
    Database.create(path, write(tmp_path / "rows.csv"), "x", "y")

    def ask_store(query=3.5, version=None, cache=True, **options):
        opened = Database.open(path, memory=request.param, cache=cache)
        answer = (opened if version is None else opened.at(version)).ask(query, **options)
        return answer.value, answer.standard_error, answer.prediction_interval, answer.notes

    ask_store.path = path
    return ask_store


def test_a_store_that_is_opened_again_chooses_nothing_and_has_the_same_answer(store, chosen):
    for options in ({}, {"where": "shop = 'a'"}, {"aggregate": "local-linear"}, {"score": "laplace"}):
        chosen.clear()
        first = store(**options)
        assert chosen
        chosen.clear()
        assert store(**options) == first
        assert not chosen
        assert store(**options, cache=False) == first
        assert chosen
    assert not cache_folder().exists()


def test_every_version_of_a_store_has_choices_of_its_own(store, chosen):
    opened = Database.open(store.path)
    first = store()
    assert opened.delete("x < 5") > 0
    chosen.clear()
    second = store(7.5)
    assert "choose_bandwidth" in chosen
    assert second == store(7.5, cache=False)
    chosen.clear()
    assert store(version=1) == first
    assert store(7.5) == second
    opened.append({"x": np.linspace(5, 10, 50), "y": np.linspace(5, 10, 50), "shop": ["a"] * 50})
    assert not chosen
    third = store(7.5)
    assert "choose_bandwidth" in chosen
    assert third == store(7.5, cache=False)
    assert third[0] != second[0]


def test_a_copied_store_uses_its_choices_and_another_store_in_its_place_does_not(store, chosen, tmp_path):
    first = store()
    shutil.copytree(store.path, tmp_path / "copy")
    chosen.clear()
    assert Database.open(tmp_path / "copy").ask(3.5).value == pytest.approx(first[0])
    notes = tmp_path / "notes"
    shutil.copytree(store.path / "notes", notes)
    shutil.rmtree(store.path)
    Database.create(store.path, write(tmp_path / "others.csv", seed=5), "x", "y")
    shutil.copytree(notes, store.path / "notes", dirs_exist_ok=True)
    chosen.clear()
    assert store() == store(cache=False) != first
    assert "calibrate" in chosen


def test_a_store_with_damaged_rows_saves_no_choices(tmp_path, monkeypatch):
    monkeypatch.setattr(choice_cache, "_FEWEST_ROWS", 100)
    Database.create(tmp_path / "s", write(tmp_path / "rows.csv"), "x", "y")
    Database.open(tmp_path / "s").append(write(tmp_path / "more.csv", seed=1))
    largest = max((tmp_path / "s" / "rows").iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-600])
    assert Database.open(tmp_path / "s", damaged="skip").ask(3.5).found
    assert not list(tmp_path.glob("s/notes/*.json"))


def test_a_store_that_is_removed_while_it_is_asked_is_not_created_again(store, chosen):
    opened = Database.open(store.path)
    opened.column("x")
    shutil.rmtree(store.path)
    assert opened.ask(3.5).found
    assert not store.path.exists()


PROCESS = """
import sys
from qkv.database.choice_cache import ChoiceCache
cache = ChoiceCache.of_files([sys.argv[1]], {})
for i in range(300):
    assert cache.with_options(i=i % 7).number("item", lambda: float(i % 7)) == i % 7
"""


def test_processes_that_write_at_once_leave_whole_entries(file):
    command = [sys.executable, "-c", PROCESS, str(file)]
    started = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in started] == [0, 0]
    assert len(entries()) == 7
    cache = ChoiceCache.of_files([file], {})

    def fail():
        raise AssertionError("an entry is missing")

    assert [cache.with_options(i=i).number("item", fail) for i in range(7)] == list(range(7))


def test_a_package_that_runs_from_its_folder_without_being_installed_names_its_choices(monkeypatch):
    installed = metadata.version

    def version(name):
        if name == "qkv":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    choice_cache._versions.cache_clear()
    monkeypatch.setattr(metadata, "version", version)
    try:
        assert choice_cache._versions()["qkv"] == "(not installed; running from source)"
    finally:
        choice_cache._versions.cache_clear()


def test_the_local_scale_of_a_constant_column_is_read_as_it_was_written():
    local = LocalScale(np.array([[0.0, 3.0], [1.0, 3.0]]), np.array([0.1, 0.4]), np.array([0.5, np.inf]))
    written = json.loads(json.dumps(write_calibration(Calibration(0.9, 1.1, 2, local))))
    again = read_calibration(Fields(written, "entry")).local
    assert [x.tolist() for x in (again.points, again.logs, again.bandwidth)] == [
        x.tolist() for x in (local.points, local.logs, local.bandwidth)
    ]
