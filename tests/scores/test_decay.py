"""Decays per key over long sequences in float32."""

import numpy as np
import pytest

import qkv
from qkv import masks
from qkv.scores import Decay, Dot


@pytest.mark.parametrize("strength", [0.1, 20.0])
def test_differences_of_long_sums_keep_their_digits_in_jax(strength):
    jnp = pytest.importorskip("jax.numpy")
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(700, 4)).astype(np.float32) for _ in range(3))
    decay = -abs(rng.normal(size=(700, 1)).astype(np.float32)) * np.float32(strength)

    def output(dtype, convert):
        arrays = [convert(x.astype(dtype)) for x in (query, key, value, decay)]
        score = Decay(Dot(), log_decay_per_key=arrays[3])
        return np.asarray(qkv.attend(*arrays[:3], score=score, mask=masks.Causal(), kernel="dense"))

    wanted = output(np.float64, np.asarray)
    assert abs(output(np.float32, jnp.asarray) - wanted).max() < 1e-6 * abs(wanted).max()
