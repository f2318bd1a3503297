"""The list of files of a release: which it reports."""

import pytest

from tests import release


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("qkv/a.py", "qkv/**/*.py", True),
        ("qkv/a/b.py", "qkv/**/*.py", True),
        ("qkv/a/b.pyc", "qkv/**/*.py", False),
        ("tests/a/b.bin", "tests/**", True),
        ("qkv/look/web/a.js", "qkv/look/*.js", False),
    ],
)
def test_a_star_matches_one_name_and_two_any_folders(name: str, pattern: str, expected: bool) -> None:
    assert release.matches(name, pattern) is expected


def test_files_outside_the_list_and_missing_files_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "patterns", lambda section: ["qkv/*.py", "qkv/py.typed"])
    problems = release.difference("wheel", ["qkv/a.py", "qkv/secret.env"], ["qkv/a.py", "qkv/b.py"])
    assert problems == [
        "wheel: no file matches qkv/py.typed",
        "wheel: qkv/b.py is missing",
        "wheel: qkv/secret.env matches no pattern",
    ]
