"""What one sentence says of every head: the weight that roles ask for, and answers to questions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qkv.look.roles.annotations import Question, Span

__all__ = ["POSITIONS", "Answer", "EncodedSentence", "answer", "position_scores"]


@dataclass(frozen=True, eq=False)
class EncodedSentence:
    """A sentence as the model has it.

    Fields:
        ids: `(n,)` numbers of the tokens.
        special: `(n,)`, which are the model's own.
        letters: where each token stands in the text.
    """

    ids: np.ndarray
    special: np.ndarray
    letters: tuple[Span, ...]

    def tokens(self, span: Span) -> np.ndarray:
        """The tokens of a word."""
        found = [
            i
            for i, (start, stop) in enumerate(self.letters)
            if start < span[1] and span[0] < stop and not self.special[i]
        ]
        return np.array(found, int)


def _target(encoded: EncodedSentence, role: str) -> np.ndarray:
    """`(n, n)` booleans: the keys that a role asks each query to look at; a row without any asks nothing."""
    n = len(encoded.ids)
    at = np.arange(n)
    same = encoded.ids[:, None] == encoded.ids[None, :]
    if role == "previous":
        return np.eye(n, k=-1, dtype=bool)
    if role == "next":
        return np.eye(n, k=1, dtype=bool)
    if role == "self":
        return np.eye(n, dtype=bool)
    if role == "first":
        return np.broadcast_to(at == 0, (n, n))
    if role == "separator":
        return np.broadcast_to(encoded.special & (at > 0), (n, n))
    if role == "duplicate":
        return np.asarray(same & ~np.eye(n, dtype=bool) & ~encoded.special)
    # induction: what followed an earlier occurrence of this token
    followed = np.zeros((n, n), bool)
    followed[:, 1:] = same[:, :-1]
    return np.asarray(followed & (at[None, :] <= at[:, None]) & ~encoded.special)


POSITIONS = ("previous", "next", "self", "first", "separator", "duplicate", "induction", "broad")


def position_scores(weights: np.ndarray, encoded: EncodedSentence) -> dict[str, tuple[np.ndarray, float]]:
    """For each role of position: the mean weight on what it asks for, `(heads,)`, and that of uniform ones.

    Queries that are special tokens do not count. `broad` is the entropy of a row over that of uniform ones.
    """
    n = weights.shape[-1]
    found = {}
    for role in POSITIONS[:-1]:
        target = _target(encoded, role)
        asked = target.any(axis=1) & ~encoded.special
        if asked.any():
            on = (weights * target).sum(axis=-1)[:, asked].mean(axis=1)
            # Weights spread over the keys that the query may see; a causal model sees fewer.
            seen = np.asarray((weights > 0).any(axis=0))[asked]
            uniform = (target[asked] & seen).sum(axis=1) / np.maximum(1, seen.sum(axis=1))
            found[role] = on, float(uniform.mean())
    if n > 1 and (~encoded.special).any():
        logs = np.where(weights > 0, np.log(np.where(weights > 0, weights, 1.0)), 0.0)
        entropy = -(weights * logs).sum(axis=-1)[:, ~encoded.special]
        seen_count = (weights > 0).any(axis=0).sum(axis=-1)[~encoded.special]
        found["broad"] = (entropy / np.log(np.maximum(2, seen_count))).mean(axis=1), 1.0
    return found


@dataclass(frozen=True, eq=False)
class Answer:
    """What heads and rules answered to a question.

    Fields:
        heads: `(heads,)`, whether each chose rightly.
        nearest: whether the candidate nearest to the query is the right one.
        offset: how far the right one is from the query, in tokens; the best fixed offset is found from all.
        chosen_by_offset: given an offset, whether the candidate nearest to that place is the right one.
    """

    heads: np.ndarray
    nearest: bool
    offset: int
    chosen_by_offset: Callable[[int], bool]


def answer(weights: np.ndarray, encoded: EncodedSentence, question: Question) -> Answer | None:
    """How every head answers: the candidate with the most weight, from the query's tokens to the candidate's.

    Args:
        weights: `(heads, n, n)`.
        encoded: the sentence.
        question: about it.

    Returns:
        None where a word was cut off, or the model may not look there.
    """
    query, right = encoded.tokens(question.query), encoded.tokens(question.right)
    if question.wrong:
        others = [encoded.tokens(span) for span in question.wrong]
    else:
        free = ~encoded.special.copy()
        free[query], free[right] = False, False
        others = [np.array([i]) for i in np.flatnonzero(free)]
    if not len(query) or not len(right) or not others or any(not len(other) for other in others):
        return None
    from_query = weights[:, query].mean(axis=1)
    candidates = [right, *others]
    mass = np.stack([from_query[:, each].sum(axis=1) for each in candidates])
    if not mass.any():
        return None
    # Every other word is a candidate by its heaviest token; the right word too.
    if not question.wrong:
        mass[0] = from_query[:, right].max(axis=1)
    places = np.array([each.mean() for each in candidates])
    middle = query.mean()

    def by_offset(offset: int) -> bool:
        return bool(np.argmin(np.abs(places - middle - offset)) == 0)

    heads = mass[0] > mass[1:].max(axis=0)
    return Answer(heads, by_offset(0), round(float(places[0] - middle)), by_offset)
