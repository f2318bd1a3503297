"""Answers to questions of the page that need more than one map, or the model."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from qkv.look.difference import rank_heads, rank_pairs
from qkv.look.live_model import Effect
from qkv.look.views import View

__all__ = ["QUESTIONS"]

_TOP = 8
"""Number of tokens and of queries of which a change is listed."""


def _rows(view: View, start: int, stop: int) -> bytes:
    """Return the codes of the queries from `start` to `stop` of all heads, head by head, two bytes per weight."""
    if not 0 <= start < stop <= len(view.queries.tokens):
        raise IndexError
    return b"".join(layer.codes[:, start:stop].astype("<u2").tobytes() for layer in view.layers)


def _value_norms(view: View, layer: int) -> bytes:
    """Return the norms of the values of the heads of a layer as JSON, heads × keys."""
    norms = view.layers[layer].value_norms
    if norms is None:
        raise IndexError
    return _json([[float(f"{norm:.6g}") for norm in head] for head in norms])


def _predictions(view: View) -> bytes:
    """Return the predicted tokens of all queries as JSON."""
    if view.predictions is None:
        raise IndexError
    return _json(view.predictions.meta())


def _pair(view: View, layer: int, head: int, query: int, key: int) -> bytes:
    """Return query, key and product of a pair as JSON."""
    if view.live is None:
        raise IndexError
    return _json(view.live.pair(layer, head, query, key).meta())


def _weight(view: View, layer: int, head: int, query: int, key: int) -> bytes:
    """Return one weight as JSON, a text with all digits of its float32 number."""
    if view.live is None:
        raise IndexError
    return _json(_all_digits(view.live.weight(layer, head, query, key)))


def _effect(view: View, query: int, *heads: int) -> bytes:
    """Return the effect of scaled heads as JSON; `heads` are triples of layer, head and percent."""
    if view.live is None or not heads or len(heads) % 3:
        raise IndexError
    factors = {(heads[i], heads[i + 1]): heads[i + 2] / 100 for i in range(0, len(heads), 3)}
    found = view.live.effect(factors)
    if not 0 <= query < len(found.divergence):
        raise IndexError
    return _json({**_of_query(found, query), **_of_text(found)})


def _of_query(found: Effect, query: int) -> dict[str, object]:
    """Return how the distribution at one query changed, or by how much its vector changed."""
    if found.predictions is None:
        return {"divergence": _digits(found.divergence[query])}
    tokens = [[name, _digits(before), _digits(after)] for name, before, after in found.tokens(query, _TOP)]
    targets = [one.row(query) for one in found.predictions]
    return {
        "divergence": _digits(found.divergence[query]),
        "tokens": tokens,
        "target": [targets[0]["target"], *(row["probability"] for row in targets)],
    }


def _of_text(found: Effect) -> dict[str, object]:
    """Return the loss before and after, and the queries that changed most."""
    order = np.argsort(-found.divergence, kind="stable")[:_TOP]
    loss = found.loss
    return {
        "kind": None if found.predictions is None else found.predictions[0].kind,
        "loss": None if loss is None or not np.isfinite(loss).all() else [_digits(one) for one in loss],
        "mean": _digits(float(found.divergence.mean())),
        "most": [[int(i), _digits(found.divergence[i])] for i in order],
    }


def _differences(first: View, second: View) -> bytes:
    """Return layer, head and distance of the heads by decreasing distance between two views, as JSON."""
    return _json([[one.layer, one.head, _digits(one.distance)] for one in rank_heads(first, second)])


def _pair_differences(first: View, second: View) -> bytes:
    """Return layer, head, query, key and both weights of the pairs that differ most between two views, as JSON."""
    pairs = rank_pairs(first, second, _TOP)
    return _json([[*pair[:4], _digits(pair.first), _digits(pair.second)] for pair in pairs])


def _digits(number: float) -> float:
    return float(f"{number:.4g}")


def _all_digits(weight: np.float32) -> str:
    """Return the shortest text that names this number and no other one of float32."""
    if 0 < abs(weight) < 1e-4:
        return np.format_float_scientific(weight, trim="-", exp_digits=1)
    return np.format_float_positional(weight, trim="-")


def _json(answer: object) -> bytes:
    return json.dumps(answer, ensure_ascii=False).encode()


QUESTIONS: dict[str, Callable[..., bytes]] = {
    "rows": _rows,
    "value_norms": _value_norms,
    "predictions": _predictions,
    "pair": _pair,
    "weight": _weight,
    "effect": _effect,
    "differences": _differences,
    "pair_differences": _pair_differences,
}
"""Function of each request; its arguments are one view, or two for the requests of `OF_TWO_VIEWS`, and integers."""
OF_TWO_VIEWS = ("differences", "pair_differences")
