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


def test_two_queries_share_a_line_and_each_has_its_colour():
    text = text_map(np.eye(2), ["a", "b"], ["a", "b"], color=True, width=20)
    line = text.split("\n")[1]
    first, second = re.findall(r"38;2;(\d+;\d+;\d+);48;2;(\d+;\d+;\d+)m▀+", line)[::3]
    assert first == ("255;245;220", "24;24;28")
    assert second == ("24;24;28", "255;245;220")


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
