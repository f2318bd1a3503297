"""Differences of drawn calls over any axes from the equation in NumPy, printed as a line of JSON.

`python -m tests.interop.keras_axes COUNT`; the backend is `KERAS_BACKEND`.
"""

import inspect
import json
import sys
from typing import Any

import numpy as np


def drawn(rng: np.random.Generator) -> tuple[str, float, float]:
    """Return a drawn call as text, and the largest differences of its output and weights from those of the equation."""
    from keras import layers, ops

    from qkv.interop.keras import MultiHeadAttention

    axes = int(rng.integers(1, 4))  # besides the batch and the features
    lengths = rng.integers(1, 4, size=axes)
    inner = rng.permutation(np.arange(1, axes + 1))[: int(rng.integers(1, axes + 1))].tolist()
    keys = [int(rng.integers(1, 4)) if n in inner else int(lengths[n - 1]) for n in range(1, axes + 1)]
    query, value = (rng.normal(size=(2, *map(int, side), 3)).astype("float32") for side in (lengths, keys))
    given = [n - axes - 2 if rng.random() < 0.5 else n for n in inner]
    causal, masked, pairs, windows = (bool(x) for x in rng.integers(2, size=4))
    options: dict[str, Any] = {"attention_axes": given, "dropout": 0.1}
    if windows and "sliding_window" in inspect.signature(layers.MultiHeadAttention).parameters:
        options["sliding_window"] = int(rng.integers(1, 4))
    layer = MultiHeadAttention(2, 4, **options)
    layer.build(query.shape, value.shape)
    q_shape, k_shape = [int(lengths[n - 1]) for n in inner], [keys[n - 1] for n in inner]
    i, j = np.indices((int(np.prod(q_shape)), int(np.prod(k_shape))))
    allowed = (j <= i) | (not causal)
    allowed &= abs(i - j) < options.get("sliding_window", 100)
    outer = [n for n in range(1, axes + 1) if n not in inner]
    lead = [2, *(int(lengths[n - 1]) for n in outer)]
    allowed = np.broadcast_to(allowed, (*lead, *allowed.shape)).copy()
    call: dict[str, Any] = {"use_causal_mask": causal, "return_attention_scores": True}
    if masked:
        real = rng.random((2, *keys)) < 0.6
        call["value_mask"] = ops.convert_to_tensor(real)
        allowed &= real.transpose(0, *outer, *inner).reshape(*lead, 1, -1)
    if pairs:
        between = rng.random((*lead, *q_shape, *k_shape)) < 0.8
        call["attention_mask"] = ops.convert_to_tensor(between)
        allowed &= between.reshape(allowed.shape)
    got, weights = (ops.convert_to_numpy(x) for x in layer(query, value, **call))

    query_map, query_bias, key_map, key_bias, value_map, value_bias, output_map, output_bias = (
        ops.convert_to_numpy(x) for x in layer.get_weights()
    )
    order = [0, *outer, *inner]
    q, k = (x.transpose(*order, axes + 1).reshape(*lead, -1, 3) for x in (query, value))
    heads = [
        np.einsum("...ld,dnh->...nlh", x, of) + bias[:, None]
        for x, of, bias in ((q, query_map, query_bias), (k, key_map, key_bias), (k, value_map, value_bias))
    ]
    logits = np.where(allowed[..., None, :, :], heads[0] @ heads[1].swapaxes(-1, -2) / 2, -np.inf)
    shares = np.exp(logits - np.nan_to_num(logits.max(-1, keepdims=True), neginf=0.0))
    shares /= np.maximum(shares.sum(-1, keepdims=True), 1e-30)
    wanted = np.einsum("...nlh,nhd->...ld", shares @ heads[2], output_map) + output_bias
    wanted = wanted.reshape(*lead, *q_shape, 3).transpose(*(order.index(n) for n in range(axes + 1)), axes + 1)
    shares = shares.reshape(*lead, 2, *q_shape, *k_shape)
    differences = (float(np.abs(a - b).max()) for a, b in ((got, wanted), (weights, shares)))
    return f"{query.shape} {value.shape} {options} {sorted(call)} causal={causal}", *differences


def main() -> None:
    """Draw calls, and print the number of calls and those that differ."""
    rng = np.random.default_rng(0)
    found = [drawn(rng) for _ in range(int(sys.argv[1]))]
    print(json.dumps({"calls": len(found), "different": [each for each in found if max(each[1:]) > 1e-5]}))


if __name__ == "__main__":
    main()
