"""Runs the attention tests that tokamax ships with an attention function of qkv, and prints their results as JSON.

A program of its own: tokamax changes settings of JAX. The arguments are patterns of test names; without any, all run
but those of quantized arrays. The kernel is named by the environment variable QKV_KERNEL.
"""

import fnmatch
import json
import os
import sys
import unittest
import warnings
from typing import Any

import jax
import jax.numpy as jnp

import qkv
from qkv import masks, readouts
from qkv.normalizers import Custom
from qkv.scores import Biased, Dot, ScaledDot, Softcap

warnings.simplefilter("ignore")
from tokamax._src.ops.attention import base, test_base  # noqa: E402

KERNEL = os.environ.get("QKV_KERNEL") or None


def heads_first(x: Any) -> Any:
    return jnp.swapaxes(x, -2, -3)


def attend(
    q: Any,
    k: Any,
    v: Any,
    *,
    precision: Any = None,
    logits_dtype: Any = None,
    logits_scale: Any = base.AUTO,
    bias: Any = None,
    logits_soft_cap: float | None = None,
    mask: Any = None,
    is_causal: bool = False,
    dropout_rate: float = 0.0,
    dropout_mask: Any = None,
    q_indices: Any = None,
    k_indices: Any = None,
    normalize_output: bool = True,
    return_residuals: bool = False,
) -> Any:
    """Attention with the arguments of `tokamax.dot_product_attention`, for arrays (*batch, length, heads, width)."""
    if dropout_mask is not None or dropout_rate:
        raise NotImplementedError("qkv draws its own dropout from a seed")
    score: Any = ScaledDot() if logits_scale is base.AUTO else Dot(scale=logits_scale)
    if bias is not None:
        lead = q.ndim - bias.ndim
        score = Biased(score, bias[(None,) * lead])
    if logits_soft_cap is not None:
        score = Softcap(score, logits_soft_cap)
    options: dict[str, Any] = {
        "score": score,
        "mask": as_mask(mask, is_causal, q, k, q_indices, k_indices),
        "positions": qkv.Positions(align="start"),
        "kernel": KERNEL,
        "enable_gqa": k.shape[-2] != q.shape[-2],
    }
    arrays = [heads_first(x) for x in (q, k, v)]
    if not return_residuals:
        normalizer = None if normalize_output else Custom(unnormalized)
        return heads_first(qkv.attend(*arrays, **options, normalizer=normalizer))
    seen = qkv.observe(*arrays, **options, readouts=[readouts.LogSumExp(), readouts.TopWeights(1)])
    total, largest = seen.readouts[0], seen.readouts[1].weights[..., 0]
    total = total.reshape(largest.shape)
    output = seen.output if normalize_output else seen.output / largest[..., None]
    return heads_first(output), (total + jnp.log(largest), 1 / largest)


def unnormalized(logits: Any) -> Any:
    return jnp.exp(logits - jnp.max(logits, -1, keepdims=True))


def as_mask(mask: Any, causal: bool, q: Any, k: Any, q_indices: Any, k_indices: Any) -> Any:
    """Return the mask of qkv: by functions of positions where one row of limits holds for all heads, else a table."""
    given = mask if isinstance(mask, base.Mask) else base.Mask(mask)
    causal = causal or given.is_causal
    limits = [x for x in (given.q_start, given.q_end, given.k_start, given.k_end) if x is not None]
    if q_indices is not None or k_indices is not None or any(x.size != x.shape[-1] for x in limits):
        rows, cols = (x.shape[-3] if i is None else i for x, i in ((q, q_indices), (k, k_indices)))
        table = base.Mask(
            given.bool_mask, q_start=given.q_start, q_end=given.q_end, k_start=given.k_start, k_end=given.k_end,
            is_causal=causal,
        ).as_array(rows, cols)  # fmt: skip
        return masks.AllowedPairs(table[(None,) * (q.ndim - table.ndim)])
    found: list[Any] = [masks.Causal("start")] if causal else []
    if given.bool_mask is not None:
        found.append(masks.AllowedPairs(given.bool_mask[(None,) * (q.ndim - given.bool_mask.ndim)]))
    if given.k_start is not None:
        start = jnp.broadcast_to(given.k_start.reshape(-1), q.shape[-3])
        found.append(masks.Custom(lambda q, k, start: k >= jnp.take(start, q), (start,)))
    if given.k_end is not None:
        end = jnp.broadcast_to(given.k_end.reshape(-1), q.shape[-3])
        found.append(masks.Custom(lambda q, k, end: k < jnp.take(end, q), (end,)))
    if given.q_start is not None:
        first = jnp.broadcast_to(given.q_start.reshape(-1), k.shape[-3])
        found.append(masks.Custom(lambda q, k, first: q >= jnp.take(first, k), (first,)))
    if given.q_end is not None:
        last = jnp.broadcast_to(given.q_end.reshape(-1), k.shape[-3])
        found.append(masks.Custom(lambda q, k, last: q < jnp.take(last, k), (last,)))
    return None if not found else masks.base.and_masks(*found)


class QkvTest(test_base.AttentionTestBase):
    """The tests of tokamax with the attention of qkv."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, attention_fn=attend, supports_dropout=False)


def main(patterns: list[str]) -> None:
    suite = unittest.TestSuite()
    for test in unittest.defaultTestLoader.loadTestsFromTestCase(QkvTest):
        name = test.id().rsplit(".", 1)[1]  # type: ignore[attr-defined]
        chosen = not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
        if chosen and not name.startswith("test_quantized"):
            suite.addTest(test)
    result = unittest.TestResult()
    stream, sys.stdout = sys.stdout, sys.stderr
    for test in suite:
        before = len(result.failures) + len(result.errors)
        test(result)
        state = "failed" if len(result.failures) + len(result.errors) > before else "ran"
        print(state, test.id(), flush=True)  # type: ignore[union-attr]
    sys.stdout = stream
    wrong = {test.id(): text[-1500:] for test, text in (*result.failures, *result.errors)}
    skipped = {test.id(): why for test, why in result.skipped}
    json.dump({"run": result.testsRun, "wrong": wrong, "skipped": skipped}, sys.stdout)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main(sys.argv[1:])
