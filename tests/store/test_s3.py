"""Stores in a server of S3 (moto, in this process), on a web server and in fsspec: URLs, credentials and writers."""

import http.server
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore", reason="obstore is not installed")
pytest.importorskip("moto", reason="moto is not installed")

from qkv import Database
from qkv import store as stores
from qkv.errors import DataError, MissingPackageError, OptionError, StorageError
from qkv.store.object_client import FsspecClient
from qkv.testing.stores import ids_of, numbered
from tests.database.cluster.local_worker import LocalWorker

ROWS = {"name": ["John Smith", "Jane Roe"], "income": [48_200, 61_000]}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    import logging

    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    # moto checks the condition of a write before it writes, and another thread may write in between, unlike in S3.
    patch, lock, put = pytest.MonkeyPatch(), threading.Lock(), S3Response.put_object

    def put_alone(self: S3Response) -> Any:
        with lock:
            return put(self)

    patch.setattr(S3Response, "put_object", put_alone)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT")).close()
    yield url
    server.stop()
    patch.undo()


@pytest.fixture
def bucket(endpoint: str, request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a folder in a bucket, for which the environment holds credentials."""
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "hidden word", "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    return f"s3://bucket/{request.node.name}"


def test_a_database_in_a_bucket_is_created_appended_to_and_asked(bucket: str) -> None:
    people = Database.create(f"{bucket}/people", ROWS, key="name", value="income")
    people.append({"name": ["Aisha Khan"], "income": [52_000]})
    opened = Database.open(f"{bucket}/people")
    answer = opened.ask("Aisha Kahn")
    assert (answer.value, opened.name) == (52_000, "people")
    assert f"requests from {bucket}/people" in answer.common_notes[-1]
    assert opened.delete("income > (select avg(income) from data)") == 1
    assert [version.rows for version in opened.versions()] == [2, 3, 2]
    with pytest.raises(DataError, match="must be new or an empty folder"):
        Database.create(f"{bucket}/people", ROWS, key="name", value="income")
    with pytest.raises(DataError, match="must be a store with at least one version"):
        Database.open(f"{bucket}/nothing")


def test_commands_take_urls(bucket: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("typer")
    from qkv.cli.main import run

    people = Path(__file__).parents[2] / "examples" / "people.csv"
    assert run(["store", "create", bucket, str(people), "--key", "name", "--value", "income"]) == 0
    assert run(["ask", bucket, "Jon Smiht"]) == 0
    assert f"from {bucket}" in capfd.readouterr().out
    assert run(["store", "verify", bucket]) == 0
    assert "24 rows, 1 version" in capfd.readouterr().out
    assert run(["store", "repair", bucket]) == 2
    assert "Copy the store to a folder" in capfd.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(["ask", bucket, "Jon Smiht"]) == 1
    assert 'pip install "qkv[stores]"' in capfd.readouterr().err


def test_two_writers_lose_no_append(bucket: str) -> None:
    def append(first: int) -> None:
        store = stores.open(bucket)
        for row in range(first, first + 3):
            store.append(numbered(row, row + 1))

    stores.create(bucket, numbered(0, 1).schema)
    writers = [threading.Thread(target=append, args=(first,)) for first in (0, 3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    store = stores.open(bucket)
    assert sorted(ids_of(store)) == list(range(6))
    assert [version.operation for version in store.versions()].count("append") == 6


def test_settings_take_the_place_of_the_environment(
    bucket: str, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Database.create(bucket, ROWS, key="name", value="income")
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "ENDPOINT_URL", "REGION"):
        monkeypatch.delenv(f"AWS_{name}")
    options = {"access_key_id": "key", "secret_access_key": "hidden word", "endpoint": endpoint, "region": "us-east-1"}
    assert len(Database.open(bucket, storage_options=options)) == 2
    (tmp_path / "credentials").write_text("[work]\naws_access_key_id = key\naws_secret_access_key = hidden word\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    named = {"profile": "work", "endpoint": endpoint, "region": "us-east-1"}
    assert len(Database.open(bucket, storage_options=named)) == 2
    with pytest.raises(StorageError, match="the profile 'other' must have credentials"):
        Database.open(bucket, storage_options={**named, "profile": "other"})
    many = Database.open(bucket, storage_options=options, cluster="processes:1")
    many.cluster.start = LocalWorker
    assert many.ask("John Smith", score="exact").value == 48_200
    with pytest.raises(OptionError, match="source must be a path or a URL with a cluster"):
        Database.open(many.store.path, cluster="processes")
    with pytest.raises(OptionError, match="storage_options must be None for a folder, got region"):
        stores.open(tmp_path, storage_options={"region": "us-east-1"})


def test_errors_name_the_url_and_no_credential(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageError, match=r"the bucket of s3://other/people must exist"):
        Database.open("s3://other/people")
    options = {"endpoint": "http://127.0.0.1:9", "secret_access_key": "hidden word", "max_retries": 0}
    with pytest.raises(StorageError, match="cannot be read or written") as found:
        Database.open(bucket, storage_options=options)
    assert "hidden" not in str(found.value)
    with pytest.raises(StorageError, match="must be the URL of an object store") as unknown:
        Database.open(bucket, storage_options={"secret_access_keys": "hidden word"})
    assert "hidden" not in str(unknown.value)


def test_a_missing_package_is_named_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r'gs:// paths need obstore, .*pip install "qkv\[stores\]"'):
        Database.open("gs://bucket/people")


class _Ranges(http.server.SimpleHTTPRequestHandler):
    """A web server that answers ranges, as those of the web do; Python's own returns whole files."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data, given = path.read_bytes(), self.headers.get("Range", "")
        start, _, last = given.removeprefix("bytes=").partition("-")
        part = data[int(start) : int(last) + 1] if given else data
        self.send_response(206 if given else 200)
        if given:
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_: Any) -> None:
        pass


def test_a_folder_on_a_web_server_is_read_and_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    people = Database.create(tmp_path / "people", ROWS, key="name", value="income")
    people.append({"name": ["Aisha Khan"], "income": [52_000]})

    class Handler(_Ranges):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given, directory=str(tmp_path))

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        opened = Database.open(f"http://127.0.0.1:{server.server_port}/people")
        assert opened.ask("aisha khan").value == 52_000
        assert [version.number for version in opened.versions()] == [1, 2]
        with pytest.raises(StorageError, match="read-only"):
            opened.append(ROWS)
        people.append(ROWS)
        assert opened.refresh()
        assert len(opened) == 5
    finally:
        server.shutdown()
        server.server_close()


def test_a_folder_of_fsspec_is_read_and_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    Database.create(tmp_path / "people", ROWS, key="name", value="income")
    fsspec.filesystem("memory").put(str(tmp_path / "people"), "/stored", recursive=True)
    opened = Database.open("memory://stored")
    assert opened.ask("jane roe").value == 61_000
    with pytest.raises(StorageError, match="read-only"):
        opened.append(ROWS)
    with pytest.raises(StorageError, match="must be a URL that fsspec can open"):
        Database.open("nothing://stored")


def test_ranges_of_a_file_of_fsspec_are_read_alone_and_a_folder_has_no_size() -> None:
    system = pytest.importorskip("fsspec").filesystem("memory")
    system.pipe("/ranges/part/rows", bytes(range(100)))
    client = FsspecClient(system, "/ranges", "memory://ranges")
    assert [bytes(part) for part in client.get_ranges("part/rows", [(2, 5), (90, 100)])] == [
        bytes(range(2, 5)),
        bytes(range(90, 100)),
    ]
    assert (client.size("part/rows"), client.size("part"), client.size("none")) == (100, None, None)
