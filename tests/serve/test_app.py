"""Each request gets its answer or one status and one sentence."""

import json
import socket

import numpy as np
import pyarrow as pa
import pytest

from qkv.database import Database
from qkv.serve import Limits, ServedStore
from qkv.serve.answers import stream_bytes
from qkv.serve.arrow_bodies import MEDIA_TYPE
from qkv.serve.server import serve_in_thread

from .conftest import PAY, sender

JSON = {"Content-Type": "application/json"}
ARROW = {"Content-Type": MEDIA_TYPE}
TOKEN = "0123456789abcdef-token"


def test_an_answer_holds_the_value_the_evidence_and_the_notes_of_the_database(send):
    local = Database.open(PAY, key="years", value="pay").ask([2.0, 3.5], score="boxcar:1", top=2)
    response = send("POST", "/ask", json={"queries": [2.0, 3.5], "score": "boxcar:1", "top": 2})
    found = response.json()
    assert response.status_code == 200
    assert [answer["value"] for answer in found["answers"]] == local.value
    assert [answer["standard_error"] for answer in found["answers"]] == local.standard_error
    first = found["answers"][0]["rows"]
    assert [row["record"] for row in first] == [row.record for row in local.rows[0]]
    assert [row["weight"] for row in first] == [row.weight for row in local.rows[0]]
    assert found["notes"] == list(local.notes)


def test_an_arrow_body_is_answered_like_a_json_body(send):
    queries = stream_bytes(pa.table({"name": ["x", "y"], "years": [2.0, 3.5]}))
    response = send("POST", "/ask?score=boxcar:1&top=2", content=queries, headers=ARROW)
    expected = send("POST", "/ask", json={"queries": [2.0, 3.5], "score": "boxcar:1", "top": 2})
    assert response.json() == expected.json()


def test_an_arrow_response_has_one_row_per_query_with_its_evidence(send):
    accept = {"Accept": MEDIA_TYPE}
    fields = {"queries": [2.0, 99.0], "score": "boxcar:1", "top": 2}
    table = pa.ipc.open_stream(send("POST", "/ask", json=fields, headers=accept).content).read_all()
    plain = send("POST", "/ask", json=fields).json()["answers"]
    assert table.column("value").to_pylist() == [answer["value"] for answer in plain]
    assert table.column("found").to_pylist() == [True, False]
    assert table.column("evidence").to_pylist() == [answer["rows"] for answer in plain]
    assert json.loads(table.schema.metadata[b"qkv"])["version"] is None


def test_explain_returns_the_plan_and_the_notes(send, served):
    found = send("POST", "/explain", json={"query": 2.0}).json()
    local = served.database.ask(2.0)
    assert found["plan"] == str(local.plan)
    assert found["notes"] == list(local.notes)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, "query or queries"),
        ({"query": 1, "queries": [1]}, "query or queries"),
        ({"queries": 1}, "list"),
        ({"query": 1, "colour": 1}, "colour"),
        ({"query": 1, "top": 0}, "top"),
        ({"query": 1, "top": True}, "top"),
        ({"query": 1, "top": 1.5}, "top"),
        ({"query": 1, "top": 10_000}, "top"),
        ({"query": 1, "score": 3}, "score"),
        ({"query": 1, "score": "nope"}, "nope"),
        ({"query": 1, "aggregate": "nope"}, "aggregate"),
        ({"query": 1, "where": "nope > 3"}, "nope"),
        ({"query": 1, "where": "x" * 20_000}, "where"),
        ({"query": 1, "max_distance": "3"}, "max_distance"),
        ({"query": 1, "seed": -1}, "seed"),
        ({"query": "Oslo"}, "finite number"),
        ({"query": {"$": "nope", "v": 1}}, "nope"),
        ({"query": {"$": "decimal", "v": "1e999999999"}}, "decimal"),
        ({"query": [1, 2, 3]}, "years"),
        ({"queries": [1] * 9000}, "8,192"),
    ],
)
def test_a_malformed_question_is_refused_by_422_and_one_sentence_with_its_name(send, fields, word):
    response = send("POST", "/ask", json=fields)
    assert response.status_code == 422
    assert set(response.json()) == {"error", "type"}
    assert word in response.json()["error"]
    assert "\n" not in response.json()["error"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[1]",
        b"{",
        b'{"query": NaN}',
        b'{"query": 1, "query": 2}',
        b'{"query": {"years": 1, "years": 2}}',
        b"\xff",
        b'{"query": "\\ud800"}',
        b"[" * 100_000,
        b'{"query": ' + b"9" * 5000,
    ],
)
def test_a_body_that_is_no_json_object_is_refused_by_422(send, body):
    assert send("POST", "/ask", content=body, headers=JSON).status_code == 422


def bomb(column: pa.Array, **options: object) -> bytes:
    batch = pa.record_batch({"years": column})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not arrow",
        stream_bytes(pa.table({"years": [1.0]}))[:-30],
        stream_bytes(pa.table({"other": [1.0], "more": [2.0]})),
        stream_bytes(pa.table({"years": [[{"a": 1}]]})),
        bomb(pa.Array.from_buffers(pa.null(), 2**31 - 1, [None])),
        bomb(pa.array(np.zeros(2**16)), compression="zstd"),
        bomb(pa.DictionaryArray.from_arrays(np.zeros(8000, np.int32), ["x" * 2**16])),
    ],
    ids=["empty", "text", "cut", "other columns", "structs", "nulls", "compressed", "shared texts"],
)
def test_an_arrow_body_that_is_damaged_or_stands_for_more_than_it_holds_is_refused_by_422(send, body):
    response = send("POST", "/ask", content=body, headers=ARROW)
    assert response.status_code == 422
    assert response.json()["type"] == "QueryError"


def test_a_large_body_is_refused_by_413_before_it_is_parsed(served):
    send = sender(served, Limits(body=100))
    assert send("POST", "/ask", content=b"x" * 101, headers=JSON).status_code == 413

    async def parts():
        for _ in range(11):
            yield b"x" * 10

    assert send("POST", "/ask", content=parts(), headers=JSON).status_code == 413


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 404),
        ("GET", "/ask", {}, 405),
        ("POST", "/health", {}, 405),
        ("POST", "/search", JSON, 404),
        ("POST", "/ask", {"Content-Type": "text/plain"}, 415),
        ("POST", "/ask", {"Content-Type": "application/json; charset=utf-16"}, 415),
        ("POST", "/ask", {**JSON, "Content-Encoding": "gzip"}, 415),
        ("POST", "/ask", {**JSON, "Accept": "text/html"}, 406),
        ("GET", "/" + "x" * 1000, {}, 414),
    ],
)
def test_a_request_outside_the_routes_gets_its_status_and_a_sentence(send, method, path, headers, status):
    response = send(method, path, headers=headers, content=b'{"query": 1}' if method == "POST" else None)
    assert response.status_code == status
    assert response.json()["error"]


@pytest.mark.parametrize("given", [None, "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN])
def test_a_request_without_the_token_is_refused_by_401_and_never_shows_it(served, given):
    send = sender(served, token=TOKEN)
    response = send("POST", "/ask", json={"query": 1}, headers={} if given is None else {"Authorization": given})
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in response.text + str(response.headers)


def test_a_request_with_the_token_is_answered_and_health_needs_none(served):
    send = sender(served, token=TOKEN)
    assert send("POST", "/ask", json={"query": 1}, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert send("GET", "/health").json() == {"status": "ok", "version": None}
    assert send("GET", "/metrics").status_code == 401


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_a_page_of_another_site_is_refused_by_403_where_there_is_no_token(served, headers):
    send = sender(served, hosts={"127.0.0.1:8000"})
    assert send("GET", "/health").status_code == 200
    assert send("POST", "/ask", json={"query": 1}, headers=headers).status_code == 403


def test_the_counters_name_routes_and_statuses(served):
    send = sender(served)
    send("POST", "/ask", json={"queries": [1, 2]})
    send("POST", "/ask", json={})
    text = send("GET", "/metrics").text
    assert 'qkv_requests_total{route="/ask",status="200"} 1.0' in text
    assert 'qkv_requests_total{route="/ask",status="422"} 1.0' in text
    assert "qkv_queries_total 2.0" in text


def test_a_server_with_an_index_alone_answers_searches(tmp_path):
    from qkv.search import Document, Index

    texts = [Document("a", "", "the golden ring in the river"), Document("b", "", "wolves in the den of the forest")]
    index = Index.from_texts(texts, mix=0.0)
    with ServedStore(index=index) as served:
        send = sender(served)
        found = send("POST", "/search", json={"query": "golden ring", "top": 1}).json()["results"]
        assert [[hit["document"] for hit in hits] for hits in found] == [["a"]]
        assert found[0][0]["weight"] == index.search("golden ring", 1)[0].weight
        assert send("POST", "/ask", json={"query": "ring"}).status_code == 404
        assert send("POST", "/search", json={"query": "ring", "mix": 2}).status_code == 422
        assert send("POST", "/search", json={"query": " "}).status_code == 422


def exchange(address: str, head: str, *parts: bytes) -> bytes:
    """Return the response to a request that is sent as bytes, whose last parts may not be accepted."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    lines = f"{head}\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        for part in (lines.encode(), *parts):
            connection.sendall(part)
        received = b""
        while more := connection.recv(65536):
            received += more
    return received


def test_a_request_that_two_programs_may_read_differently_is_refused_by_400(served):
    body = b'{"query": 1}'
    with serve_in_thread(served) as address:
        right = f"Origin: {address}"
        assert exchange(address, f"POST /ask HTTP/1.1\r\n{right}\r\nContent-Length: 12", body).startswith(
            b"HTTP/1.1 200"
        )
        for headers, sent in (
            ("Content-Length: 12\r\nTransfer-Encoding: chunked", b"c\r\n" + body + b"\r\n0\r\n\r\n"),
            ("Transfer-Encoding: chunked\r\nContent-Length: 12", b"c\r\n" + body + b"\r\n0\r\n\r\n"),
            (f"Origin: http://evil.example\r\n{right}\r\nContent-Length: 12", body),
            (f"{right}\r\norigin: http://evil.example\r\nContent-Length: 12", body),
            ("Authorization: Bearer a\r\nAuthorization: Bearer b\r\nContent-Length: 12", body),
        ):
            assert exchange(address, f"POST /ask HTTP/1.1\r\n{headers}", sent).startswith(b"HTTP/1.1 400"), headers


def test_a_client_that_is_still_sending_a_large_body_gets_413(served):
    part = b"x" * 2**16
    with serve_in_thread(served, limits=Limits(body=2**20)) as address:
        for headers, parts in (
            (f"Content-Length: {100 * 2**16}", [part] * 100),
            ("Transfer-Encoding: chunked", [b"10000\r\n" + part + b"\r\n"] * 100 + [b"0\r\n\r\n"]),
            (f"Content-Length: {10 * 2**20}\r\nExpect: 100-continue", []),
        ):
            assert exchange(address, f"POST /ask HTTP/1.1\r\n{headers}", *parts).startswith(b"HTTP/1.1 413"), headers
