"""Answers computed again from what `qkv ask --format json` prints alone: the calls that ran, and the rows."""

import csv
import json
import math
import re

import numpy as np
import pytest
from rapidfuzz.distance import Levenshtein

COUNT = 50
"""Drawn answers of each kind; 200 in all."""


def written(path, columns):
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(columns)
        out.writerows(zip(*columns.values(), strict=True))
    return str(path)


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def sparsemax(logits):
    ordered = np.sort(logits)[::-1]
    sizes = np.arange(1, len(ordered) + 1)
    size = sizes[1 + sizes * ordered > np.cumsum(ordered)].max()
    return np.maximum(logits - (ordered[:size].sum() - 1) / size, 0)


def weights_of(normalizer, logits):
    """The weights of a normalizer as it is printed, such as TopK(10, normalizer=Softmax(0.02))."""
    name, inner = re.fullmatch(r"(\w+)\((.*)\)", normalizer).groups()
    if name == "TopK":
        count, _, then = inner.partition(", normalizer=")
        order = np.argsort(-logits, kind="stable")[: int(count)]
        out = np.zeros(len(logits))
        out[order] = weights_of(then or "Softmax()", logits[order])
        return out
    if name == "Softmax":
        return softmax(logits / float(inner or 1))
    if name == "Hard":
        return np.eye(len(logits))[logits.argmax()]
    return {"Sum": lambda each: each / each.sum(), "Sparsemax": sparsemax}[name](logits)


def logits_of(call, key, query, records):
    """The logits of the printed rows by the last call, from its score as it is printed and its bandwidths."""
    if call["score"] == "Exact()":
        return np.ones(len(records))  # the rows of one key
    if call["score"] == "Levenshtein()":
        name = key[0]
        similar = [Levenshtein.normalized_similarity(query[name].casefold(), row[name].casefold()) for row in records]
        return np.array(similar)
    squares = [
        sum(((row[name] - float(query[name])) / width) ** 2 for name, width in call["bandwidth"].items())
        for row in records
    ]
    radius = np.sqrt(squares)
    with np.errstate(divide="ignore"):
        if "Laplace" in call["score"]:
            return -radius
        if "Epanechnikov" in call["score"]:
            return np.log(np.maximum(1 - radius**2, 0))
        return -0.5 * radius**2  # Gaussian, also among the columns of ByColumn: the rows have the texts of one group


def check(answer, key, query, value):
    """Compare an answer with the mean or the vote by the weights that its last call gives."""
    rows, call = answer["rows"], answer["calls"][-1]
    records = [row["record"] for row in rows]
    weights = weights_of(call["normalizer"], logits_of(call, key, query, records))
    assert weights == pytest.approx([row["weight"] for row in rows], rel=1e-6, abs=1e-9)
    cells = [record[value] for record in records]
    if isinstance(cells[0], str):
        votes = {}
        for weight, cell in zip(weights, cells, strict=True):
            votes[cell] = votes.get(cell, 0) + weight
        assert votes[answer["value"]] == pytest.approx(max(votes.values()))
        return
    mean = float(weights @ np.array(cells))
    assert answer["value"] == pytest.approx(mean, rel=1e-6, abs=1e-9)
    assert answer["spread"] == pytest.approx(math.sqrt(weights @ np.square(np.array(cells) - mean)), rel=1e-4, abs=1e-6)
    assert answer["effective_rows"] == pytest.approx(1 / np.square(weights).sum(), rel=1e-6)


def asked(qkv, path, key, value, queries, *options):
    found = qkv("ask", path, "--key", key, "--value", value, *queries, "--top", "1000", "--format", "json", *options)
    return [json.loads(line) for line in found[1].splitlines()]


NAMES = [f"{first} {last}" for first in ("Ann", "Jon", "Maria", "Oskar") for last in ("Lindgren", "Okafor", "Tanaka")]


@pytest.mark.thinned
@pytest.mark.parametrize(
    "options", [[], ["--score", "levenshtein", "--min-similarity", "0"]], ids=["names", "levenshtein"]
)
@pytest.mark.parametrize("value", ["pay", "town"])
def test_answers_of_texts_follow_from_what_is_printed(qkv, tmp_path, options, value):
    rng = np.random.default_rng(len(options))
    names = [str(rng.choice(NAMES)) for _ in range(60)]
    columns = {"name": names, "pay": rng.normal(50, 9, 60).round(3), "town": rng.choice(["Oslo", "Rome"], 60)}
    path = written(tmp_path / "people.csv", columns)
    queries = [str(rng.choice(NAMES)) for _ in range(COUNT // 4)]
    queries = [name if rng.random() < 0.5 else name[:-2] + name[-1] + name[-2] for name in queries]
    found = asked(qkv, path, "name", value, queries, *options)
    assert sum(answer["found"] for answer in found) > COUNT // 8
    for answer, query in zip(found, queries, strict=True):
        if answer["found"]:
            check(answer, ["name"], {"name": query}, value)
            if not options:
                assert len({row["record"]["name"] for row in answer["rows"]}) == 1


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--score", "laplace:0.5"],
        ["--score", "epanechnikov:1"],
        ["--normalizer", "topk:7:0.5"],
        ["--normalizer", "sparsemax"],
        ["--score", "laplace"],
    ],
    ids=str,
)
def test_answers_of_numbers_follow_from_what_is_printed(qkv, tmp_path, options):
    rng = np.random.default_rng(3)
    x = rng.uniform(0, 10, 80).round(4)
    path = written(tmp_path / "curve.csv", {"x": x, "y": (np.sin(x) + rng.normal(0, 0.1, 80)).round(4)})
    queries = [f"{query:.3f}" for query in rng.uniform(1, 9, COUNT // 6 + 1)]
    for answer, query in zip(asked(qkv, path, "x", "y", queries, *options), queries, strict=True):
        assert answer["found"]
        check(answer, ["x"], {"x": query}, "y")


@pytest.mark.parametrize("key", ["a,b", "county,x", "shop_id,x"])
def test_answers_of_two_keys_follow_from_what_is_printed(qkv, tmp_path, key):
    rng = np.random.default_rng(len(key))
    count, group = 120, rng.integers(0, 3, 120)
    x = rng.uniform(0, 10, count).round(4)
    noise = np.array([0.01, 0.3, 1.0])[group]
    columns = {"a": x, "b": rng.normal(0, 100, count).round(3), "x": x, "shop_id": group + 100}
    columns["county"] = np.array(["Kent", "Essex", "Surrey"])[group]
    columns["y"] = (np.sin(x * (3 - group)) + noise * rng.normal(size=count)).round(4)
    path = written(tmp_path / "two.csv", columns)
    names = key.split(",")
    rows = rng.integers(0, count, COUNT // 3)
    shifted = {name: [float(columns[name][row]) + 0.01 for row in rows] for name in ("a", "b", "x")}
    texts = {name: [str(columns[name][row]) for row in rows] for name in ("county", "shop_id")}
    queries = list(zip(*({**shifted, **texts}[name] for name in names), strict=True))
    found = asked(qkv, path, key, "y", [",".join(map(str, query)) for query in queries])
    for answer, query in zip(found, queries, strict=True):
        if answer["found"]:
            check(answer, names, dict(zip(names, query, strict=True)), "y")
            groups = {row["record"][name] for row in answer["rows"] for name in names if name in texts}
            assert len(groups) <= 1
    assert sum(answer["found"] for answer in found) > COUNT // 4


def test_answers_of_categories_follow_from_what_is_printed(qkv, tmp_path):
    rng = np.random.default_rng(5)
    codes = rng.integers(1000, 1020, 100)
    path = written(tmp_path / "codes.csv", {"item_id": codes, "y": rng.normal(size=100).round(3)})
    queries = [str(code) for code in codes[: COUNT // 2]]
    for answer, query in zip(asked(qkv, path, "item_id", "y", queries), queries, strict=True):
        check(answer, ["item_id"], {"item_id": query}, "y")
        assert {row["record"]["item_id"] for row in answer["rows"]} == {int(query)}
        assert len(answer["rows"]) == int((codes == int(query)).sum())
