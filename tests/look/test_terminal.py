"""Maps as text in the terminal."""

import re

import numpy as np

from qkv.look.terminal import text_map

WORDS = ["he", "saw", "it"]


def test_without_colour_each_weight_is_a_digit():
    lines = text_map(np.array([[1, 0, 0.5], [0.05, 0.95, 0], [0, 0, 1]]), WORDS, WORDS, color=False).split("\n")
    assert lines[1:4] == [" he  905", "saw  090", " it  009"]


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in text_map(np.eye(3), WORDS, WORDS)
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b[38;2;" in text_map(np.eye(3), WORDS, WORDS)


def colours(text, line):
    """Return the colours of the characters, for the upper and for the lower query of a line of the map."""
    found = re.findall(r"38;2;(\d+;\d+;\d+)(?:;48;2;(\d+;\d+;\d+))?m▀", text.split("\n")[line])
    return [upper for upper, _ in found], [lower for _, lower in found]


def test_two_queries_share_a_line_and_each_has_its_colour():
    names = list("abcdefgh")
    # A cell has three characters.
    upper, lower = (rows[::3] for rows in colours(text_map(np.eye(8), names, names, color=True, width=90), 1))
    assert upper[:2] == ["240;249;255", "21;24;29"]
    assert lower[:2] == ["21;24;29", "240;249;255"]


def test_negative_masked_and_invalid_weights_have_colours_and_digits_of_their_own():
    weights = np.where(np.tri(8, dtype=bool), 0.0, 7.0)
    weights[4, 2], weights[5, 1], weights[6, 3], weights[7, 7] = 0.7, -0.7, np.nan, -0.002
    options = {"allowed": np.tri(8, dtype=bool), "width": 120}
    words = list("abcdefgh")
    text = text_map(weights, words, words, color=False, **options)
    assert text.split("\n")[0] == "query ↓ key →   9: from 0.630, largest magnitude 0.700"
    assert [line.split("  ", 1)[1] for line in text.split("\n")[5:9]] == [
        " 0 0 9 0 0 · · ·", " 0−9 0 0 0 0 · ·", " 0 0 0 ? 0 0 0 ·", " 0 0 0 0 0 0 0 0",
    ]  # fmt: skip
    text = text_map(weights, words, words, color=True, **options)
    assert "orange: negative" in text.split("\n")[0]
    upper, lower = (rows[::3] for rows in colours(text, 3))
    assert (upper[2], lower[1], upper[6], upper[0]) == ("150;208;255", "255;190;110", "52;55;60", "21;24;29")
    assert colours(text, 4)[0][9] == "255;80;190"


def test_the_range_of_a_causal_map_is_stated_and_follows_the_rule_of_the_page():
    weights = np.tril(np.random.default_rng(0).random((128, 128)) ** 4)
    weights /= weights.sum(axis=1, keepdims=True)
    names = [str(n) for n in range(128)]
    text = text_map(weights, names, names, color=True, width=150, allowed=np.tri(128, dtype=bool))
    assert text.startswith("query ↓ key →   faint below 0.0153, brightest from ")
    bright = np.array([sum(map(int, shade.split(";"))) for line in range(1, 65) for shade in colours(text, line)[0]])
    known = np.tri(128, dtype=bool)[::2]
    # Also late rows, whose largest weights are 0.03, are not dark.
    assert (bright.reshape(64, 128)[weights[::2] > 4 * 0.0153] > 230).all()
    assert (bright.reshape(64, 128)[~known] == 52 + 55 + 60).all()
    narrow = text_map(weights, names, names, color=False, width=40, allowed=np.tri(128, dtype=bool))
    assert max(map(len, narrow.split("\n"))) <= 40


def test_empty_maps_and_maps_of_zeros_are_drawn():
    assert text_map(np.zeros((0, 0)), [], [], color=False).split("\n") == ["query ↓ key →   largest 0"]
    assert text_map(np.zeros((1, 2)), ["a"], ["b", "c"], color=False).split("\n")[1] == "a  00"
    assert "largest 0" in text_map(np.full((1, 2), np.nan), ["a"], ["b", "c"], color=True)


def test_a_line_of_two_queries_names_both():
    words = ["he", "extraordinarily", "saw"]
    lines = text_map(np.eye(3), words, words, color=True, width=80).split("\n")
    assert [re.sub("\x1b.*", "", line).strip() for line in lines[1:3]] == ["he/extraord…", "saw"]


def test_a_map_wider_than_the_terminal_keeps_its_largest_weight():
    weights = np.zeros((2, 500))
    weights[1, 333] = 1
    lines = text_map(weights, ["a", "b"], ["x"] * 500, color=False, width=60).split("\n")
    assert max(map(len, lines)) <= 60
    assert lines[2].count("9") == 1
