"""Pictures are retrieved by words: the accuracy, and that the output is computed from the values."""

import importlib.util

import numpy as np
import pytest

if any(importlib.util.find_spec(name) is None for name in ("torch", "sklearn")):
    pytest.skip("torch or scikit-learn is not installed", allow_module_level=True)

import torch
from examples.pictures import __main__ as command
from examples.pictures import drawing
from examples.pictures.learning import Album, ask, by_pixels, learn, measure
from examples.pictures.wordings import Wordings

from qkv.errors import DataError, OptionError


@pytest.fixture(scope="module")
def album():
    return Album.digits_of(0)


@pytest.fixture(scope="module")
def trained(album):
    return learn(album, command._STEPS, 0)


@pytest.fixture(scope="module")
def asked(album):
    """Return the wordings that occur in no caption, and the digits that they mean."""
    wordings = album.wordings
    return [wordings.texts[at] for at in wordings.asked], wordings.digits[wordings.asked]


def test_wordings_that_no_caption_had_find_pictures_without_caption(album, trained, asked):
    texts, means = asked
    assert not set(texts) & {album.wordings.texts[at] for at in album.captions}
    found = ask(album, trained, texts)
    reached = measure(album, found, means)
    print(reached)
    assert reached["precision"] >= command.PROMISED
    assert reached["first"] >= 0.97
    assert reached["mass"] >= 0.7
    plain = type(found)(texts, found.weights, by_pixels(album, means))
    assert reached["precision"] > measure(album, plain, means)["precision"] + 0.05
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)


def test_captions_under_other_pictures_find_nothing_though_the_weights_are_the_same(album, trained, asked):
    texts, means = asked
    swapped = torch.roll(album.pictures, 1, 0)
    found = ask(album, trained, texts, swapped)
    np.testing.assert_allclose(found.weights, ask(album, trained, texts).weights, atol=1e-6)
    assert measure(album, found, means)["precision"] < 0.3


def test_names_of_a_digit_have_one_meaning_although_no_caption_contains_both(album, trained):
    found = ask(album, trained, ["seven"])
    captions = np.array([album.wordings.texts[at] for at in album.captions])
    other = np.array([{"7", "sept", "sieben"} & set(text.split()) != set() for text in captions])
    wrong = album.digits != 7
    assert found.weights[0, other].mean() > 3 * found.weights[0, wrong].mean()


def test_both_halves_of_the_pictures_are_disjoint_and_all_of_them(album):
    assert len(album.pictures) + len(album.others) == 1797
    both = torch.cat([album.pictures, album.others])
    assert len(torch.unique(both, dim=0)) == len(both)


@pytest.mark.parametrize("seed", range(5))
def test_every_name_stands_in_a_caption_and_no_word_means_two_digits(seed):
    wordings = Wordings.drawn(seed)
    assert not set(wordings.captions) & set(wordings.asked)
    assert len(set(wordings.texts)) == len(wordings.texts)
    seen = {word for at in wordings.captions for word in wordings.texts[at].split()}
    assert seen == set(wordings.vocabulary)


def test_a_wording_has_as_many_words_as_it_has_however_long_the_others_are(album, trained):
    with torch.no_grad():
        alone = album.read(trained, ["seven"])
        beside = album.read(trained, ["a picture of 7", "Seven"])[1:]
    torch.testing.assert_close(alone, beside)


def test_an_unknown_word_is_named_with_those_that_are_known(album):
    with pytest.raises(OptionError, match=r"seven.*got 'a umpteen' with 'umpteen'"):
        album.wordings.numbered(["a umpteen"])
    with pytest.raises(OptionError, match="got ''"):
        album.wordings.numbered([""])


def test_the_command_prints_its_number_and_draws_what_was_asked(capsys, tmp_path):
    target = tmp_path / "seven.png"
    code = command.main(["a seven", "huit", "--steps", "2", "--picture", str(target)])
    out = capsys.readouterr().out
    assert code == 0
    assert "precision@1" in out
    assert "mean average precision" in out
    assert "largest weights of 'huit': “" in out
    assert target.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["seven.png"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["umpteen"], "got 'umpteen' with 'umpteen'"),
        (["--steps", "0"], "--steps must be at least 2, got 0."),
        (["--seed", "-1"], "--seed must be at least 0, got -1."),
        (["--picture", "seven.doc"], "must end in .png or .svg or .pdf"),
        (["--picture", "nowhere/seven.png"], "must exist, got 'nowhere'"),
    ],
)
def test_invalid_input_gives_one_sentence_on_stderr(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    assert command.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("pictures: ")
    assert err.count("\n") == 1
    assert said in err


def test_precision_below_the_documented_one_sets_the_exit_code(capsys, monkeypatch):
    monkeypatch.setattr(command, "_STEPS", 2)
    assert command.main(["--steps", "2"]) == 1
    assert "must be at least 0.95" in capsys.readouterr().err


def test_a_picture_that_cannot_be_written_is_reported_and_leaves_no_file(album, trained, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(DataError, match="No space left on device"):
        drawing.save(tmp_path / "a.png", album, ask(album, trained, ["a seven"]))
    assert list(tmp_path.iterdir()) == []
