"""A model with our layers, trained, saved, and loaded: `python -m tests.interop.keras_model save|load PATH`.

The backend is `KERAS_BACKEND`; what is predicted is printed as a line of JSON.
"""

import contextlib
import inspect
import json
import sys

import numpy as np

with contextlib.suppress(ImportError):
    import triton  # noqa: F401  # after TensorFlow, whose LLVM is another, importing it ends the process


def inputs() -> list[np.ndarray]:
    """Two sequences of tokens each: the first padded with 0."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 20, size=(4, 7))
    tokens[1, 5:] = 0
    return [tokens, rng.normal(size=(4, 7, 8)).astype("float32")]


def trained(length: int | None) -> object:
    """Embedding with a padding mask, heads, both simple layers; two steps of training with dropout."""
    import keras

    from qkv.interop.keras import AdditiveAttention, Attention, MultiHeadAttention

    keras.utils.set_random_seed(1)
    tokens, other = keras.Input((length,), dtype="int32"), keras.Input((length, 8))
    x = keras.layers.Embedding(20, 8, mask_zero=True)(tokens)
    x = MultiHeadAttention(2, 4, dropout=0.1, normalizer="softmax")(x, x, use_causal_mask=True)
    y = Attention(use_scale=True)([other, x])
    y = keras.layers.Add()([y, AdditiveAttention()([y, other])])
    if length is not None:
        own = inspect.signature(keras.layers.MultiHeadAttention).parameters
        window = {"sliding_window": 2} if "sliding_window" in own else {}  # Keras before 3.15 has no windows
        y = MultiHeadAttention(2, 4, normalizer="sparsemax", **window)(y, x)
    model = keras.Model([tokens, other], keras.layers.Dense(1)(y))
    model.compile("adam", "mse")
    target = np.ones((4, 7, 1), dtype="float32")
    model.fit(inputs(), target, epochs=2, batch_size=3, verbose=0)
    return model


def main() -> None:
    """Save or load, and print what is predicted."""
    import keras

    verb, path = sys.argv[1:3]
    if verb == "save":
        model = trained(None if sys.argv[3:] == ["unknown"] else 7)
        model.save(path)
    else:
        import qkv.interop.keras.attention_layers
        import qkv.interop.keras.multi_head  # noqa: F401  which make Keras know the names in the file

        model = keras.saving.load_model(path)
    print(json.dumps(np.asarray(model.predict(inputs(), verbose=0)).astype(float).ravel().tolist()))


if __name__ == "__main__":
    main()
