"""The command serves a store from its own process, ends gracefully, and loses nothing when it is killed."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from qkv.database import Database
from qkv.serve import Client

from .test_app import TOKEN


@contextlib.contextmanager
def command(*arguments: object, **environment: str):
    """Run `qkv serve`, and yield the process and its address."""
    settings = {name: text for name, text in os.environ.items() if name != "QKV_TOKEN"} | environment
    line = [sys.executable, "-m", "qkv", "serve", *map(str, arguments), "--port", "0"]
    with subprocess.Popen(line, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            first = process.stdout.readline()
            yield process, first.split()[0] if first else ""
        finally:
            process.kill()


def test_a_process_answers_like_the_database_finishes_requests_at_sigterm_and_survives_kill_9(store):
    expected = store.ask([2.0, 3.5])
    path = store.store.path
    with command(path, "--refresh", "0.05", QKV_TOKEN=TOKEN) as (process, address), Client(address, token=TOKEN) as pay:
        assert pay.ask([2.0, 3.5]).entries[0].value == expected.entries[0].value
        Database.open(path).append({"years": [9.0], "pay": [90.0], "city": ["z"]})
        while pay.ask(9.0, score="boxcar:0.5").value != 90.0:
            pass
        assert pay.version == 2
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert Database.open(path).verify() == []
    with command(path) as (process, address), Client(address) as pay:
        assert (pay.ask(9.0, score="boxcar:0.5").value, pay.version) == (90.0, 2)
        answers = []

        def ask() -> None:
            with Client(address) as other:
                started.set()
                answers.append(other.ask([9.0] * 5000, score="boxcar:0.5").value)

        started = threading.Event()
        thread = threading.Thread(target=ask)
        thread.start()
        started.wait()
        while 'route="/ask",status="200"} 2.0' not in (text := metrics(address)) and "active_requests 1.0" not in text:
            pass
        process.send_signal(signal.SIGTERM)
        thread.join()
        assert answers == [[90.0] * 5000]
        assert process.wait() == 0
        assert TOKEN not in process.stdout.read() + process.stderr.read()


def metrics(address: str) -> str:
    import httpx

    return httpx.get(f"{address}/metrics", trust_env=False).text


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "STORE"),
        (["nowhere"], "nowhere"),
        (["STORE", "--host", "0.0.0.0"], "token"),
        (["STORE", "--token-file", "nowhere"], "nowhere"),
        (["STORE", "--token-file", "SHORT"], "16"),
        (["STORE", "--mcp", "--host", "0.0.0.0"], "token"),
        (["STORE", "--index", "nowhere"], "--index"),
        (["STORE", "--timeout", "0"], "seconds"),
        (["STORE", "--port", "70000"], "port"),
    ],
)
def test_a_server_that_may_not_or_cannot_run_says_why_in_one_line(store, tmp_path, capfd, monkeypatch, arguments, word):
    from qkv.cli.main import run

    monkeypatch.delenv("QKV_TOKEN", raising=False)
    (tmp_path / "short").write_text("secret")
    places = {"STORE": str(store.store.path), "SHORT": str(tmp_path / "short")}
    assert run(["serve", *(places.get(each, each) for each in arguments)]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("qkv: ")
    assert err.count("\n") == 1
    assert word in err
    assert "secret" not in err


def test_the_help_has_examples_and_names_every_route(capfd):
    from qkv.cli.main import run

    assert run(["serve", "--help"]) == 0
    out = capfd.readouterr().out
    assert len(re.findall(r"^ +(?:curl|qkv serve|QKV_TOKEN=\S+ \S+ \S+ \S+ qkv serve)", out, re.MULTILINE)) >= 6
    assert all(route in out for route in ("/ask", "/search", "/explain", "/health", "/metrics", "/openapi.json"))
