"""The error of a tanh that is computed from sigmoids or exponentials does not show in the logits of a call."""

import numpy as np
import pytest

import qkv
from qkv.scores import Additive, ScaledDot, Softcap
from tests.effort import seeds

torch = pytest.importorskip("torch")

BOUND = 1e-4  # of the error of a logit in float32, whatever the cap or the vector is


@pytest.mark.parametrize("seed", seeds(8, 4))
@pytest.mark.parametrize("kernel", ["tiled", "batched"])
def test_a_small_logit_under_a_large_cap_or_vector_keeps_its_digits(kernel: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    small, large = 10 ** rng.uniform(-3, 0), 10 ** rng.uniform(0, 6)
    query, key, value = (torch.tensor(rng.normal(size=(2, 70, 8))) for _ in range(3))
    maps = [torch.tensor(rng.normal(size=(6, 8))) * small / large for _ in range(2)]
    vector = torch.tensor(rng.normal(size=6)) * large

    def output(score: object, dtype: torch.dtype, kernel: str) -> torch.Tensor:
        return qkv.attend(*(x.to(dtype) for x in (query, key, value)), score=score, kernel=kernel).double()

    for of in (
        lambda dtype: Softcap(ScaledDot(), large),
        lambda dtype: Additive(maps[0].to(dtype), maps[1].to(dtype), vector=vector.to(dtype)),
    ):
        wanted = output(of(torch.float64), torch.float64, "dense")
        error = (output(of(torch.float32), torch.float32, kernel) - wanted).abs().max()
        assert float(error) < BOUND * float(value.abs().max())
