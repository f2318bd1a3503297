"""`qkv ask --page` and `--export`: the page that is served and written, and what cannot be combined with it."""

import json
import re
import signal
import urllib.request

import pytest

from .conftest import EXAMPLES, started

GPA = ("ask", "gpa.csv", "--key", "gpa", "--value", "starting_salary")


def test_the_page_is_served_until_it_is_interrupted_and_answers_as_the_command():
    arguments = (*GPA, "3.5", "--page", "--no-browser", "--where", "gpa > 3")
    with started(*arguments, env={"QKV_CACHE": "0"}, text=True) as process:
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/", address)
        meta = json.load(urllib.request.urlopen(address + "meta.json", timeout=120))
        assert (meta["mode"], meta["query"], meta["settings"]["where"]) == ("axis", "3.5", "gpa > 3")
        body = json.dumps({"what": "answer", "query": "3.6", "settings": meta["settings"], "printed": True}).encode()
        answer = json.load(urllib.request.urlopen(address + "ask", body, timeout=120))
        assert answer["command"] == ("qkv ask gpa.csv --key gpa --value starting_salary --where 'gpa > 3' 3.6")
        assert answer["printed"].startswith("3.6 → ")
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(address + "ask", b"{", timeout=120)
        with pytest.raises(urllib.error.HTTPError, match="413"):
            urllib.request.urlopen(address + "ask", b" " * 100_001, timeout=120)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(re.sub(r"/[\w-]+/$", "/x/", address) + "meta.json", timeout=120)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--page", "--export", "a.html"), "--page must not be given with --export"),
        (("--page", "--format", "json"), "--format must not be given with --page"),
        (("--page", "--explain"), "--explain must not be given with --page"),
        (("--export", "a.html", "--plot", "a.png"), "--plot must not be given with --export"),
        (("--export", "a.txt"), r"\.html"),
        (("--page", "--port", "70000"), "--port must be between 0 and 65535, got 70000"),
        (("--page", "3.1", "3.2"), "--page must be used with at most one query, got 2"),
        (("--page", "high"), "the query for the key 'gpa' must be a finite number"),
        (("--page", "--score", "gauss"), "score must be one of"),
    ],
)
def test_what_the_page_cannot_do_is_refused_in_one_sentence(qkv, arguments, sentence):
    code, out, err = qkv(*GPA, *arguments)
    assert (code, out) == (2, "")
    assert re.search(sentence, err)
    assert err.count("\n") == 1
    assert not (EXAMPLES / "a.html").exists()


def test_an_exported_page_is_one_file_and_texts_are_refused(qkv, tmp_path, monkeypatch):
    from qkv.look.answers import saved_answers

    monkeypatch.setattr(saved_answers, "_PLACES", 5)
    monkeypatch.setattr(saved_answers, "_CELLS", 3)
    monkeypatch.setattr(saved_answers, "_FACTORS", (1.0, 2.0))
    monkeypatch.setattr(saved_answers, "_NEIGHBOURS", ("", "5"))
    file = tmp_path / "a.html"
    code, out, err = qkv(*GPA, "--export", str(file))
    assert (code, err) == (0, "")
    assert out == f"{file} ({file.stat().st_size / 1e6:.1f} MB)\n"
    assert "http:" not in file.read_text().replace("http://www.w3.org/2000/svg", "")
    two = ("ask", "members.csv", "--key", "joined,member", "--value", "city", "--score", "gaussian")
    assert qkv(*two, "--export", str(file))[0] == 0
    texts = ("ask", "people.csv", "--key", "name", "--value", "income")
    code, out, err = qkv(*texts, "--export", str(tmp_path / "b.html"))
    assert (code, out) == (2, "")
    assert err.startswith("qkv: the key of an exported page must be one or two columns of numbers or dates, got name. ")
    assert not (tmp_path / "b.html").exists()


def test_a_gallery_is_written_alone(qkv, tmp_path):
    code, out, err = qkv("look", "--gallery", str(tmp_path / "g"), "--text", "a cat", "--terminal")
    assert (code, out) == (2, "")
    assert "got also --text, --terminal. Omit them" in err
    assert not (tmp_path / "g").exists()
