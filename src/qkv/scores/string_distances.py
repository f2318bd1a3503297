"""Edit distances and similarities of strings in pure Python, for Pyodide, which has no RapidFuzz.

Names and results are those of RapidFuzz, whose functions `string_functions.py` replaces. Distances are computed by
bit-parallel dynamic programming: an integer of Python holds a column of the matrix, one bit for each character of the
first string, so that a pair takes time linear in the length of the second string.

Sources: Hyyrö (2003), A bit-vector algorithm for computing Levenshtein and Damerau edit distances; Hyyrö (2004),
Bit-parallel LCS-length computation revisited; Winkler (1990), String comparator metrics and enhanced decision rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from qkv.core.progress import checkpoint

__all__ = ["OSA", "JaroWinkler", "LCSseq", "Levenshtein", "Prefix", "similarities", "token_set_ratio"]

_WINKLER_SCALE, _WINKLER_LETTERS, _WINKLER_FROM = 0.1, 4, 0.7


class Levenshtein:
    """Edit distance of insertions, deletions and substitutions."""

    @staticmethod
    def distance(first: str, second: str) -> int:
        """Return the number of edits between two strings."""
        return _edits(first, second, swaps=False)

    @classmethod
    def normalized_similarity(cls, first: str, second: str) -> float:
        """Return 1 minus the distance divided by the longer length."""
        return _normalized(cls.distance(first, second), max(len(first), len(second)))


class OSA(Levenshtein):
    """Optimal string alignment: an edit may also swap two neighbors."""

    @staticmethod
    def distance(first: str, second: str) -> int:
        return _edits(first, second, swaps=True)


class LCSseq:
    """Longest common subsequence."""

    @staticmethod
    def similarity(first: str, second: str) -> int:
        """Return the length of the longest common subsequence of two strings."""
        first, second = sorted((first, second), key=len, reverse=True)
        everything = (1 << len(first)) - 1
        positions, open_bits = _positions(first), everything
        for character in _checked(second):
            matches = open_bits & positions.get(character, 0)
            open_bits = ((open_bits + matches) | (open_bits - matches)) & everything
        return len(first) - open_bits.bit_count()


class Prefix:
    """Common beginning."""

    @staticmethod
    def similarity(first: str, second: str) -> int:
        """Return the number of characters with which both strings begin."""
        return next(
            (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
        )


class JaroWinkler:
    """Jaro similarity, raised for strings with a common beginning."""

    @staticmethod
    def normalized_similarity(first: str, second: str) -> float:
        """Return the Jaro–Winkler similarity of two strings."""
        jaro = _jaro(first, second)
        if jaro <= _WINKLER_FROM:
            return jaro
        prefix = min(Prefix.similarity(first, second), _WINKLER_LETTERS)
        return jaro + prefix * _WINKLER_SCALE * (1.0 - jaro)


def token_set_ratio(first: str, second: str) -> float:
    """Return the largest similarity, from 0 to 100, of the common words of two texts and their different words."""
    words, others = set(first.split()), set(second.split())
    if not words or not others:
        return 0.0
    common = words & others
    if common and (words <= others or others <= words):
        return 100.0
    left, right = " ".join(sorted(words - others)), " ".join(sorted(others - words))
    shared = len(" ".join(sorted(common)))
    space = int(bool(shared))
    edits = len(left) + len(right) - 2 * LCSseq.similarity(left, right)
    longer, shorter = shared + space + len(left), shared + space + len(right)
    ratios = [_percent(edits, longer + shorter)]
    if shared:
        ratios += [_percent(space + len(left), shared + longer), _percent(space + len(right), shared + shorter)]
    return max(ratios)


def similarities(
    queries: Sequence[str | None], choices: Sequence[str | None], scorer: Callable[[str, str], float]
) -> list[list[float]]:
    """Return the similarity of each query to each choice; that of None to anything is 0."""
    found: dict[str, float] = {}
    rows = []
    for query in queries:
        found.clear()  # a choice that occurs several times is compared once
        row = []
        for choice in choices:
            if query is None or choice is None:
                row.append(0.0)
                continue
            if choice not in found:
                found[choice] = scorer(query, choice)
            row.append(found[choice])
        rows.append(row)
    return rows


def _checked(text: str) -> Iterator[str]:
    """Yield the characters of a text, with checkpoints."""
    for start in range(0, len(text), 256):
        checkpoint()
        yield from text[start : start + 256]


def _positions(text: str) -> dict[str, int]:
    """Return for each character the bits of the positions at which it stands."""
    bits: dict[str, int] = {}
    for place, character in enumerate(text):
        bits[character] = bits.get(character, 0) | 1 << place
    return bits


def _edits(first: str, second: str, swaps: bool) -> int:
    """Return the edit distance of two strings.

    Bit i of `rises` and `falls` states whether the distance of the first i + 1 characters is one more or one less than
    that of the first i; bit i of `diagonal` whether a diagonal step costs nothing.
    """
    first, second = sorted((first, second), key=len, reverse=True)
    size = len(first)
    if not size:
        return 0
    everything, last = (1 << size) - 1, 1 << (size - 1)
    positions, rises, falls, diagonal, before, edits = _positions(first), everything, 0, 0, 0, size
    for character in _checked(second):
        equal = positions.get(character, 0)
        swapped = ((~diagonal & equal) << 1) & before if swaps else 0
        diagonal = (((((equal & rises) + rises) ^ rises) | equal | falls) | swapped) & everything
        more = (falls | ~(diagonal | rises)) & everything
        less = diagonal & rises
        edits += bool(more & last) - bool(less & last)
        more, less, before = more << 1 | 1, less << 1, equal
        rises, falls = (less | ~(diagonal | more)) & everything, diagonal & more
    return edits


def _jaro(first: str, second: str) -> float:
    """Return the Jaro similarity, a mean of the shares of characters that both have at about the same place."""
    if not first or not second:
        return float(first == second)
    reach = max(max(len(first), len(second)) // 2 - 1, 0)
    matched, own = [False] * len(second), []
    for place, character in enumerate(first):
        for other in range(max(0, place - reach), min(len(second), place + reach + 1)):
            if second[other] == character and not matched[other]:
                matched[other] = True
                own.append(character)
                break
    if not own:
        return 0.0
    theirs = [character for character, is_matched in zip(second, matched, strict=True) if is_matched]
    moved = sum(a != b for a, b in zip(own, theirs, strict=True)) // 2
    count = len(own)
    return (count / len(first) + count / len(second) + (count - moved) / count) / 3


def _normalized(edits: int, longest: int) -> float:
    return 1.0 - edits / longest if longest else 1.0


def _percent(edits: int, longest: int) -> float:
    return 100.0 - 100.0 * edits / longest if longest else 100.0
