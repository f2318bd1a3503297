"""`qkv join --label`: questions in the terminal, answers in a file, and what interrupts them."""

import pytest

from .test_join import ON, TABLES


@pytest.fixture(name="press")
def _press(monkeypatch):
    """Make the terminal give these keys, one for each question; an exception is raised in place of a key."""

    def press(keys):
        left = iter(keys)

        def read_key():
            key = next(left)
            if isinstance(key, BaseException):
                raise key
            return key

        monkeypatch.setattr("qkv.cli.join.read_key", read_key)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)

    return press


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_answers_are_saved_and_the_same_command_continues(qkv, press, tmp_path):
    file = tmp_path / "answers.csv"
    asking = ("join", *TABLES, *ON, "--label", "4", "--labels", str(file))
    press("y?nq")  # a key without a meaning is ignored
    code, out, err = qkv(*asking)
    assert code == 0
    assert "pair 3 of 4" in err
    assert "guest" in err
    first = lines(file)
    assert (first[0], len(first)) == ("left,right,match", 3)
    assert [line[-1] for line in first[1:]] == ["1", "0"]
    assert "scores corrected by 2 labels, 1 of them match" in out
    press("sny")
    code, out, err = qkv(*asking)
    assert code == 0
    assert lines(file)[:3] == first
    assert len({line.rsplit(",", 1)[0] for line in lines(file)}) == 5
    press("")
    assert qkv(*asking)[1] == out  # all labels are there, and nothing is asked
    assert qkv("join", *TABLES, *ON, "--labels", str(file))[1] == out


def test_undo_asks_the_last_pair_again(qkv, press, tmp_path):
    file = tmp_path / "answers.csv"
    press("uyunq")
    code, _, err = qkv("join", *TABLES, *ON, "--label", "2", "--labels", str(file))
    assert code == 0
    assert "nothing to undo" in err
    assert [line[-1] for line in lines(file)] == ["h", "0"]


def test_an_interruption_keeps_the_answers(qkv, press, tmp_path):
    file = tmp_path / "answers.csv"
    press(["y", KeyboardInterrupt()])
    code, out, err = qkv("join", *TABLES, *ON, "--label", "5", "--labels", str(file))
    assert (code, out) == (130, "")
    assert f"1 labels are in {file}" in err
    assert len(lines(file)) == 2


def test_ids_name_the_rows_in_the_file(press, tmp_path, monkeypatch, capfd):
    from qkv.cli.main import run

    for name, rows in (("a.csv", "k1,Ann Ray\nk2,Bo Li\n"), ("b.csv", "m1,Anne Ray\nm2,Eve Day\n")):
        (tmp_path / name).write_text("id,name\n" + rows, encoding="utf-8")
    press("y")
    monkeypatch.chdir(tmp_path)
    assert run(["join", "a.csv", "b.csv", "--id", "id", "--label", "1"]) == 0
    left, right, match = lines(tmp_path / "a-b-labels.csv")[1].split(",")
    assert left in ("k1", "k2")
    assert right in ("m1", "m2")
    assert match == "1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--label", "3", "--labels", "new.csv"), "left, right and match (row numbers from 0, and 1 for a match"),
        (("--labels", "absent.csv"), "must name an existing file"),
        (("--labels", "same.json", "--label", "3"), ".csv"),
        (("--labels", "guests.csv"), "must have the columns left and right"),
    ],
)
def test_labels_that_cannot_be_asked_or_read_are_refused(qkv, arguments, said):
    code, out, err = qkv("join", *TABLES, *ON, *arguments)
    assert (code, out) == (2, "")
    assert said in err
