"""Attention from a question to the sentences of a text: similarity, weights and evidence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import qkv
from examples.answer.meaning import Meaning
from examples.answer.sentences import Sentence
from examples.answer.words import Words, words_of
from qkv.errors import OptionError
from qkv.masks import AllowedKeys
from qkv.readouts import TopWeights
from qkv.scores import ByColumn, Cosine, Dot

__all__ = ["Answer", "Result", "Text"]

_CLOSELY = 100
"""Maximum number of sentences compared by meaning: those most similar by words."""


@dataclass(frozen=True)
class Answer:
    """A sentence that answers a question, with its evidence.

    Attributes:
        sentence: the sentence that answers.
        weight: its attention weight.
        before, after: sentences around it.
        words: the words shared with the question, as in the sentence, and their contributions to `by_words`.
        by_words, by_meaning: similarities with the question; None if meaning was not compared.
    """

    sentence: Sentence
    weight: float
    before: list[Sentence]
    after: list[Sentence]
    words: dict[str, float]
    by_words: float
    by_meaning: float | None


@dataclass(frozen=True)
class Result:
    """Result of a question.

    Attributes:
        question: the question.
        answers: sentences with a larger weight than `no_answer`, in descending order; empty if there is no answer.
        no_answer: the weight of the key for "no sentence answers".
    """

    question: str
    answers: list[Answer]
    no_answer: float


class Text:
    """Sentences of a text that can be asked questions.

    Args:
        sentences: the sentences in order.
        meaning: the sentence model; None compares by words only.

    Raises:
        As `Words`.

    Example:
        >>> from examples.answer.sentences import sentences_of
        >>> text = Text(sentences_of("The den is dark. A shepherd found a ring. All is well."))
        >>> [answer.sentence.text for answer in text.ask("Who found the ring?").answers]
        ['A shepherd found a ring.']
    """

    def __init__(self, sentences: Sequence[Sentence], meaning: Meaning | None = None) -> None:
        self._sentences = list(sentences)
        self._words = Words([sentence.text for sentence in sentences])
        self._meaning = meaning

    def ask(
        self,
        question: str,
        *,
        top: int = 1,
        around: int = 1,
        temperature: float = 0.05,
        min_score: float = 0.5,
        progress: Callable[[int, int], None] | None = None,
    ) -> Result:
        """Answer a question by attention to the sentences.

        Args:
            question: the question.
            top: maximum number of answers.
            around: number of sentences of evidence on each side.
            temperature: T; a larger one spreads the weights over more sentences.
            min_score: minimum score of an answer, from 0 to 1.
            progress: called with the number of encoded sentences and their total.

        Raises:
            OptionError: the question has only stop words, or a number is out of range.
        """
        if not words_of(question) and self._meaning is None:
            raise OptionError(f"question must contain a word that is not a stop word, got {question!r}.")
        if not question.strip():
            raise OptionError("question must not be empty.")
        for name, number, condition, valid in (
            ("top", top, "at least 1", top >= 1),
            ("around", around, "at least 0", around >= 0),
            ("temperature", temperature, "greater than 0", temperature > 0),
            ("min_score", min_score, "from 0 to 1", 0 <= min_score <= 1),
        ):
            if not valid:
                raise OptionError(f"{name} must be {condition}, got {number}.")
        vector, sentences, shared = self._words.compared(question)
        by_words = sentences @ vector
        columns: list[tuple[str, Any, float]] = [("words", Dot(), 1.0), ("min_score", Dot(), 1.0)]
        query, key = {"words": vector}, {"words": sentences}
        closely = np.arange(len(self._sentences))
        by_meaning = None
        if self._meaning is not None:
            closely = np.sort(np.argsort(-by_words, kind="stable")[:_CLOSELY])
            texts = [question, *(self._sentences[at].text for at in closely)]
            vectors = self._meaning.vectors(texts, progress)
            query["meaning"] = vectors[0]
            key["meaning"] = np.zeros((len(self._sentences), vectors.shape[-1]))
            key["meaning"][closely] = vectors[1:]
            by_meaning = Cosine()(vectors[:1], key["meaning"])[0]
            columns = [("words", Dot(), 0.5), ("meaning", Cosine(), 0.5), ("min_score", Dot(), 1.0)]
        # One more key than sentences, whose score is the minimum score of an answer.
        query["min_score"], key["min_score"] = np.ones(1), np.zeros((len(self._sentences), 1))
        keys = _rows({name: np.concatenate([rows, np.zeros_like(rows[:1])]) for name, rows in key.items()})
        keys["min_score"][-1] = min_score
        allowed = np.zeros(len(keys), dtype=bool)
        allowed[closely] = allowed[-1] = True
        score = ByColumn(tuple((name, each, share / temperature) for name, each, share in columns))
        observation = qkv.observe(
            _rows({name: row[None] for name, row in query.items()}),
            keys,
            np.eye(
                1, len(keys), len(keys) - 1
            ).T,  # the value is 1 for the additional key, so that its weight is the output
            score=score,
            normalizer=qkv.normalizers.Softmax(),
            mask=AllowedKeys(allowed),
            readouts=[TopWeights(min(top, len(keys)))],
        )
        best, no_answer = observation.readouts[0], float(observation.output[0, 0])
        found = []
        for at, weight in zip(best.keys[0].tolist(), best.weights[0].tolist(), strict=True):
            if weight <= no_answer:  # also true of the additional key itself
                break
            part = dict(zip(shared, vector * sentences[at], strict=False))
            meant = None if by_meaning is None else float(by_meaning[at])
            found.append(self._answer(at, weight, around, part, float(by_words[at]), meant))
        return Result(question, found, no_answer)

    def _answer(
        self, at: int, weight: float, around: int, part: dict[str, float], by_words: float, meant: float | None
    ) -> Answer:
        sentence = self._sentences[at]
        words: dict[str, float] = {}
        for word, stemmed in words_of(sentence.text):
            if stemmed in part:
                words.setdefault(word, float(part.pop(stemmed)))
        before = self._sentences[max(0, at - around) : at]
        after = self._sentences[at + 1 : at + 1 + around]
        return Answer(sentence, weight, before, after, words, by_words, meant)


def _rows(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Combine vectors of several kinds in a structured array."""
    kind = [(name, float, (rows.shape[-1],)) for name, rows in columns.items()]
    rows = np.zeros(len(next(iter(columns.values()))), dtype=kind)
    for name, column in columns.items():
        rows[name] = column
    return rows
