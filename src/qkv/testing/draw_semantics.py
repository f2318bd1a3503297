"""Contract tests of the random numbers with which kernels drop weights and sample keys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qkv import normalizers, readouts, scores
from qkv.errors import OptionError
from qkv.testing.cases import Call, Case
from qkv.testing.execution import run_eagerly
from qkv.testing.kernel_harness import KernelHarness
from qkv.testing.libraries import Setting, assert_close, to_float64

__all__ = ["DrawSemanticsContract"]


class DrawSemanticsContract(KernelHarness):
    """Tests of the random numbers in dropout and in the sampling of keys, which `KernelContract` inherits."""

    def test_nothing_is_dropped_unless_it_is_asked_for(self, setting: Setting) -> None:
        call = Case().call()
        one, other = (self.observe(replace(call, seed=seed), setting).output for seed in (1, 2))
        assert_close(one, to_float64(other), 0.0)

    def test_dropout_is_the_same_draw_whatever_the_tiles(self, setting: Setting) -> None:
        for name, call in self.each_normalizer(setting, 0, dropout=0.4):
            self.assert_as_oracle(call, setting, f"{name}, dropped:")

    def test_another_seed_is_another_draw(self, setting: Setting) -> None:
        call = Case(dropout=0.5).call()
        one, same, other = (to_float64(self.observe(replace(call, seed=seed), setting).output) for seed in (1, 1, 2))
        assert (one == same).all()
        assert (one != other).any()

    def test_dropped_weights_are_0_and_kept_ones_are_scaled_up(self, setting: Setting) -> None:
        n = 64
        call = Call(np.zeros((n, 1)), np.zeros((n, 1)), np.eye(n), scores.Dot(), dropout=0.25)
        weights = to_float64(self.observe(call, setting).output) * n
        assert_close(
            weights[weights != 0],
            np.full(np.count_nonzero(weights), 4 / 3),
            max(1e-12, 5 * setting.tolerance),
        )
        # Of 4096 weights, the fraction of zeros is within five standard deviations of the probability.
        assert abs(np.mean(weights == 0) - 0.25) < 5 * np.sqrt(0.25 * 0.75 / n**2)

    def test_readouts_are_of_the_weights_before_dropout(self, setting: Setting) -> None:
        for name, call in self.each_normalizer(setting, 1, dropout=0.4):
            dropped = run_eagerly(call, setting, self.kernel, readouts=[readouts.Dense()])
            whole = run_eagerly(replace(call, dropout=0.0), setting, self.kernel, readouts=[readouts.Dense()])
            assert_close(dropped.readouts[0], to_float64(whole.readouts[0]), 0.0, message=name)

    def test_sampled_key_is_the_same_draw_whatever_the_tiles(self, setting: Setting) -> None:
        if setting.dtype in ("float16", "bfloat16"):
            return  # rounding may cause ties between keys, so only float32 and float64 are tested
        for score in self.sample(setting, ("dot", "gaussian", "additive")):
            call = Case(score, "sample").call()
            self.assert_as_oracle(call, setting, score)

    def test_draws_need_a_seed_where_the_library_has_no_generator(self, setting: Setting) -> None:
        for call in (Case(dropout=0.5).call(), replace(Case().call(), normalizer=normalizers.Sample())):
            unseeded = replace(call, seed=None)
            if not self.accepts(call, setting):
                continue
            if setting.library != "torch":
                with pytest.raises(OptionError, match="such as seed=0"):
                    self.observe(unseeded, setting)
                continue
            import torch

            with torch.random.fork_rng():
                outputs = []
                for seed in (4, 4, 5):
                    torch.manual_seed(seed)
                    outputs.append(to_float64(self.observe(unseeded, setting).output))
            assert (outputs[0] == outputs[1]).all()
            assert (outputs[0] != outputs[2]).any()
