"""Contracts of the text scores, and of rows of several columns."""

import math

import numpy as np
import pytest

import qkv
from qkv.errors import KindError, OptionError
from qkv.scores import ByColumn, Dot, Exact, Gaussian, JaroWinkler, Levenshtein, Names, Spelling, TokenSetRatio
from qkv.testing import ScoreContract

NAMES = ["martha", "marhta", "dwayne", "duane", "dixon", "dicksonx", "li", "Li", "", "new york mets", "mets new york"]


def levenshtein(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def alignment_edits(a, b):
    """Letters put in, left out or changed, or neighbours swapped (optimal string alignment)."""
    table = [[i + j for j in range(len(b) + 1)] for i in range(len(a) + 1)]
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            changed = table[i - 1][j - 1] + (a[i - 1] != b[j - 1])
            table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, changed)
            if i > 1 and j > 1 and a[i - 1] == b[j - 2] and a[i - 2] == b[j - 1]:
                table[i][j] = min(table[i][j], table[i - 2][j - 2] + 1)
    return table[-1][-1]


def jaro_winkler(a, b):
    if not a and not b:
        return 1.0
    reach = max(max(len(a), len(b)) // 2 - 1, 0)
    taken, mine = [False] * len(b), []
    for i, x in enumerate(a):
        for j in range(max(0, i - reach), min(len(b), i + reach + 1)):
            if not taken[j] and b[j] == x:
                taken[j] = True
                mine.append(x)
                break
    theirs = [y for y, was in zip(b, taken, strict=True) if was]
    if not mine:
        return 0.0
    m, t = len(mine), sum(x != y for x, y in zip(mine, theirs, strict=True)) // 2
    jaro = (m / len(a) + m / len(b) + (m - t) / m) / 3
    prefix = 0
    while prefix < min(4, len(a), len(b)) and a[prefix] == b[prefix]:
        prefix += 1
    return jaro + 0.1 * prefix * (1 - jaro) if jaro > 0.7 else jaro


def indel_ratio(a, b):
    """2 · (longest common subsequence) / (sum of the lengths)."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a, 1):
        for j, y in enumerate(b, 1):
            table[i][j] = table[i - 1][j - 1] + 1 if x == y else max(table[i - 1][j], table[i][j - 1])
    return 2 * table[-1][-1] / (len(a) + len(b)) if a or b else 1.0


def token_set_ratio(a, b):
    a, b = set(a.split()), set(b.split())
    if not a or not b:
        return 0.0
    both = " ".join(sorted(a & b))
    left, right = (f"{both} {' '.join(sorted(only))}".strip() for only in (a - b, b - a))
    if both and (a <= b or b <= a):
        return 1.0
    ratios = [indel_ratio(left, right)]
    if both:
        ratios += [indel_ratio(both, left), indel_ratio(both, right)]
    return max(ratios)


def spelling(a, b):
    return (jaro_winkler(a, b) + 1 - alignment_edits(a, b) / max(len(a), len(b), 1)) / 2


def in_order(short, long):
    letters = iter(long)
    return all(letter in letters for letter in short)


ROMAN = {"i": 1, "ii": 2, "iii": 3, "x": 10}


def number(word, initial=False):
    """Return the number that a word is; a single letter at the beginning of a query is an initial."""
    if word.isdigit():
        return int(word)
    return None if initial and len(word) == 1 else ROMAN.get(word)


def word_similarities(a, b, initial=False):
    """Return w(a, b) and c(a, b) of the module `names` for two words without accents and signs."""
    if a == b:
        return 1.0, 1.0
    one, two = number(a, initial), number(b)
    if a.isdigit() or b.isdigit() or (one is not None and two is not None):
        return 0.99 * (one == two), 0.99 * (one == two)
    first = a[0] == b[0]
    least = spelling(a, b)
    likes = [least if least >= 0.8 else 0.0]
    if first:
        likes += [0.9] * (len(a) == 1) + [0.75] * (len(b) == 1)
        short, long = sorted([a, b], key=len)
        likes += [0.8] * (len(short) >= 3 and in_order(short, long))
    other = max(likes)
    if len(a) > 1 and b.startswith(a):
        return max(other, 0.94), other if other >= 0.94 else len(a) / len(b)
    return other, other


def lacks_a_number(own, words):
    """Return whether a word of a query is a number that no word of a key is, and no other word begins with."""
    for at, word in enumerate(own):
        wanted = number(word, at == 0)
        if wanted is None or any(number(other) == wanted for other in words):
            continue
        if word.isdigit() or not any(number(other) is None and other.startswith(word) for other in words):
            return True
    return False


def name_similarity(q, k):
    if q == k:
        return 1.0
    q, k = q.lower(), k.lower()
    own, words = q.split(), k.split()
    if lacks_a_number(own, words):
        return 0.0
    share = 0.0
    if words and any(len(word) > 1 or word.isdigit() for word in own):
        pairs = [[word_similarities(a, b, at == 0) for b in words] for at, a in enumerate(own)]
        found = sum(len(a) * max(w for w, _ in row) for a, row in zip(own, pairs, strict=True)) / sum(map(len, own))
        named = sum(len(b) * max(row[i][1] for row in pairs) for i, b in enumerate(words)) / sum(map(len, words))
        named = 1.0 if min(found, named) > 1 - 1e-9 else min(named, 0.94)
        if k.startswith(q) and k != q:
            if len(own) == 1 and k[len(q)] != " ":
                named = max(named, 0.2 + 0.7 * len(q) / len(k))
            if len(own) > 1 and (k[len(q)] == " " or not own[-1].isdigit()):
                named = 0.95 + 0.05 * len(q) / len(k)
        share = found * (0.9 + 0.1 * named)
    errors = 1.5 if " " in q and " " in k else 1.0
    return 0.99 * max(1 - errors * (1 - spelling(q, k)), share)


class TextContract(ScoreContract):
    libraries = ("numpy",)
    dtypes = ("float64",)
    compares_widths = False
    differentiable = False

    def rows(self, draw, length, width):
        return np.array(NAMES, dtype=object)[draw.integers(len(NAMES), length)]

    def test_lists_of_text_are_taken(self):
        assert self.part()(["martha"], ["martha", "xyz"])[0].tolist() == [1.0, 0.0]

    def test_what_is_missing_is_similar_to_nothing(self):
        rows = np.array(["martha", None], dtype=object)
        assert self.part()(rows, rows).tolist() == [[1.0, 0.0], [0.0, 0.0]]

    def test_refuses_numbers_and_says_what_to_do(self):
        with pytest.raises(KindError, match=r"must be text for the score .*numbers.*Give arrays of text"):
            self.part()(np.ones((1, 2)), np.ones((3, 2)))


class TestJaroWinkler(TextContract):
    part = JaroWinkler

    def formula(self, score, q, k, at):
        return jaro_winkler(q, k)


class TestLevenshtein(TextContract):
    part = Levenshtein

    def formula(self, score, q, k, at):
        return 1 - levenshtein(q, k) / max(len(q), len(k), 1)


class TestSpelling(TextContract):
    part = Spelling

    def formula(self, score, q, k, at):
        return spelling(q, k)


class TestNames(TextContract):
    part = Names

    def rows(self, draw, length, width):
        names = [*NAMES, "new york", "m s", "york 21", "york 2121", "nwy yrk", "n york", "mets a"]
        names += ["york ii", "york iii", "york 2", "york 02", "york i", "x york", "york x", "new yo", "new xor"]
        return np.array(names, dtype=object)[draw.integers(len(names), length)]

    def formula(self, score, q, k, at):
        return name_similarity(q, k)


class TestTokenSetRatio(TextContract):
    part = TokenSetRatio

    def formula(self, score, q, k, at):
        return token_set_ratio(q, k)


class TestByColumn(ScoreContract):
    part = ByColumn
    libraries = ("numpy",)
    dtypes = ("float64",)
    compares_widths = False
    differentiable = False

    def make(self, draw):
        return ByColumn((("city", Exact(), 2.0), ("size", Gaussian(0.5), 1.0)))

    def rows(self, draw, length, width):
        rows = np.empty((*draw.batch, length), dtype=[("city", object), ("size", float)])
        rows["city"] = np.array(["Oslo", "Rome"], dtype=object)[draw.integers(2, length)]
        rows["size"] = draw(length)
        return rows

    def formula(self, score, q, k, at):
        return 2.0 * (q["city"] == k["city"]) - (q["size"] - k["size"]) ** 2 / 0.5

    @pytest.mark.parametrize("columns", [(), [("city", Exact(), 1.0)], (("city", Exact()),), (("city", "exact", 1.0),)])
    def test_refuses_what_is_no_tuple_of_name_score_weight(self, columns):
        with pytest.raises(OptionError, match=r"must be .*\(name, score, weight\), got"):
            ByColumn(columns)

    def test_refuses_a_column_that_is_not_there_and_names_those_that_are(self):
        rows = np.array([("Oslo",)], dtype=[("city", object)])
        with pytest.raises(KindError, match=r"column 'size'.*city"):
            self.make(None)(rows, rows)


def test_text_that_is_missing_equals_nothing_itself_included():
    rows = np.array(["Li", None], dtype=object)
    assert Exact()(rows, rows).tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_neighbouring_member_numbers_are_told_apart_although_the_values_are_float32():
    members = np.array([[16_777_216], [16_777_217]])
    joined = np.array([[1.0], [2.0]], dtype=np.float32)
    for kernel in ("dense", "numpy_blocks"):
        assert qkv.attend(members, members, joined, score=Exact(), kernel=kernel).tolist() == [[1.0], [2.0]]


def test_text_meeting_numbers_is_refused_by_kind():
    with pytest.raises(KindError, match=r"must be of the same kind, got text and numbers"):
        Exact()(["Li"], np.ones((2, 3)))


def test_text_for_a_score_of_numbers_is_refused_with_the_text_scores():
    with pytest.raises(KindError, match=r"must be numbers for the score Dot, got text.*JaroWinkler"):
        Dot()(["Li"], ["Li"])


def test_similarities_of_batches_of_text_broadcast():
    rows = np.array([["martha", "li"], ["dixon", "duane"]], dtype=object)
    logits = JaroWinkler()(rows[:, None], rows[None])
    assert logits.shape == (2, 2, 2, 2)
    assert logits[1, 0, 0, 1] == pytest.approx(jaro_winkler("dixon", "li"))
    assert math.isclose(logits[0, 0, 0, 0], 1.0)
