"""JSON of damaged and crafted files: every absurd field raises an error that names it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from qkv.core import untrusted_json
from qkv.core.untrusted_json import Fields, is_file_name, parse_json, read_bounded
from qkv.errors import DamagedError


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 65 + b"]" * 65, b'{"a":' * 65 + b"1" + b"}" * 65]
)
def test_deep_json_is_refused(text: bytes) -> None:
    with pytest.raises(DamagedError, match=r"a\.json must be JSON"):
        parse_json(text, "a.json")
    assert parse_json(b"[" * 64 + b"]" * 64, "a.json")


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"1" * 10_000, b'{"a": 1}}', b"nul"])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(DamagedError, match=r"a\.json must be JSON, but reading it failed"):
        parse_json(text, "a.json")


def test_huge_json_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(DamagedError, match=r"a\.json must have at most 268,435,456 bytes, got 1,099,511,627,776"):
        read_bounded(path)
    monkeypatch.setattr(untrusted_json, "_LARGEST", 10)
    with pytest.raises(DamagedError, match="at most 10 bytes, got 11"):
        parse_json(b" " * 11, "a.json")
    with pytest.raises(DamagedError, match="must be a file"):
        read_bounded(tmp_path)


ABSURD = [None, True, -1, 0.5, 2**70, "x" * 500, [], {}, [[]], float("nan"), float("inf"), 10**4000]


def refusal(read: Callable[[str], object]) -> str:
    try:
        read("a")
    except DamagedError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("value", ABSURD, ids=lambda value: repr(value)[:10] if value != 10**4000 else "large")
def test_a_field_of_another_type_is_named(value: object) -> None:
    fields = Fields({"a": value}, "a.json")
    readers = [
        fields.integer,
        fields.number,
        fields.boolean,
        fields.file_name,
        fields.texts,
        fields.record,
        fields.items,
    ]
    messages = [message for read in readers if (message := refusal(read))]
    assert all(message.startswith("a in a.json must be ") and len(message) < 300 for message in messages)
    assert len(messages) >= len(readers) - 2
    with pytest.raises(DamagedError, match=r"b in a\.json must be a text, got no such field"):
        fields.text("b")
    if not isinstance(value, dict):
        with pytest.raises(DamagedError, match=r"a\.json must be a JSON object"):
            Fields(value, "a.json")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/etc/passwd", "a/b", "a\\b", "C:a", "a\0", "a\n", " ", "é" * 200, "\u202egpj", "..."]
)
def test_a_name_that_leaves_its_folder_is_no_file_name(name: str) -> None:
    assert not is_file_name(name)


def test_names_of_files_are_file_names() -> None:
    assert all(map(is_file_name, ["a", "encoder.npz", ".hidden", "größe 1.arrow", "a..b"]))
