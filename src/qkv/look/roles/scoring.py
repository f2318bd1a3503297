"""Score attention heads on one sentence by the weights of target keys and by their answers to questions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qkv.core.typing import Bool, Float, Int
from qkv.look.roles.annotations import Question, Span


@dataclass(frozen=True, eq=False)
class EncodedSentence:
    """A tokenized sentence, with the id and the character span of each token."""

    ids: Int[np.ndarray, " n"]
    special: Bool[np.ndarray, " n"]
    spans: tuple[Span, ...]

    def tokens(self, span: Span) -> Int[np.ndarray, " m"]:
        """Return the indices of the tokens, except special tokens, that overlap a span of characters."""
        starts, stops = np.reshape(self.spans, (-1, 2)).T
        return np.flatnonzero((starts < span[1]) & (span[0] < stops) & ~self.special)


def target_keys(ids: Int[np.ndarray, " n"], special: Bool[np.ndarray, " n"]) -> dict[str, Bool[np.ndarray, "n n"]]:
    """Return for each positional role a boolean matrix `(n, n)` that is True for the target keys of each query."""
    n = len(ids)
    key, query = np.arange(n), np.arange(n)[:, None]
    same = ids[:, None] == ids
    after_same = np.zeros((n, n), bool)
    after_same[:, 1:] = same[:, :-1]
    return {
        "previous": key == query - 1,
        "next": key == query + 1,
        "self": key == query,
        "first": np.broadcast_to(key == 0, (n, n)),
        "separator": np.broadcast_to(special & (key > 0), (n, n)),
        "duplicate": same & (key != query) & ~special,
        # The token after an earlier occurrence of the query's token.
        "induction": after_same & (key <= query) & ~special,
    }


def position_scores(
    weights: Float[np.ndarray, "heads n n"], encoded: EncodedSentence, allowed: Bool[np.ndarray, "n n"] | None = None
) -> dict[str, tuple[Float[np.ndarray, " heads"], float]]:
    """Score every head for each positional role in one sentence.

    The score of a role is the mean weight of its target keys; the score of `broad` is the entropy of a row relative
    to uniform weights. Queries that are special tokens are left out.

    Args:
        weights: the weights of all heads.
        encoded: the tokens.
        allowed: the pairs that the mask allows, if queries whose target is masked are left out, and special tokens
            beside a word are no targets: in a short text they are often [CLS], to which many heads attend. None: the
            pairs with weights, and all targets count.

    Returns:
        For each role the scores `(heads,)`, and the score of uniform weights. Roles without a target key in the
        sentence are left out.
    """
    heads, n = weights.shape[:2]
    special, strict = encoded.special, allowed is not None
    allowed = np.asarray((weights > 0).any(axis=0)) if allowed is None else allowed
    counts = np.maximum(1, allowed.sum(axis=1))
    scores = {}
    for role, target in target_keys(encoded.ids, special).items():
        if strict:
            target = target & allowed & ~(special & (role in ("previous", "next")))
        queries = target.any(axis=1) & ~special
        if queries.any():
            share = (target & queries[:, None]).astype(weights.dtype).ravel() / queries.sum()
            uniform = (target & allowed).sum(axis=1) / counts
            scores[role] = weights.reshape(heads, n * n) @ share, float(uniform[queries].mean())
    rows = ~special & (counts > 1) if strict else ~special
    if n > 1 and rows.any():
        picked = weights[:, rows]
        entropy = -(picked * np.log(np.maximum(picked, np.float32(1e-30)))).sum(axis=-1)
        scores["broad"] = (entropy / np.log(np.maximum(2, counts[rows]))).mean(axis=1), 1.0
    return scores


@dataclass(frozen=True, eq=False)
class QuestionResult:
    """The answers of all attention heads and of two baseline rules to one question.

    Attributes:
        heads: `(heads,)`, whether each head chose the right candidate.
        nearest: whether the candidate nearest to the query is right.
        offset: distance in tokens from the query to the right candidate; the best fixed offset over all questions
            is a baseline.
        chosen_by_offset: function that returns whether the candidate nearest to a given offset is right.
        neither: `(heads,)`, whether another token than those of the query and the candidates has a larger weight than
            each candidate; None if every other token is a candidate. Special tokens are left out.
    """

    heads: Bool[np.ndarray, " heads"]
    nearest: bool
    offset: int
    chosen_by_offset: Callable[[int], bool]
    neither: Bool[np.ndarray, " heads"] | None = None


def score_question(
    weights: Float[np.ndarray, "heads n n"], encoded: EncodedSentence, question: Question
) -> QuestionResult | None:
    """Determine whether each head, and each of two baseline rules, chooses the right candidate of a question.

    A head chooses the candidate of largest weight. The weight of a candidate is averaged over the tokens of the query
    and summed over those of the candidate.

    Returns:
        The result; None if a word of the question was truncated, or the mask excludes all candidates.
    """
    query, right = encoded.tokens(question.query), encoded.tokens(question.right)
    if question.wrong:
        others = [encoded.tokens(span) for span in question.wrong]
    else:
        candidate = ~encoded.special.copy()
        candidate[query], candidate[right] = False, False
        others = [np.array([i]) for i in np.flatnonzero(candidate)]
    if not len(query) or not len(right) or not others or any(not len(other) for other in others):
        return None
    from_query = weights[:, query].mean(axis=1)
    candidates = [right, *others]
    mass = np.stack([from_query[:, each].sum(axis=1) for each in candidates])
    if not mass.any():
        return None
    # If every other token is a candidate, the right word counts by its token of largest weight.
    if not question.wrong:
        mass[0] = from_query[:, right].max(axis=1)
    places = np.array([each.mean() for each in candidates])
    middle = query.mean()

    def by_offset(offset: int) -> bool:
        return bool(np.argmin(np.abs(places - middle - offset)) == 0)

    heads = mass[0] > mass[1:].max(axis=0)
    neither = None
    if question.wrong:
        other = ~encoded.special
        other[np.concatenate([query, *candidates])] = False
        neither = from_query[:, other].max(axis=1, initial=0.0) > mass.max(axis=0)
    return QuestionResult(heads, by_offset(0), round(float(places[0] - middle)), by_offset, neither)
