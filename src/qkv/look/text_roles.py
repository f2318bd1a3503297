"""Find the roles of attention heads in one text, and choose the head and the words that a page shows first.

A role that is found in a single text describes this text alone: `qkv roles` measures roles over many sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from qkv.core.typing import Bool, Float
from qkv.look.axis import Axis
from qkv.look.quantize import MASKED, dequantize
from qkv.look.roles.scoring import EncodedSentence, position_scores
from qkv.look.tiled_map import TiledView
from qkv.look.token_groups import group_tokens
from qkv.look.views import ALL_HEADS, HeadRole, LayerMaps, Opening, View

AnyView = TypeVar("AnyView", View, TiledView)

_CLEAR = 0.5
"""Minimum score of a role that is named for any number of heads."""
_MARGIN = 0.1
"""Minimum difference from the baseline, as in `RoleTable.labels`."""
_BROAD = 0.9
_BEGINNING = 256
"""Number of tokens of a view in tiles among which roles are found; their weights are those of one tile."""
_PLAIN_ROLES = ("pronoun", "previous", "next", "duplicate", "induction", "coreference")
"""Roles that depend on the words; a page does not open on heads that attend to the first or to all tokens."""

_PRONOUN_LIST = "he she it they him her them his hers its their theirs himself herself itself themselves who whom"
_FUNCTION_LIST = """a about after all also although am an and any are as at be because been before being both but by can
could did do does doing down each every few for from further had has have having here how i if in into is just me more
most my no nor not now of off on once only or other our out over own same should so some such than that the then there
these this those through to too under until up very was we were what when where which while whose why will with would
you your"""
_PRONOUNS = frozenset(_PRONOUN_LIST.split())
_FUNCTION_WORDS = _PRONOUNS | frozenset(_FUNCTION_LIST.split())


def text_roles(view: View) -> dict[tuple[int, int], tuple[HeadRole, ...]]:
    """Return the roles of the heads of a view of self-attention in its text, by layer and head.

    The score of a positional role is the mean weight of its target keys, as in `qkv.look.roles.measure_roles`; that of
    `pronoun` is the mean over the English pronouns of their largest weight on a word that is neither a pronoun nor
    another function word; that of `broad` is the entropy relative to uniform weights. The baseline is the score of
    uniform weights; that of `pronoun` is at least the mean weight that the words other than pronouns give to the same
    words, so that a head is not named for words to which all tokens attend. A head has each role with a score of at
    least 0.5 (`broad`: 0.9) that exceeds the baseline by 0.1; the head that exceeds the baseline by most has each role
    whose baseline it exceeds by 0.1.

    Example:
        >>> weights = np.eye(4, k=-1)[None, None] + np.eye(4)[:1] * np.eye(4)[:, :1]
        >>> view = View.from_weights(weights, ["the", "dog", "was", "happy"])
        >>> text_roles(view)[0, 0][0].role
        'previous'
    """
    if view.keys is not None or len(view.queries.tokens) < 3 or view.queries.groups is not None:
        return {}
    found: dict[str, dict[tuple[int, int], tuple[float, float]]] = {}
    for i, layer in enumerate(view.layers):
        if layer.name == ALL_HEADS or not all(one.normalized for one in layer.ranges):
            continue
        for role, (scores, baselines) in _layer_scores(layer, view.queries).items():
            for head, pair in enumerate(zip(scores.tolist(), baselines.tolist(), strict=True)):
                found.setdefault(role, {})[i, head] = pair
    roles: dict[tuple[int, int], list[HeadRole]] = {}
    for role, heads in found.items():
        best = max(heads, key=lambda place: heads[place][0] - heads[place][1])
        for place, (score, baseline) in heads.items():
            clear = score >= baseline + _MARGIN and (score >= _CLEAR or place == best)
            if score >= _BROAD if role == "broad" else clear:
                roles.setdefault(place, []).append(HeadRole(role, round(score, 3), round(baseline, 3)))
    return {head: tuple(sorted(one, key=lambda role: -role.score)) for head, one in roles.items()}


def mark_roles(view: AnyView, measured: Mapping[tuple[int, int], Sequence[HeadRole]] | None = None) -> AnyView:
    """Return a view with the roles of its heads, which opens on the head of the clearest role and on a content word.

    The roles of a view in tiles are those that its heads have among its first 256 tokens.
    """
    part = view if isinstance(view, View) else view.beginning(_BEGINNING)
    roles = text_roles(part) if measured is None else {head: tuple(one) for head, one in measured.items() if one}
    note = view.note or (f"Roles are those in the first {_BEGINNING} tokens." if part is not view and roles else "")
    return replace(view, roles=roles, opening=_opening(part, roles), note=note if measured is None else view.note)


def content_words(axis: Axis) -> list[list[int]]:
    """Return the tokens of each word that is neither special nor a function word of English, in the order of the text.

    Example:
        >>> content_words(Axis.from_words(["the", "dog", "was", "happy", "."]))
        [[1], [3]]
    """
    return [group for text, group in _words(axis) if len(text) > 1 and text.isalpha() and text not in _FUNCTION_WORDS]


def _words(axis: Axis) -> list[tuple[str, list[int]]]:
    """Return the text in lower case and the tokens of each word that is not a special token."""
    words = [group for group in group_tokens(axis, "words") if axis.words[group[0]] >= 0 and not axis.special[group[0]]]
    return [(axis.name(group).strip().lower(), list(group)) for group in words]


def _layer_scores(
    layer: LayerMaps, axis: Axis
) -> dict[str, tuple[Float[np.ndarray, " heads"], Float[np.ndarray, " heads"]]]:
    """Return for each role the scores and the baselines of the heads of a layer."""
    allowed = (layer.codes != MASKED).any(axis=0)
    weights = dequantize(layer.codes, [one.exponent for one in layer.ranges]).astype(np.float32)
    if not np.isfinite(weights).all():
        return {}
    ids = np.unique(np.array(axis.pieces), return_inverse=True)[1]
    found = position_scores(weights, EncodedSentence(ids, np.array(axis.special), axis.spans), allowed)
    scores = {role: (own, np.full(len(own), uniform)) for role, (own, uniform) in found.items()}
    nouns = content_words(axis)
    words = _words(axis)
    pronouns = [group for text, group in words if text in _PRONOUNS]
    if pronouns and len(nouns) > 1:
        others = [group for text, group in words if text not in _PRONOUNS]
        scores["pronoun"] = _pronoun_scores(weights, allowed, pronouns, nouns, others)
    return scores


def _pronoun_scores(
    weights: Float[np.ndarray, "heads n n"],
    allowed: Bool[np.ndarray, "n n"],
    pronouns: Sequence[Sequence[int]],
    nouns: Sequence[Sequence[int]],
    others: Sequence[Sequence[int]],
) -> tuple[Float[np.ndarray, " heads"], Float[np.ndarray, " heads"]]:
    """Return the mean over the pronouns of their largest weight on a content word, and the baseline of each head.

    The words beside a pronoun do not count, because heads that attend to the previous or next token attend to them.
    """
    uniform = (allowed / np.maximum(1, allowed.sum(axis=1, keepdims=True))).astype(np.float32)
    maps = np.concatenate([weights, uniform[None]])
    to_nouns = np.stack([maps[:, :, noun].sum(axis=-1) for noun in nouns], axis=-1)  # maps, tokens, nouns
    elsewhere = _weights_of_others(to_nouns[:-1], allowed, nouns, others)
    largest, baseline = np.zeros(len(maps)), np.zeros(len(weights))
    for pronoun in pronouns:
        apart = [i for i, noun in enumerate(nouns) if noun[0] > pronoun[-1] + 1 or noun[-1] < pronoun[0] - 1]
        if apart:
            found = to_nouns[:, pronoun][:, :, apart].mean(axis=1)
            best = found.argmax(axis=1)
            largest += found[range(len(maps)), best]
            baseline += elsewhere[:, apart][range(len(weights)), best[:-1]]
    return largest[:-1] / len(pronouns), np.maximum(baseline, largest[-1]) / len(pronouns)


def _weights_of_others(
    to_nouns: Float[np.ndarray, "heads n nouns"],
    allowed: Bool[np.ndarray, "n n"],
    nouns: Sequence[Sequence[int]],
    others: Sequence[Sequence[int]],
) -> Float[np.ndarray, "heads nouns"]:
    """Return the mean weight that words give to each content word, without the word itself; 0 where none may."""
    firsts = [group[-1] for group in others]
    may = allowed[np.ix_(firsts, [noun[0] for noun in nouns])]
    may &= np.array([[group[0] != noun[0] for noun in nouns] for group in others]).reshape(may.shape)
    means = np.stack([to_nouns[:, group].mean(axis=1) for group in others], axis=1)
    mean: Float[np.ndarray, "heads nouns"] = (means * may).sum(axis=1) / np.maximum(1, may.sum(axis=0))
    return mean


def _opening(view: View, roles: Mapping[tuple[int, int], Sequence[HeadRole]]) -> Opening | None:
    """Return the head of the clearest role, and its row of the last content word; None for views without words."""
    if view.queries.numbered:
        return None
    clear = [
        (role.role in _PLAIN_ROLES, role.score - role.baseline, -layer, -head, role.role)
        for (layer, head), own in roles.items()
        for role in own
    ]
    best = max(clear, default=None)
    layer, head, name = (*_sharpest(view), "") if best is None else (-best[2], -best[3], best[4])
    patches = view.queries.patches
    if view.queries.groups is not None:
        # The class token, which represents an image, or the patch or sample in the middle.
        middle = len(view.queries.tokens) // 2
        if patches is not None:
            middle = patches.places.index(patches.grid[0] // 2 * patches.grid[1] + patches.grid[1] // 2)
        query = 0 if view.queries.special[0] else middle
        return Opening(layer, head, query, int(view.weights(layer, head)[query].argmax()))
    words = [group for text, group in _words(view.queries) if name in ("pronoun", "coreference") and text in _PRONOUNS]
    words = words or content_words(view.queries) or [[len(view.queries.tokens) - 1]]
    query = words[-1][-1]
    return Opening(layer, head, query, int(view.weights(layer, head)[query].argmax()))


def _sharpest(view: View) -> tuple[int, int]:
    """Return the head whose tokens give the largest part of their weight to a key that is not a special token."""
    columns = np.flatnonzero(~np.array(view.columns.special))
    found = [(0.0, 0, 0)]
    for i, layer in enumerate(view.layers):
        if layer.name == ALL_HEADS or not len(columns) or not all(one.normalized for one in layer.ranges):
            continue
        largest = layer.codes[:, :, columns].max(axis=-1)[:, None]  # codes increase with the weights
        sharp = np.nan_to_num(dequantize(largest, [one.exponent for one in layer.ranges]).mean(axis=(1, 2)))
        found.append((float(sharp.max()), i, int(sharp.argmax())))
    return max(found, key=lambda one: one[0])[1:]
