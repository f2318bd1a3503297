"""Requests that cost much do not delay others for longer than a block, end when nobody waits, and leave no memory."""

import asyncio
import json
import threading
import time

import numpy as np
import pytest

from qkv.core.progress import checkpoint
from qkv.database import Database
from qkv.database.execute.in_memory import InMemoryExecutor
from qkv.errors import OptionError
from qkv.serve import Limits, ServedStore, create_app, served_store
from qkv.serve.questions import Question, Work, parse_json_body, read_question, read_search
from qkv.serve.served_store import _THREADS, ScanQueue

from . import hostile
from .conftest import PAY, run_async, sender


class Turns:
    """A queue whose scans run until an event, with checkpoints, and note which of them ran to the end."""

    def __init__(self):
        self.ended, self.go, self.checks = [], threading.Event(), 0
        self.queue = ScanQueue(self.run)

    def run(self, requests):
        while requests[0].queries[0] > 0 and not self.go.is_set():
            time.sleep(0.001)
            self.checks += 1
            checkpoint()
        self.ended.append(requests[0].queries[0])
        return [len(request) for request in requests]

    def start(self, number):
        """Submit a scan that does not end, in a group of its own."""
        return self.queue.submit(Question((number,), options=(("seed", number),)))


@pytest.fixture
def turns(monkeypatch):
    monkeypatch.setattr(served_store, "_SLICE", 0.02)  # 31 scans take turns, each for its slice
    turns = Turns()
    yield turns
    turns.go.set()
    turns.queue.close()


def test_a_short_request_is_answered_while_scans_that_do_not_end_run(turns):
    long = [turns.start(number) for number in range(1, 5)]
    for _ in range(3):
        assert turns.queue.submit(Question((0,))).result(timeout=60) == 1
    assert not any(future.done() for future in long)
    turns.go.set()
    assert [future.result(timeout=60) for future in long] == [1] * 4


def test_a_short_request_is_answered_while_more_scans_than_threads_run_and_all_of_them_end(turns):
    long = [turns.start(number) for number in range(1, 2 * _THREADS)]
    assert turns.queue.submit(Question((0,))).result(timeout=60) == 1
    assert len(turns.queue._threads) <= _THREADS
    turns.go.set()
    assert [future.result(timeout=60) for future in long] == [1] * len(long)


def test_scans_for_which_nobody_waits_end_whether_they_run_or_are_suspended(turns):
    long = [turns.start(number) for number in range(1, 5)]
    turns.queue.submit(Question((0,))).result(timeout=60)
    for future in long:
        assert future.cancel()
    turns.queue.submit(Question((0,))).result(timeout=60)
    deadline = time.monotonic() + 60
    while turns.queue._suspended and time.monotonic() < deadline:
        time.sleep(0.01)
    checks = turns.checks
    time.sleep(0.1)
    assert (turns.checks, turns.queue._suspended, turns.ended) == (checks, [], [0, 0])


def test_only_requests_of_about_the_same_size_share_a_scan():
    alike = [Question(("Jon Smiht",)), Question(("Li",)), Question(("Jane Roe", "Li Mu"))]
    assert len({question.group for question in alike}) == 1
    assert Question(("a " * 500,)).group != alike[0].group
    assert Question(("Li",) * 500).group != alike[0].group
    assert Work(print).group != Work(print).group


def test_the_scan_of_a_client_that_closes_the_connection_is_cancelled(served, monkeypatch):
    futures = []
    submit = served.submit
    began, block = threading.Event(), threading.Event()
    running = served.queue.submit(Work(lambda: began.set() or block.wait()))
    assert began.wait(60)  # otherwise the question, which is smaller, may be answered first
    monkeypatch.setattr(served, "submit", lambda request: futures.append(submit(request)) or futures[-1])
    messages = [{"type": "http.request", "body": json.dumps({"query": 1}).encode()}, {"type": "http.disconnect"}]
    scope = {"type": "http", "method": "POST", "path": "/ask", "raw_path": b"/ask", "query_string": b""}
    headers = [(b"content-type", b"application/json"), (b"host", b"127.0.0.1")]

    async def receive():
        return messages.pop(0)

    async def send(_):
        pass

    async def run():
        await asyncio.wait_for(create_app(served)({**scope, "headers": headers}, receive, send), 60)

    try:
        run_async(run())
    finally:
        block.set()
    assert [future.cancelled() for future in futures] == [True]
    running.result(timeout=60)


def test_a_query_that_is_too_long_is_refused_by_ask_as_by_search():
    for text in ("a " * 25_000, ["b", "a" * 10_001], {"name": "a" * 10_001}):
        with pytest.raises(OptionError, match="at most 10,000 characters"):
            read_question({"query": text}, Limits())
    with pytest.raises(OptionError, match="at most 10,000 characters"):
        read_search({"query": "a " * 25_000}, Limits())
    with pytest.raises(OptionError, match="at most 30 accents"):
        read_question({"query": "a" + "\u0301\u0316" * 4000}, Limits())
    read_question({"query": "שָׁלוֹם é" * 100}, Limits())


def test_more_values_rows_and_evidence_than_the_limits_are_refused_naming_the_option(served):
    send = sender(served, Limits(body=100_000))
    refused = send(
        "POST", "/ask", content=b'{"query": [' + b"0," * 9000 + b"0]}", headers={"Content-Type": "application/json"}
    )
    assert (refused.status_code, "--max-body" in refused.json()["error"]) == (413, True)
    with pytest.raises(OptionError, match="--max-rows"):
        read_question({"queries": [1.0] * 8192, "top": 1000}, Limits())
    read_question({"queries": [1.0] * 8192}, Limits())
    wide = Database.open({"years": [1.0, 2.0], "pay": [1.0, 2.0], "text": ["x" * 10**5, "y" * 10**5]}, "years", "pay")
    with ServedStore(wide) as own:
        refused = sender(own, Limits(body=10_000))("POST", "/ask", json={"queries": [1.0, 2.0], "top": 2})
    assert (refused.status_code, "--max-body" in refused.json()["error"]) == (422, True)


def test_large_bodies_and_large_answers_are_those_of_small_ones(served):
    queries = [float(number % 7) for number in range(3000)]
    large = sender(served)("POST", "/ask", json={"queries": queries, "score": "boxcar:1" + " " * 70_000})
    assert large.status_code == 422
    large = sender(served)("POST", "/ask", json={"queries": queries, "score": "boxcar:1"}).json()["answers"]
    small = sender(served)("POST", "/ask", json={"queries": queries[:7], "score": "boxcar:1"}).json()["answers"]
    assert large[:7] == small
    assert [answer["value"] for answer in large[7:14]] == [answer["value"] for answer in small]


@pytest.mark.parametrize("single", [True, False])
def test_no_row_is_compared_with_queries_that_do_not_fit_the_key(single, monkeypatch):
    compared = []
    run = InMemoryExecutor.run
    monkeypatch.setattr(
        InMemoryExecutor, "run", lambda self, queries, *rest: compared.append(len(queries)) or run(self, queries, *rest)
    )
    people = Database.open({"name": ["John Doe", "Jane Roe", "Li Mu"], "pay": [1, 2, 3]}, key="name", value="pay")
    bad = [5, None, "", [1]]
    alone = [people.ask([query], on_bad_query="report") for query in bad]
    assert compared == [0] * 4
    good = people.ask(["Jon Doe"])
    mixed = people.ask([*bad, "Jon Doe", 7], on_bad_query="report")
    assert compared == [0, 0, 0, 0, 1, 1]
    assert mixed.reason[:4] == [answer.reason[0] for answer in alone]
    assert mixed.invalid == [True, False, False, True, False, True]
    assert (mixed.value[4], mixed.reason[2]) == (good.value[0], "the query is missing")


def test_keys_are_asked_as_they_are_when_a_store_is_opened(monkeypatch):
    asked = []
    people = Database.open({"name": ["John Doe", "Jane Roe"], "pay": [1, 2]}, key="name", value="pay")
    ask = people.ask
    monkeypatch.setattr(people, "ask", lambda queries, **options: asked.append(ask(queries, **options)) or asked[-1])
    with ServedStore(people):
        pass
    assert asked[0].found == [True, True]


def test_bodies_with_many_lists_are_read_between_checkpoints():
    body = b'{"query": [' + b"[]," * 1000 + b"[]]}"
    served = ServedStore(Database.open(PAY, key="years", value="pay"))
    counted = []
    with served:
        served.queue._check = lambda scan: counted.append(scan)
        served.queue.submit(Work(lambda: read_question(parse_json_body(body), Limits()))).result(timeout=60)
    assert len(counted) > 1000


def test_ordinary_requests_are_answered_beside_hostile_ones_and_the_server_is_idle_afterwards():
    seen = hostile.run(minutes=0.02, rows=3000, hostile=4, seed=1)
    assert seen.failed == []
    assert len(seen.ordinary) > 1
    assert len(seen.statuses) > 0
    assert np.isfinite(seen.ends).all()


@pytest.mark.long
def test_ordinary_requests_are_answered_beside_hostile_ones_for_ten_minutes():
    seen = hostile.run(minutes=10)
    assert seen.failed == []
    assert seen.ends[-1] < 0.5
    later = seen.memory[len(seen.memory) // 4 :]
    assert max(later) < 1.25 * min(later)
