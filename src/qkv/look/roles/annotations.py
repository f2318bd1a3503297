"""Read annotated sentences with questions that ask which of several candidate words is related to a word."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path

from qkv.errors import DataError
from qkv.search.text_sources import read_file

Span = tuple[int, int]
"""Index of the first character of a word in its text, and one past the last."""


@dataclass(frozen=True)
class Question:
    """A question that asks which of several candidates is related to a word, such as the antecedent of a pronoun.

    Attributes:
        role: the relation, such as `coreference` or `nsubj`.
        query: span of the word.
        right: span of the right candidate.
        wrong: spans of the other candidates; empty: all other words are candidates.
        condition: name of a group whose questions are also counted separately, such as `feminine`.

    Example:
        >>> from qkv.look.roles import Question
        >>> text = "Ann met Eve. She smiled."
        >>> question = Question("coreference", query=(13, 16), right=(0, 3), wrong=((8, 11),))
        >>> [text[start:end] for start, end in (question.query, question.right, *question.wrong)]
        ['She', 'Ann', 'Eve']
    """

    role: str
    query: Span
    right: Span
    wrong: tuple[Span, ...] = ()
    condition: str = ""


@dataclass(frozen=True)
class AnnotatedSentence:
    """A text, usually one sentence, with questions about its words.

    Attributes:
        text: the text.
        questions: the questions; empty for texts without annotation.

    Example:
        >>> from qkv.look.roles import AnnotatedSentence, Question
        >>> question = Question("coreference", query=(12, 15), right=(0, 3), wrong=((4, 7),))
        >>> AnnotatedSentence("Ann met Eve. She smiled.", (question,)).questions[0].role
        'coreference'
    """

    text: str
    questions: tuple[Question, ...] = ()


def plain_sentences(texts: Iterable[str]) -> list[AnnotatedSentence]:
    """Return an `AnnotatedSentence` without questions for each non-empty text, to measure positional roles.

    Example:
        >>> from qkv.look.roles import plain_sentences
        >>> [sentence.text for sentence in plain_sentences(["The dog was happy.", ""])]
        ['The dog was happy.']
    """
    return [AnnotatedSentence(text) for text in texts if text.strip()]


def read_gap(path: str | os.PathLike[str]) -> list[AnnotatedSentence]:
    r"""Read sentences from a file of the GAP data set, each with one pronoun and two candidate names.

    Sentences whose pronoun does not refer to exactly one of the names are left out.

    Args:
        path: a tab-separated file, optionally compressed (.gz).

    Raises:
        DataError: the file cannot be read, or is not in the format of GAP.

    Source:
        Webster, Recasens, Axelrod and Baldridge 2018, Mind the GAP.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "gap.tsv")
        >>> names = "ID Text Pronoun Pronoun-offset A A-offset A-coref B B-offset B-coref URL"
        >>> cells = ["1", "Ann met Eve when she won.", "she", "17", "Ann", "0", "TRUE", "Eve", "8", "FALSE", "_"]
        >>> _ = file.write_text(names.replace(" ", "\t") + "\n" + "\t".join(cells) + "\n")
        >>> read_gap(file)[0].questions[0].right  # the characters of Ann
        (0, 3)
    """
    return [sentence for sentence in _gap_rows(path) if sentence is not None]


def count_neither(path: str | os.PathLike[str]) -> int:
    r"""Return the number of sentences of a GAP file whose pronoun refers to neither name or to both.

    `read_gap` leaves these sentences out.

    Raises:
        DataError: the file cannot be read, or is not in the format of GAP.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "gap.tsv")
        >>> names = "ID Text Pronoun Pronoun-offset A A-offset A-coref B B-offset B-coref URL"
        >>> cells = ["1", "Ann met Eve as she won.", "she", "15", "Ann", "0", "FALSE", "Eve", "8", "FALSE", "_"]
        >>> _ = file.write_text(names.replace(" ", "\t") + "\n" + "\t".join(cells) + "\n")
        >>> count_neither(file)
        1
    """
    return sum(sentence is None for sentence in _gap_rows(path))


def _gap_rows(path: str | os.PathLike[str]) -> Iterator[AnnotatedSentence | None]:
    """Yield the sentence of each row of a GAP file, or None if the pronoun does not refer to exactly one name."""
    reader = csv.DictReader(io.StringIO(read_file(Path(path))), delimiter="\t", quoting=csv.QUOTE_NONE)
    for row in reader:
        try:
            truth = [row["A-coref"].upper() == "TRUE", row["B-coref"].upper() == "TRUE"]
            spans = [(int(row[f"{name}-offset"]), int(row[f"{name}-offset"]) + len(row[name])) for name in ("A", "B")]
            at = int(row["Pronoun-offset"])
            query = (at, at + len(row["Pronoun"]))
            text = row["Text"]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(
                f"the file must be in GAP format, got {Path(path).name!r} with an invalid line {reader.line_num}. "
                "Use the tab-separated columns Text, Pronoun, Pronoun-offset, A, A-offset, A-coref, B, B-offset, "
                "and B-coref."
            ) from None
        if sum(truth) != 1:
            yield None
            continue
        right, wrong = spans if truth[0] else spans[::-1]
        gender = "feminine" if row["Pronoun"].lower() in ("she", "her", "hers") else "masculine"
        yield AnnotatedSentence(text, (Question("coreference", query, right, (wrong,), gender),))


def read_winobias(
    path: str | os.PathLike[str], occupations: Iterable[str], condition: str = ""
) -> list[AnnotatedSentence]:
    r"""Read sentences from a file of the WinoBias data set, each with pronouns and candidate occupations.

    A line has the form `3 [The mechanic] gave the clerk …, [she] won`.

    Args:
        path: a file of the data set.
        occupations: names of the occupations, which are the candidates.
        condition: name of the group, such as `pro` or `anti` for stereotypes.

    Raises:
        DataError: the file cannot be read, or a line is not in the format of WinoBias.

    Source:
        Zhao, Wang, Yatskar, Ordonez and Chang 2018, Gender bias in coreference resolution.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "pro.txt")
        >>> _ = file.write_text("1 [The mechanic] called the clerk because [she] was late.\n")
        >>> (sentence,) = read_winobias(file, ["mechanic", "clerk"])
        >>> start, end = sentence.questions[0].right
        >>> sentence.text[start:end]
        'mechanic'
    """
    names = sorted({name.strip().lower() for name in occupations if name.strip()}, key=len, reverse=True)
    known = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b", re.IGNORECASE)
    sentences = []
    for number, line in enumerate(read_file(Path(path)).splitlines(), 1):
        marked = re.sub(r"^\d+\s+", "", line.strip())
        if not marked:
            continue
        text, spans = _remove_brackets(marked)
        if len(spans) < 2:
            raise DataError(
                f"the file must be in WinoBias format, got {Path(path).name!r} with {len(spans)} words in brackets "
                f"on line {number}. Mark the pronoun and the occupation that it refers to by [brackets]."
            )
        pronouns = [span for span in spans if text[slice(*span)].lower() in _PRONOUNS]
        mentions = [span for span in spans if span not in pronouns]
        if len(mentions) != 1:
            continue  # two occupations in brackets do not define a question
        start, end = mentions[0]
        others = tuple(found.span() for found in known.finditer(text) if found.end() <= start or end <= found.start())
        inner = known.search(text, *mentions[0])
        head = inner.span() if inner else mentions[0]
        if others and pronouns:
            questions = [Question("coreference", each, head, others, condition) for each in pronouns]
            sentences.append(AnnotatedSentence(text, tuple(questions)))
    return sentences


def read_conllu(path: str | os.PathLike[str], relations: Iterable[str] | None = None) -> list[AnnotatedSentence]:
    r"""Read sentences with syntax trees from a CoNLL-U file, with one question about the syntactic head of each word.

    The role of a question is the relation of the word to its head (`nsubj`, `obj`, `det` …).

    Args:
        path: a file in CoNLL-U format.
        relations: relations to keep; None: all. Subtypes (`nsubj:pass`) count as their type.

    Raises:
        DataError: the file cannot be read, or a line is not in CoNLL-U format.

    Source:
        universaldependencies.org/format.html; questions as in Clark, Khandelwal, Levy and Manning 2019.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "one.conllu")
        >>> words = [("1", "Dogs", "2", "nsubj"), ("2", "bark", "0", "root")]
        >>> lines = ["\t".join([n, word, *"_____"[:4], head, role, "_", "_"]) for n, word, head, role in words]
        >>> _ = file.write_text("# text = Dogs bark\n" + "\n".join(lines) + "\n\n")
        >>> [(sentence.text, sentence.questions[0].role) for sentence in read_conllu(file)]
        [('Dogs bark', 'nsubj')]
    """
    selected = None if relations is None else set(relations)
    return [sentence for lines in _paragraphs(path) if (sentence := _tree(lines, selected, Path(path).name))]


_PRONOUNS = {"he", "she", "him", "her", "his", "hers", "himself", "herself", "they", "them", "their"}


def _tree(lines: list[tuple[int, str]], selected: set[str] | None, name: str) -> AnnotatedSentence | None:
    words: dict[int, Span] = {}
    heads: list[tuple[int, int, str]] = []
    text = ""
    covered = 0
    for number, line in lines:
        cells = line.split("\t")
        if len(cells) != 10:
            raise DataError(
                f"the file must be in CoNLL-U format, got {name!r} with {len(cells)} columns on line {number}. "
                "Write 10 columns separated by tabs on each line that is not a comment."
            )
        glue = "" if "SpaceAfter=No" in cells[9].split("|") else " "
        if "." in cells[0]:  # an empty node has no text
            continue
        # The words of a multiword token, such as 1-2, share its span; their own lines repeat parts of its text.
        first, _, last = cells[0].partition("-")
        if int(first) > covered:
            covered = int(last or first)
            span = (len(text), len(text) + len(cells[1]))
            words.update(dict.fromkeys(range(int(first), covered + 1), span))
            text += cells[1] + glue
        if not last and cells[6] not in ("0", "_"):
            heads.append((int(first), int(cells[6]), cells[7].split(":")[0]))
    questions = tuple(
        Question(relation, words[at], words[head])
        for at, head, relation in heads
        if (selected is None or relation in selected) and words.get(at) != words.get(head) and head in words
    )
    return AnnotatedSentence(text.rstrip(), questions) if questions else None


def _paragraphs(path: str | os.PathLike[str]) -> Iterator[list[tuple[int, str]]]:
    """Yield for each sentence of a CoNLL-U file a list of its line numbers and lines, without comments."""
    numbered = enumerate(read_file(Path(path)).splitlines(), 1)
    for empty, lines in groupby(numbered, key=lambda line: not line[1].strip()):
        if not empty:
            yield [(number, line) for number, line in lines if not line.startswith("#")]


def _remove_brackets(marked: str) -> tuple[str, list[Span]]:
    """Return a text without its brackets, and the spans in the returned text that were in brackets."""
    pieces = re.split(r"[][]", marked)
    ends = list(accumulate(map(len, pieces)))
    return "".join(pieces), list(zip(ends[::2], ends[1::2], strict=False))
