"""Intended differences between the layers of qkv and those of Keras, printed as a line of JSON."""

import doctest
import json
import sys
from typing import Any

import numpy as np


def main() -> None:
    """Run both."""
    import keras
    from keras import layers, ops

    from qkv.errors import OptionError
    from qkv.interop.keras import Attention, MultiHeadAttention

    def numbers(x: Any) -> Any:
        return ops.convert_to_numpy(x).astype(float).tolist()

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 6, 2)).astype("float32")
    none = np.zeros((1, 6), dtype=bool)
    some = np.arange(6)[None] < 4
    hurt = np.where(some[..., None], x, np.nan)
    ours, theirs = Attention(), layers.Attention()
    drops = Attention(dropout=0.5)
    try:
        Attention(normalizer="softmin")
        unknown = ""
    except OptionError as error:
        unknown = str(error)
    with_scores = drops([x, x], return_attention_scores=True, training=True)
    plain = ours([x, x], return_attention_scores=True)
    many = rng.normal(size=(1, 3000, 2)).astype("float32")
    layer = MultiHeadAttention(2, 4, memory="16 MiB")  # 72 MB as an array of pairs
    shape = layer(many, many, use_causal_mask=True).shape
    heads, same = MultiHeadAttention(2, 4, dropout=0.0), layers.MultiHeadAttention(2, 4, dropout=0.0)
    for one in (heads, same):
        one.build(x.shape, x.shape)
    same.set_weights(heads.get_weights())
    pairs = [one(x, x, use_causal_mask=True, return_attention_scores=True) for one in (heads, same)]
    options = Attention(normalizer="sparsemax", kernel="dense", memory="1 GiB").get_config()
    print(
        json.dumps(
            {
                "examples": [
                    list(doctest.testmod(sys.modules[each.__module__])) for each in (Attention, MultiHeadAttention)
                ],
                "row without keys": numbers(ours([x, x], mask=[None, none]))[0][0],
                "keras, row without keys": numbers(theirs([x, x], mask=[None, none]))[0][0],
                "scores with dropout": np.round(numbers(with_scores[1]), 5).tolist(),
                "scores without dropout": np.round(numbers(plain[1]), 5).tolist(),
                "outputs with dropout": numbers(with_scores[0]),
                "outputs without dropout": numbers(plain[0]),
                "nan in a masked value": bool(np.isnan(numbers(ours([x, hurt], mask=[None, some]))).any()),
                "longer than its pairs fit": list(shape),
                "output and weights of heads": [
                    float(np.abs(ops.convert_to_numpy(a - b)).max()) for a, b in zip(*pairs, strict=True)
                ],
                "config": {name: options[name] for name in ("normalizer", "kernel", "memory")},
                "unknown normalizer": unknown,
            }
        )
    )


if __name__ == "__main__":
    main()
