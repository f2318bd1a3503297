"""A new version of the store is used as soon as it is ready, and answers name the version that they used."""

import pytest

from qkv.database import Database, Queryable
from qkv.serve import ServedStore
from qkv.serve.questions import Question

from .conftest import sender

MORE = {"years": [2.0] * 90, "pay": [100.0] * 90, "city": ["z"] * 90}
QUESTION = {"query": 2.0, "score": "boxcar:0.5"}


def test_answers_are_those_of_the_named_version_before_and_after_an_append(store):
    with ServedStore(store, refresh=0) as served:
        send = sender(served)
        before = send("POST", "/ask", json=QUESTION)
        Database.open(store.store.path).append(MORE)
        assert send("POST", "/ask", json=QUESTION).json() == before.json()
        assert served.refresh()
        after = send("POST", "/ask", json=QUESTION)
        assert not served.refresh()
    assert (before.json()["version"], after.json()["version"]) == (1, 2)
    assert (before.headers["qkv-version"], after.headers["qkv-version"]) == ("1", "2")
    assert before.json()["answers"][0]["value"] == 12.0
    assert after.json()["answers"][0]["value"] == pytest.approx((12 + 90 * 100) / 91)


@pytest.mark.parametrize("key", ["city", "years", ["years", "city"]])
def test_the_keys_that_are_asked_before_the_first_question_are_answered(tmp_path, monkeypatch, key):
    table = {"years": [None, *range(90)], "pay": [0.0] * 91, "city": [None, *(f"town of {n} hills" for n in range(90))]}
    stored = Database.create(tmp_path / "store", table, key, "pay")
    asked, ask = [], Queryable.ask
    monkeypatch.setattr(Queryable, "ask", lambda *given, **options: asked.append(ask(*given, **options)) or asked[-1])
    with ServedStore(stored, refresh=0):
        (answer,) = asked
    assert len(answer.entries) > 1
    assert all(entry.found for entry in answer.entries)


def test_a_version_whose_rows_were_removed_is_replaced_by_the_newest_one(store):
    store.memory = 1  # rows are read by each scan
    with ServedStore(store, refresh=0) as served:
        writer = Database.open(store.store.path)
        writer.append(MORE)
        writer.compact(keep=1)
        answered = served.submit(Question((2.0,), True, options=(("score", "boxcar:0.5"),))).result()
    assert answered.answer.found
    assert answered.version in (1, 3)


def test_a_version_that_cannot_be_opened_leaves_the_old_one_in_use(store):
    with ServedStore(store, refresh=0) as served:
        Database.open(store.store.path).append(MORE)
        newest = max(store.store.path.glob("**/*2*.json"), key=lambda path: path.stat().st_mtime)
        content = newest.read_bytes()
        newest.write_bytes(content[: len(content) // 2])
        assert not served.refresh()
        assert served.problem
        send = sender(served)
        assert send("GET", "/health").json() == {"status": "stale", "version": 1}
        assert send("POST", "/ask", json=QUESTION).json()["version"] == 1
        newest.write_bytes(content)
        assert served.refresh()
        assert send("GET", "/health").json() == {"status": "ok", "version": 2}
