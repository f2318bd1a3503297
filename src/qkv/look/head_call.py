"""Calls of single attention heads, from which weights are recomputed: one pair at a time, or in exported files.

An exported file stores the queries and keys of a head instead of its weights, if its logits are products:

    logit_ij = c tanh(scale · <q_i, k_j> / c) + b_(j − i)        weight_ij = e^(logit_ij − log-sum-exp_i)

Soft cap c and bias b (ALiBi, relative positions) are optional, and the log-sum-exp includes sinks. Each column of the
queries and keys is rounded to multiples of a step, so that all columns contribute equally to the error of a logit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from qkv.core.equation import BoundCall
from qkv.core.typing import Array, Float, Num
from qkv.errors import DataError, OptionError
from qkv.look.quantize import to_numpy
from qkv.scores.forms import Capped, Offset, ScaledProduct

if TYPE_CHECKING:
    from qkv.interop.huggingface.attention_record import AttentionRecord


FINE, SMALL = 4e-5, 1.5e-2
"""Root-mean-square error of a logit in exported files, and in small ones, where the median error of a weight is 1 %."""
_SPREAD_SHARE = 1e-5
"""Smallest error in proportion to the products of a head, so that a vector element takes about 17 bits."""
_MOST_ERRORS = 100
"""Largest error of a logit in units of the intended error. A bias that is not of this form has larger ones."""
_FLOAT_ERROR = 1e-6
"""Rounding error of a logit in float32 in proportion to the largest logit, of the weights of the model, too."""
_BLOCK_PAIRS = 2**20


class PairProduct(NamedTuple):
    """Query and key vector of one pair of tokens, and the parts of its weight.

    Attributes:
        query: `(width,)`, after the rotation of rotary embeddings.
        key: `(width,)`.
        product: `(width,)`, scale · query · key of each dimension; the sum is the scaled dot product.
        scale: factor of the dot product.
        logit: the logit of the pair; it differs from the sum of `product` by soft caps and position biases, and is
            −∞ for masked pairs.
        weight: the attention weight.
        value_norm: Euclidean norm of the value of the key; NaN if it is unknown.
    """

    query: Float[np.ndarray, " width"]
    key: Float[np.ndarray, " width"]
    product: Float[np.ndarray, " width"]
    scale: float
    logit: float
    weight: float
    value_norm: float = float("nan")


class HeadCall(NamedTuple):
    """The attention call of one head.

    Attributes:
        call: the bound call, without batch axes.
        log_sum_exp: `(q,)`, the log-sum-exp of the logits of each query; None if the normalizer has none.
        first: the query that is the first one of the view.
    """

    call: BoundCall
    log_sum_exp: Float[Array, " q"] | None
    first: int = 0

    @classmethod
    def of_record(cls, record: AttentionRecord, element: int = 0) -> tuple[HeadCall, ...] | None:
        """Return the calls of the heads of a recorded call; None if the record has no saved inputs."""
        if (saved := record.saved) is None:
            return None
        sums = saved.log_sum_exp
        every = ((saved.bind(element, head), None if sums is None else sums[element, head]) for head in record.heads)
        return tuple(cls(*one) for one in every)

    def logits(self, rows: tuple[int, int]) -> Float[np.ndarray, "q k"]:
        """Return the prepared logits of a range of queries of the view, −∞ for masked pairs."""
        start, stop = (row + self.first for row in rows)
        found = self.call.logits((start, stop), (0, self.call.tile.k_total))
        if found is None:
            return np.full((stop - start, self.call.tile.k_total), -np.inf, np.float32)
        prepared = to_numpy(self.call.normalizer.prepare(found))
        return np.broadcast_to(prepared, (stop - start, self.call.tile.k_total))

    def weight(self, query: int, key: int) -> float:
        """Return one weight.

        Raises:
            OptionError: the query or key does not exist.
        """
        row, keys = query + self.first, self.call.tile.k_total
        if not (query >= 0 and row < self.call.tile.q_total and 0 <= key < keys):
            raise OptionError(
                f"query and key must exist in the head, got {query} and {key}. Choose a query below "
                f"{self.call.tile.q_total - self.first} and a key below {keys}."
            )
        if self.log_sum_exp is None:
            tile = self.call.tile.restrict((row, row + 1), (0, keys))
            logits = self.call.logits(tile.rows, tile.cols)
            return 0.0 if logits is None else float(self.call.normalizer.weights(logits, tile)[0, key])
        logit = self.logits((query, query + 1))[0, key]
        return 0.0 if logit == -np.inf else float(np.exp(logit - to_numpy(self.log_sum_exp)[row]))

    def pair(self, query: int, key: int) -> PairProduct:
        """Return query, key and product of one pair of tokens, dimension by dimension.

        Raises:
            DataError: the score of the call is not a scaled dot product.
            OptionError: the query or key does not exist.
        """
        weight, form = self.weight(query, key), _scaled_product(self.call)
        if form is None:
            raise DataError(
                f"the score of the layer must be a scaled dot product, got {type(self.call.score).__name__}. Its "
                "dimensions cannot be separated."
            )
        row = query + self.first
        logit = self.call.logits((row, row + 1), (key, key + 1))
        q, k = (to_numpy(array, np.float64)[i] for array, i in ((self.call.query, row), (self.call.key, key)))
        number = -np.inf if logit is None else float(to_numpy(logit)[0, 0])
        return PairProduct(q, k, form[0] * q * k, form[0], number, weight)


def pack_heads(heads: Sequence[HeadCall], rows: int, error: float = FINE) -> bytes | None:
    """Return the queries and keys of the heads of a layer in a compressible form, or None if they give no weights.

    Args:
        heads: the calls of the heads.
        rows: number of queries of the view.
        error: root-mean-square error of the logits.

    Returns:
        A line of JSON with the numbers of queries, keys and biases, and for each head its width, scale, cap and the
        bound of the relative error of its weights; then words of four bytes, the lowest bytes of all words first. They
        are, each over all heads: offsets, steps and multiples of the queries, column by column, and of the keys; the
        log-sum-exp of the queries; the biases. Last are the first key and the one after the last key of each query.
    """
    packed = [one for one in (_pack(head, rows, error) for head in heads) if one is not None]
    if len(packed) < len(heads):
        return None
    headers, arrays = zip(*packed, strict=True)
    *several, biases, ranges = zip(*arrays, strict=True)
    if any(not np.array_equal(one, ranges[0]) for one in ranges) or len({one.size for one in biases}) > 1:
        return None
    header: dict[str, object] = {name: [one[name] for one in headers] for name in headers[0]}
    header |= {"queries": rows, "keys": heads[0].call.tile.k_total, "bias": biases[0].size}
    ordered = [array for each in (*several, biases, ranges[:1]) for array in each]
    words = np.concatenate([array.ravel().view("<u4") for array in ordered])
    return json.dumps(header).encode() + b"\n" + words.view(np.uint8).reshape(-1, 4).T.tobytes()


def _pack(head: HeadCall, rows: int, error: float) -> tuple[dict[str, float], list[Num[np.ndarray, "*_"]]] | None:
    """Return the header and the arrays of one head, in the order of `pack_heads`."""
    call = head.call
    form = None if call.projected or head.log_sum_exp is None else _scaled_product(call)
    if form is None:
        return None
    scale, cap, biased = form
    part = slice(head.first, head.first + rows)
    query, key = to_numpy(call.query, np.float64)[part], to_numpy(call.key, np.float64)
    if not (np.isfinite(query).all() and np.isfinite(key).all()):
        return None
    sizes = [np.sqrt(np.square(one).mean(axis=0)) for one in (query, key)]
    error = max(error, _SPREAD_SHARE * abs(scale) * float(np.linalg.norm(query.std(axis=0) * sizes[1])))
    # The errors of the 2 · width columns, of variance step² / 12, add up to this error.
    unit = error * np.sqrt(6 / query.shape[-1]) / max(abs(scale), 1e-30)
    arrays: list[Num[np.ndarray, "*_"]] = []
    decoded = []
    for vectors, others in ((query, sizes[1]), (key, sizes[0])):
        offset, extent = vectors.min(axis=0).astype("<f4"), np.ptp(vectors, axis=0)
        step = np.clip(unit / np.maximum(others, 1e-30), extent * 2.0**-30, np.maximum(extent, 1e-30)).astype("<f4")
        codes = np.rint((vectors - offset) / step).astype("<i4")
        decoded.append((offset + step * codes).astype("<f4"))
        arrays += [offset, step, np.ascontiguousarray(codes.T)]
    k = len(key)
    bias, ranges = np.zeros(rows + k - 1 if biased else 0), np.zeros((2, rows), "<i4")
    # A bias of relative positions is that of the first query for later keys, and that of the last for earlier ones.
    for row in (0, rows - 1) if biased else ():
        rest = head.logits((row, row + 1))[0] - _products(query[row : row + 1], key, scale, cap)[0]
        bias[rows - 1 - row :][:k] = np.where(np.isfinite(rest), rest, bias[rows - 1 - row :][:k])
    largest = most = 0.0
    count, columns = max(1, _BLOCK_PAIRS // k), np.arange(k)
    for start in range(0, rows, count):
        stop = min(rows, start + count)
        exact, found = head.logits((start, stop)), _products(decoded[0][start:stop], decoded[1], scale, cap)
        if biased:
            found += bias[rows - 1 + columns - np.arange(start, stop)[:, None]]
        allowed = exact > -np.inf
        first, last = ranges[:, start:stop]
        last[:] = allowed.sum(axis=1)
        first[:] = np.where(last, allowed.argmax(axis=1), 0)
        last += first
        if not allowed.all():
            if not np.array_equal(allowed, (columns >= first[:, None]) & (columns < last[:, None])):
                return None
            exact, found = np.where(allowed, exact, 0), np.where(allowed, found, 0)
        found -= exact
        largest, most = max(largest, _magnitude(found)), max(most, _magnitude(exact))
    if not largest <= _MOST_ERRORS * error:
        return None
    bound = float(np.expm1(largest + _FLOAT_ERROR * (1 + most)))
    header = {"width": query.shape[-1], "scale": scale, "cap": cap, "error": bound}
    return header, [*arrays, to_numpy(head.log_sum_exp)[part].astype("<f4"), bias.astype("<f4"), ranges]


def _magnitude(array: Float[np.ndarray, "q k"]) -> float:
    return max(float(array.max()), -float(array.min()))


def _products(
    query: Float[np.ndarray, "q width"], key: Float[np.ndarray, "k width"], scale: float, cap: float
) -> Float[np.ndarray, "q k"]:
    products: Float[np.ndarray, "q k"] = query @ key.T
    products *= scale
    return np.asarray(cap * np.tanh(products / cap)) if cap else products


def _scaled_product(call: BoundCall) -> tuple[float, float, bool] | None:
    """Return the scale of a scaled dot product, its cap or 0, and whether a bias is added; None for other scores."""
    form, cap, biased = call.score.form, 0.0, False
    while isinstance(form, (Offset, Capped)) and form.inner is not None:
        if isinstance(form, Capped):
            cap = float(to_numpy(form.cap).reshape(-1)[0])
        else:
            biased = True
        form = form.inner.form
    return (float(form.factor(call.query.shape[-1])), cap, biased) if isinstance(form, ScaledProduct) else None
