"""The command of the translator: output, pictures and errors."""

import importlib.util
import io
import json
import shlex
import sys

import pytest

if any(importlib.util.find_spec(name) is None for name in ("torch", "tokenizers", "sacrebleu")):
    pytest.skip("the extra qkv[hf,look] is not installed", allow_module_level=True)

import torch
from examples.translate import __main__ as command
from examples.translate import pairs
from examples.translate.measuring import bleu
from examples.translate.options import SCORE_NAMES
from examples.translate.page import filled, tables
from examples.translate.pairs import Asked
from examples.translate.racing import race
from examples.translate.reading import Reader
from examples.translate.recorded import RUNS
from examples.translate.training import train

from qkv.errors import DataError

from .conftest import small


@pytest.fixture(autouse=True)
def _threads_stay():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run(capsys, *arguments):
    code = command.main(list(map(str, arguments)))
    return code, *capsys.readouterr()


def refused(capsys, *arguments):
    """Run a command that must fail, and return the sentence on stderr."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("translate: ")
    assert err.count("\n") == 1
    return err


def test_every_example_in_the_help_is_a_command_that_parses():
    lines = [line.split("|")[-1].strip() for line in command._EXAMPLES.splitlines() if "python -m" in line]
    assert {shlex.split(line)[3] for line in lines} == {"train", "evaluate", "translate"}
    for line in lines:
        command._parser().parse_args(shlex.split(line)[3:])


def test_train_reports_its_results_and_receives_every_option(capsys, pairs_file, tmp_path):
    folder, options = tmp_path / "model", small(steps=4, seed=5, smoothing=0.2)
    words = [word for name, _, there in type(options)().differences(options) for word in (name, there)]
    code, out, err = run(capsys, "train", pairs_file, "--out", folder, *words)
    assert code == 0
    assert out.startswith("4 steps, ")
    assert "step 4 of 4: loss" in err
    assert json.loads((folder / "options.json").read_text())["options"] == vars(options)


def test_translate_gives_a_line_for_each_sentence_from_words_and_from_stdin(capsys, trained, monkeypatch):
    sentences = ["Tom see the cat.", "he want a red house."]
    code, out, _ = run(capsys, "translate", trained, *sentences)
    assert code == 0
    assert out.splitlines() == Reader(trained).translate(sentences)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{sentences[0]}\n\n{sentences[1]}\n"))
    code, again, _ = run(capsys, "translate", trained)
    assert code == 0
    assert again.splitlines() == [out.splitlines()[0], "", out.splitlines()[1]]


def test_a_trained_model_translates_a_sentence_that_it_was_not_trained_on(trained):
    reader, held = Reader(trained), pairs.read_asked(trained / "held_out.tsv")
    said = reader.translate([one.sentence for one in held])
    hits = sum(one in asked.references for one, asked in zip(said, held, strict=True))
    assert hits >= 4, list(zip(said, held, strict=True))


def test_evaluate_prints_bleu_and_its_signature_and_keeps_them(capsys, trained, tmp_path):
    kept, said = tmp_path / "r.json", tmp_path / "said.tsv"
    code, out, _ = run(capsys, "evaluate", trained, "--long", 5, "--json", kept, "--said", said)
    result = json.loads(kept.read_text())
    assert code == 0
    assert f"BLEU {result['all']['bleu']:.1f}" in out
    assert result["all"]["signature"] in out
    assert "|tok:13a|" in result["all"]["signature"]
    held = pairs.read_asked(trained / "held_out.tsv")
    assert result["all"]["sentences"] == len(held) == len(said.read_text().splitlines())
    longer = [one for one in held if pairs.words(one.sentence) >= 5]
    assert 0 < result["long"]["sentences"] == len(longer) < len(held)


def test_bleu_is_100_for_any_of_the_references_and_less_for_a_wrong_word():
    asked = [Asked("a", ("un deux trois quatre cinq", "six sept huit neuf dix")), Asked("b", ("a b c d e f",))]
    assert bleu(["six sept huit neuf dix", "a b c d e f"], asked)["bleu"] == 100
    worse = bleu(["six sept huit neuf dix", "a b c d e x"], asked)
    assert 50 < worse["bleu"] < 100
    assert (worse["sentences"], worse["references"]) == (2, 3)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_alignment_of_a_sentence_is_drawn(capsys, trained, tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    code, out, _ = run(capsys, "translate", trained, "Tom see the cat.", "--picture", path)
    assert code == 0
    assert out.strip() == Reader(trained).translate(["Tom see the cat."])[0]
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(start)


def test_an_alignment_has_a_row_for_each_subword_said_and_a_column_for_each_read(trained):
    seen = Reader(trained).aligned("Tom see the cat.")
    assert seen.weights.shape == (len(seen.said), len(seen.read))
    assert seen.weights.sum(1) == pytest.approx([1] * len(seen.said), abs=1e-5)
    assert "".join(seen.read).replace("·", " ").strip() == "Tom see the cat.END"
    assert seen.said[-1] == "END"


def test_pictures_that_cannot_be_drawn_are_refused_before_the_work(capsys, trained, pairs_file, tmp_path):
    line = ["translate", trained, "Tom see the cat.", "--picture"]
    two = ["translate", trained, "Tom see the cat.", "he see the cat.", "--picture", tmp_path / "out.png"]
    assert "must end in .png" in refused(capsys, *line, tmp_path / "out.gif")
    assert "the folder of the plot must exist" in refused(capsys, *line, tmp_path / "no" / "out.png")
    assert "exactly one sentence, got 2" in refused(capsys, *two)
    train(pairs_file, tmp_path / "none", small(score="none", steps=3))
    line[1] = tmp_path / "none"
    assert "--score none" in refused(capsys, *line, tmp_path / "out.png")
    assert not (tmp_path / "out.png").exists()


def test_unusable_files_and_folders_are_refused_in_a_sentence(capsys, tmp_path):
    bad = tmp_path / "bad.tsv"
    bad.write_text("no tab\n")
    assert "line 1 of 'bad.tsv'" in refused(capsys, "train", bad, "--out", tmp_path / "m")
    assert "No such file" in refused(capsys, "train", tmp_path / "no.tsv", "--out", tmp_path / "m")
    assert "options" in refused(capsys, "evaluate", tmp_path)
    (tmp_path / "options.json").write_text("{")
    assert "damaged" in refused(capsys, "translate", tmp_path, "Hello.")
    (tmp_path / "options.json").write_text('{"options": {"colour": 1}, "pairs_sha256": ""}')
    assert "another version" in refused(capsys, "translate", tmp_path, "Hello.")


def test_standard_input_that_is_not_utf8_is_refused_in_a_sentence(capsys, trained, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), encoding="utf-8"))
    assert "must be UTF-8" in refused(capsys, "translate", trained)


@pytest.mark.parametrize("package", ["torch", "tokenizers", "sacrebleu", "matplotlib"])
def test_a_package_that_is_missing_is_named_with_what_to_run(capsys, monkeypatch, trained, tmp_path, package):
    # None in sys.modules makes the next import fail, even if the package was imported before.
    for name in list(sys.modules):
        if package != "torch" and name.split(".")[0] == package:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.metrics", None)
    words = ["evaluate", trained]
    if package == "matplotlib":
        words = ["translate", trained, "Tom see the cat.", "--picture", tmp_path / "out.png"]
    said = refused(capsys, *words)
    assert package in said
    installed = {"matplotlib": '"qkv[look]"', "sacrebleu": "sacrebleu"}.get(package, '"qkv[hf,look]"')
    assert f"pip install {installed}" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "x", "--out", "y", "--score", "cosine"], "--score must be one of"),
        (["train", "x", "--out", "y", "--threads", "0"], "--threads must be at least 1, got 0"),
        (["train", "x", "--out", "y", "--save-every", "0"], "--save-every must be at least 1, got 0"),
        (["evaluate", "x", "--beam", "0"], "--beam must be at least 1, got 0"),
        (["translate", "x", "--beam", "-1"], "--beam must be at least 1, got -1"),
    ],
)
def test_invalid_options_are_refused_in_a_sentence(capsys, words, said):
    assert said in refused(capsys, *words)


def test_the_page_is_filled_between_its_marks_and_nowhere_else():
    text = "a\n<!-- runs: one -->\nold\n<!-- end -->\nb\n<!-- runs: two -->\n<!-- end -->\nc\n"
    new = filled(text, {"one": "| 1 |", "two": "2"})
    assert new == ("a\n<!-- runs: one -->\n\n| 1 |\n\n<!-- end -->\nb\n<!-- runs: two -->\n\n2\n\n<!-- end -->\nc\n")
    assert filled(new, {"one": "| 1 |", "two": "2"}) == new
    with pytest.raises(DataError, match="one comment for each"):
        filled(text, {"one": ""})


def test_the_page_shows_the_results():
    from examples.translate.page import PAGES

    assert sorted(name for names in PAGES.values() for name in names) == sorted(tables())
    for page, names in PAGES.items():
        assert filled(page.read_text(), {name: tables()[name] for name in names}) == page.read_text()


def test_every_score_is_timed_in_the_race(pairs_file, tmp_path):
    found = race(pairs_file, tmp_path / "race", small(), rounds=1, batches=1)
    assert list(found) == list(SCORE_NAMES)
    assert found["scaled-dot"]["times_scaled_dot"] == 1
    assert all(each["subwords_per_second"] > 0 for each in found.values())


def test_the_recorded_runs_are_commands_that_parse_and_differ_in_the_score_alone():
    found = {name: command.options_of(words.split()) for name, words in RUNS.items()}
    for group in (["gru-additive", "gru-none"], [name for name in found if name.startswith("short-")]):
        for name in group:
            differences = found[group[0]].differences(found[name])
            assert {flag for flag, *_ in differences} <= {"--score"}
    assert {found[name].score for name in found if name.startswith("short-")} == set(SCORE_NAMES) - {"none"}
