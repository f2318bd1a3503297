"""Sentences with questions that an annotator answered: which of these words does that word go with?"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from qkv.errors import DataError

__all__ = ["Question", "Sentence", "Span", "conllu", "gap", "plain", "winobias"]

Span = tuple[int, int]
"""First letter of a word in its text, and one past its last."""


@dataclass(frozen=True)
class Question:
    """A word that goes with one of several others.

    Fields:
        role: what is asked, such as `coreference` or `nsubj`.
        query: the word that asks.
        right: where it belongs.
        wrong: the other candidates; empty: every other word is one.
        condition: a group that is counted by itself too, such as `feminine`.
    """

    role: str
    query: Span
    right: Span
    wrong: tuple[Span, ...] = ()
    condition: str = ""


@dataclass(frozen=True)
class Sentence:
    """A text and what was asked of it."""

    text: str
    questions: tuple[Question, ...] = ()


def plain(texts: Iterable[str]) -> list[Sentence]:
    """Texts without annotation: enough for roles of position and repetition."""
    return [Sentence(text) for text in texts if text.strip()]


def gap(path: str | os.PathLike[str]) -> list[Sentence]:
    """Pronouns with two names, one of which they mean: GAP, a table with tabs (also .gz).

    Sentences whose pronoun means neither name are left out.

    Raises:
        DataError: the file is none of GAP.

    Source:
        Webster, Recasens, Axelrod and Baldridge 2018, Mind the GAP.
    """
    found = []
    reader = csv.DictReader(io.StringIO(_text(path)), delimiter="\t", quoting=csv.QUOTE_NONE)
    for row in reader:
        try:
            truth = [row["A-coref"].upper() == "TRUE", row["B-coref"].upper() == "TRUE"]
            spans = [(int(row[f"{name}-offset"]), int(row[f"{name}-offset"]) + len(row[name])) for name in ("A", "B")]
            at = int(row["Pronoun-offset"])
            query = (at, at + len(row["Pronoun"]))
            text = row["Text"]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(
                f"line {reader.line_num} of {Path(path).name!r} is none of GAP: the columns Text, Pronoun, "
                "A, B, their -offset and -coref are wanted, with tabs between."
            ) from None
        if sum(truth) != 1:
            continue
        right, wrong = spans if truth[0] else spans[::-1]
        gender = "feminine" if row["Pronoun"].lower() in ("she", "her", "hers") else "masculine"
        found.append(Sentence(text, (Question("coreference", query, right, (wrong,), gender),)))
    return found


def winobias(path: str | os.PathLike[str], occupations: Iterable[str], condition: str = "") -> list[Sentence]:
    """Sentences with a pronoun and two occupations: WinoBias, `3 [The mechanic] gave the clerk …, [she] won`.

    Args:
        path: a file of the collection.
        occupations: the words that can be candidates.
        condition: such as `pro` or `anti`, for stereotypes.

    Raises:
        DataError: a line is none of WinoBias.

    Source:
        Zhao, Wang, Yatskar, Ordonez and Chang 2018, Gender bias in coreference resolution.
    """
    names = sorted({name.strip().lower() for name in occupations if name.strip()}, key=len, reverse=True)
    known = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b", re.IGNORECASE)
    found = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        marked = re.sub(r"^\d+\s+", "", line.strip())
        if not marked:
            continue
        text, spans = _unmarked(marked)
        if len(spans) < 2:
            raise DataError(
                f"line {number} of {Path(path).name!r} is none of WinoBias: a pronoun and its occupation are "
                f"wanted in [brackets], and {len(spans)} words are."
            )
        pronouns = [span for span in spans if text[slice(*span)].lower() in _PRONOUNS]
        mentions = [span for span in spans if span not in pronouns]
        if len(mentions) != 1:
            continue  # two occupations in brackets ask nothing
        others = tuple(m.span() for m in known.finditer(text) if not _overlap(m.span(), mentions[0]))
        inner = known.search(text, *mentions[0])
        head = inner.span() if inner else mentions[0]
        if others and pronouns:
            questions = [Question("coreference", each, head, others, condition) for each in pronouns]
            found.append(Sentence(text, tuple(questions)))
    return found


def conllu(path: str | os.PathLike[str], relations: Iterable[str] | None = None) -> list[Sentence]:
    """Syntax trees: each word asks for its head, one role for each relation (`nsubj`, `obj`, `det` …).

    Args:
        path: a file in CoNLL-U.
        relations: these alone; None: all. Subtypes (`nsubj:pass`) count with their kind.

    Raises:
        DataError: a line is none of CoNLL-U.

    Source:
        universaldependencies.org/format.html; asked as in Clark, Khandelwal, Levy and Manning 2019.
    """
    wanted = None if relations is None else set(relations)
    return [sentence for lines in _paragraphs(path) if (sentence := _tree(lines, wanted, Path(path).name))]


_PRONOUNS = {"he", "she", "him", "her", "his", "hers", "himself", "herself", "they", "them", "their"}


def _tree(lines: list[tuple[int, str]], wanted: set[str] | None, name: str) -> Sentence | None:
    words: dict[int, Span] = {}
    heads: list[tuple[int, int, str]] = []
    text = ""
    covered = 0
    for number, line in lines:
        cells = line.split("\t")
        if len(cells) != 10:
            raise DataError(f"line {number} of {name!r} is none of CoNLL-U: it has {len(cells)} columns, not 10.")
        glue = "" if "SpaceAfter=No" in cells[9].split("|") else " "
        if "-" in cells[0]:  # several words written as one: the first of them stands for all
            first, last = map(int, cells[0].split("-"))
            span = (len(text), len(text) + len(cells[1]))
            words.update(dict.fromkeys(range(first, last + 1), span))
            text += cells[1] + glue
            covered = last
            continue
        if "." in cells[0]:  # an empty node stands for no word
            continue
        at = int(cells[0])
        if at > covered:
            words[at] = (len(text), len(text) + len(cells[1]))
            text += cells[1] + glue
        if cells[6] not in ("0", "_"):
            heads.append((at, int(cells[6]), cells[7].split(":")[0]))
    questions = tuple(
        Question(relation, words[at], words[head])
        for at, head, relation in heads
        if (wanted is None or relation in wanted) and words.get(at) != words.get(head) and head in words
    )
    return Sentence(text.rstrip(), questions) if questions else None


def _paragraphs(path: str | os.PathLike[str]) -> Iterator[list[tuple[int, str]]]:
    lines: list[tuple[int, str]] = []
    for number, line in enumerate([*_text(path).splitlines(), ""], 1):
        if line.strip() and not line.startswith("#"):
            lines.append((number, line))
        elif not line.strip() and lines:
            yield lines
            lines = []


def _unmarked(marked: str) -> tuple[str, list[Span]]:
    """A text without its brackets, and where they stood."""
    text, spans, start = "", [], 0
    for letter in marked:
        if letter == "[":
            start = len(text)
        elif letter == "]":
            spans.append((start, len(text)))
        else:
            text += letter
    return text, spans


def _overlap(a: Span, b: Span) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _text(path: str | os.PathLike[str]) -> str:
    file = Path(path)
    if not file.is_file():
        raise DataError(f"there is no file {str(path)!r}.")
    try:
        data = file.read_bytes()
        return (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{file.name!r} cannot be read: {error}.") from None
