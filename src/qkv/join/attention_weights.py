"""Compute the attention weights of candidate pairs of rows, with "no match" as an additional key.

    weight(r, k) = e^(l_rk) / (1 + Σ_j e^(l_rj))        probability(r, k) = e^(l_rk) / (1 + e^(l_rk))

The logit of "no match" is 0, because the logits l are log odds of a match. Right rows compete for the weight of a
left row; the probability of a pair does not depend on other pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.special import expit

from qkv.core.typing import Bool, Float
from qkv.join.compared_columns import PairIntegers, PairNumbers


@dataclass(frozen=True, eq=False)
class CandidateMatches:
    """Candidate pairs whose probability of a match, or weight, is at least a threshold.

    Attributes:
        rows, keys, logits: left row, right row and log odds of each pair, sorted by left row.
        weights: attention weight of each pair among all keys of its row.
        no_match: weight of "no match" for each left row.
    """

    rows: PairIntegers
    keys: PairIntegers
    logits: PairNumbers
    weights: PairNumbers
    no_match: Float[np.ndarray, " rows"]


def collect_matches(
    batches: Iterable[tuple[PairIntegers, PairIntegers, PairNumbers]], rows: int, threshold: float, by_weight: bool
) -> CandidateMatches:
    """Collect the probable matches from batches `(rows, keys, logits)` of candidate pairs.

    Args:
        batches: candidate pairs; all of a left row are in the same batch.
        rows: number of left rows.
        threshold: smallest probability of a match, or smallest weight.
        by_weight: whether the weight decides, which is at most the probability.
    """
    no_match = np.ones(rows)
    near_pairs = [(np.zeros(0, int), np.zeros(0, int), np.zeros(0), np.zeros(0))]
    for own, keys, logits in batches:
        weights, no_match[own] = attention_weights(own, logits)
        near = np.flatnonzero((weights if by_weight else expit(logits)) >= threshold)
        near_pairs.append((own[near], keys[near], logits[near], weights[near]))
    near_rows, near_keys, near_logits, near_weights = (np.concatenate(parts) for parts in zip(*near_pairs, strict=True))
    return CandidateMatches(near_rows, near_keys, near_logits, near_weights, no_match)


def attention_weights(rows: PairIntegers, logits: PairNumbers) -> tuple[PairNumbers, Float[np.ndarray, " rows"]]:
    """Return the attention weight of each pair among the pairs of its left row, and the weight of "no match" there.

    The result equals that of `normalizers.Softmax(sink=0.0)`, for rows of unequal length.

    Example:
        >>> weights, no_match = attention_weights(np.array([0, 0, 1]), np.log([2.0, 1.0, 3.0]))
        >>> weights.round(2).tolist(), no_match.round(2).tolist()
        ([0.5, 0.25, 0.75], [0.25, 0.25, 0.25])
    """
    if not len(rows):
        return np.zeros(0), np.zeros(0)
    # Rows have different lengths, so that they do not form a matrix.
    found, place = np.unique(rows, return_inverse=True)
    largest = np.zeros(len(found))  # starts at 0, the logit of "no match"
    np.maximum.at(largest, place, logits)
    shares = np.exp(logits - largest[place])
    no_match = np.exp(-largest)
    total = np.bincount(place, shares, len(found)) + no_match
    return shares / total[place], (no_match / total)[place]


def two_way_weights(rows: PairIntegers, keys: PairIntegers, logits: PairNumbers) -> PairNumbers:
    """Return the smaller of each pair's attention weights in both directions: both rows compete for the pair.

    Example:
        >>> two_way_weights(np.array([0, 1]), np.array([0, 0]), np.array([9.0, -9.0])).round(2).tolist()
        [1.0, 0.0]
    """
    return np.asarray(np.minimum(attention_weights(rows, logits)[0], attention_weights(keys, logits)[0]))


def solve_assignment(rows: PairIntegers, keys: PairIntegers, gain: PairNumbers) -> Bool[np.ndarray, " pairs"]:
    """Return a boolean array that is True for the pairs in the one-to-one assignment with the largest sum of gains.

    Pairs without a positive gain are never assigned. Each connected component of the graph of pairs is a separate
    assignment problem.

    Example:
        >>> solve_assignment(np.array([0, 0, 1]), np.array([0, 1, 0]), np.array([3.0, 2.0, 2.5])).tolist()
        [False, True, True]
    """
    selected = np.zeros(len(rows), bool)
    positive = np.flatnonzero(gain > 0)
    if not len(positive):
        return selected
    own_rows, row = np.unique(rows[positive], return_inverse=True)
    own_keys, key = np.unique(keys[positive], return_inverse=True)
    size = len(own_rows) + len(own_keys)
    graph = coo_matrix((np.ones(len(positive)), (row, key + len(own_rows))), shape=(size, size))
    _, label = connected_components(graph, directed=False)
    component = label[row]
    order = np.argsort(component, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(component[order])) + 1):
        if len(part) == 1:
            selected[positive[part]] = True
            continue
        r, i = np.unique(row[part], return_inverse=True)
        k, j = np.unique(key[part], return_inverse=True)
        table = np.zeros((len(r), len(k)))
        table[i, j] = gain[positive[part]]
        chosen = np.zeros(table.shape, bool)
        chosen[linear_sum_assignment(table, maximize=True)] = True
        selected[positive[part[chosen[i, j]]]] = True
    return selected
