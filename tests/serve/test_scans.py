"""Requests that wait at the same time share one scan, within the limits of time and concurrency."""

import asyncio
import threading

import httpx
import pytest

from qkv.database import Database
from qkv.database.io.predicates import PredicateProcess
from qkv.serve import Limits, ServedStore, create_app
from qkv.serve.questions import Question

from .conftest import ADDRESS, PAY, run_async, sender


class Slow:
    """A database whose scans wait for an event, and that counts them."""

    def __init__(self, monkeypatch):
        self.database = Database.open(PAY, key="years", value="pay")
        self.go, self.scans = threading.Event(), []
        ask = self.database.ask
        monkeypatch.setattr(self.database, "ask", lambda queries, **options: self.wait(queries, ask, options))
        self.first = True

    def wait(self, queries, ask, options):
        if self.first:  # the preparation
            self.first = False
            return ask(queries, **options)
        self.scans.append(len(queries))
        while not self.go.wait(0.01):
            options["progress"]("waiting", 0, 1)
        return ask(queries, **options)


def test_requests_that_wait_for_a_scan_are_answered_together_by_the_next_one(monkeypatch):
    slow = Slow(monkeypatch)
    with ServedStore(slow.database) as served:
        first = served.submit(Question((1.0,), True))
        while not slow.scans:
            pass
        others = [served.submit(Question((1.0 + i, 2.0))) for i in range(5)]
        different = served.submit(Question((1.0,), True, options=(("score", "boxcar:1"),)))
        slow.go.set()
        values = [future.result().answer.value for future in others]
        assert different.result().answer.value == 11.0
        assert slow.scans == [1, 10, 1]
    alone = Database.open(PAY, key="years", value="pay")
    assert values == [alone.ask([1.0 + i, 2.0]).value for i in range(5)]
    assert first.result().answer.value == alone.ask(1.0).value


def test_a_bad_query_fails_its_own_request_and_no_other_of_the_scan(monkeypatch):
    slow = Slow(monkeypatch)
    with ServedStore(slow.database) as served:
        served.submit(Question((1.0,), True))
        bad, good = served.submit(Question(("x",), True)), served.submit(Question((2.0,), True))
        reported = served.submit(Question(("x",), True, "report"))
        slow.go.set()
        assert good.result().answer.found
        assert reported.result().answer.invalid
        with pytest.raises(ValueError, match="finite number"):
            bad.result()


def test_queries_that_are_drawn_at_random_do_not_depend_on_other_requests(monkeypatch):
    slow = Slow(monkeypatch)
    options = (("normalizer", "sample"), ("seed", 3))
    with ServedStore(slow.database) as served:
        served.submit(Question((1.0,), True))
        futures = [served.submit(Question((3.0,), True, options=options)) for _ in range(3)]
        slow.go.set()
        values = [future.result().answer.value for future in futures]
    assert len(set(values)) == 1


def test_a_slow_answer_is_refused_by_504_and_its_scan_ends(monkeypatch):
    slow = Slow(monkeypatch)
    with ServedStore(slow.database) as served:
        send = sender(served, Limits(seconds=0.1))
        assert send("POST", "/ask", json={"query": 1}).status_code == 504
        slow.go.set()
        assert send("POST", "/ask", json={"query": 1}).status_code == 200


def test_a_predicate_that_does_not_end_is_interrupted_and_the_next_question_is_answered(served):
    send = sender(served, Limits(seconds=1))
    endless = "(" * 9000  # DuckDB's parser takes minutes
    assert send("POST", "/ask", json={"query": 1, "where": endless}).status_code == 504
    assert served.submit(Question((1.0,), True)).result(timeout=60).answer.found
    paid = Question((1.0,), True, options=(("where", "pay > 9"),))
    assert served.submit(paid).result(timeout=60).answer.found


def test_predicates_of_clients_are_evaluated_in_another_process_with_the_answers_of_this_one(served, monkeypatch):
    evaluated = []
    evaluate = PredicateProcess.evaluate
    monkeypatch.setattr(PredicateProcess, "evaluate", lambda *given: evaluated.append(given[2]) or evaluate(*given))
    for where in ("pay > 13 and city <> 'c'", "pay > (select avg(pay) from data)", "pay > 99"):
        answer = served.submit(Question((3.0, 5.0), options=(("where", where),))).result(timeout=60).answer
        assert where in evaluated
        wanted = served.database.ask([3.0, 5.0], where=where)
        assert (answer.value, answer.notes, str(answer.plan)) == (wanted.value, wanted.notes, str(wanted.plan))


def test_a_slow_body_is_refused_by_408(served):
    send = sender(served, Limits(seconds=0.1))

    async def parts():
        yield b'{"query"'
        await asyncio.sleep(30)

    assert send("POST", "/ask", content=parts(), headers={"Content-Type": "application/json"}).status_code == 408


def test_more_requests_than_the_limit_are_refused_by_429_and_later_answered(monkeypatch):
    slow = Slow(monkeypatch)
    with ServedStore(slow.database) as served:
        app = create_app(served, limits=Limits(waiting=3))

        async def run():
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ADDRESS) as client:
                waiting = [asyncio.create_task(client.post("/ask", json={"query": 1})) for _ in range(3)]
                while b"active_requests 3.0" not in (await client.get("/metrics")).content:
                    await asyncio.sleep(0.01)
                refused = await client.post("/ask", json={"query": 1})
                slow.go.set()
                answered = [(await each).status_code for each in waiting]
                later = await client.post("/ask", json={"query": 1})
                return refused, answered, later.status_code

        refused, answered, later = run_async(run())
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert (answered, later) == ([200] * 3, 200)


def test_an_error_of_a_scan_is_the_error_of_its_requests_and_the_next_scan_runs(monkeypatch):
    slow = Slow(monkeypatch)
    with ServedStore(slow.database) as served:
        served.submit(Question((1.0,), True))
        failing = served.submit(Question((1.0,), True, options=(("where", "nope = 1"),)))
        slow.go.set()
        with pytest.raises(ValueError, match="nope"):
            failing.result()
        assert served.submit(Question((1.0,), True)).result().answer.found


def test_requests_that_wait_are_cancelled_when_the_server_closes(monkeypatch):
    slow = Slow(monkeypatch)
    served = ServedStore(slow.database)
    running = served.submit(Question((1.0,), True))
    while not slow.scans:
        pass
    waiting = served.submit(Question((1.0,), True))
    slow.go.set()
    served.close()
    assert running.result().answer.found
    assert waiting.cancelled()
    with pytest.raises(RuntimeError):
        served.submit(Question((1.0,), True))
