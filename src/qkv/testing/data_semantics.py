"""Contract tests of how kernels handle masked, NaN, infinite and zero inputs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from qkv import masks, normalizers, scores
from qkv.testing.cases import Call, Case
from qkv.testing.execution import Outcome, oracle_of
from qkv.testing.kernel_harness import KernelHarness, assert_agrees
from qkv.testing.libraries import Setting, assert_close, to_float64

LEAST = {"float64": -1.7e308, "float32": -3.4e38, "float16": -65504.0, "bfloat16": -3.38e38}
"""Finite numbers slightly above the lowest of each dtype, which other libraries use in place of −inf in masks."""

_MASKED_KEYS = [1, 4, 10]
_MASKS_OF_KEYS = {
    "a mask of keys": masks.AllowedKeys(~np.isin(np.arange(11), _MASKED_KEYS)),
    "a mask of pairs": masks.AllowedPairs(np.broadcast_to(~np.isin(np.arange(11), _MASKED_KEYS), (7, 11)).copy()),
    "documents": masks.Documents(
        np.arange(7) // 4, np.where(np.isin(np.arange(11), _MASKED_KEYS), 9, np.arange(11) // 6)
    ),
}
_VARIED_SCORES = ("scaled dot", "gaussian", "additive", "cosine", "gated", "laplace", "custom")
"""Names of scores that use their inputs in different ways, such as products, means, norms and differences."""


class DataSemanticsContract(KernelHarness):
    """Tests of how a kernel handles masked, NaN, infinite and zero inputs, which `KernelContract` inherits."""

    # -- 1. True means may attend ------------------------------------------------------------------------

    def test_true_means_may_attend(self, setting: Setting) -> None:
        only = np.arange(4) == 2
        for mask in (
            masks.AllowedKeys(only),
            masks.AllowedPairs(only[None, :]),
            masks.AllowedPairs(np.tile(only, (3, 1))),
        ):
            call = Call(np.ones((3, 2)), np.ones((4, 2)), np.eye(4), scores.Dot(), mask=mask)
            if self.accepts(call, setting):
                assert_close(self.observe(call, setting).output, np.tile(only, (3, 1)).astype(float), 1e-12)

    def test_inverted_mask_allows_the_other_keys(self, setting: Setting) -> None:
        mask = ~masks.AllowedKeys(np.arange(4) == 2)
        call = Call(np.ones((3, 2)), np.ones((4, 2)), np.eye(4), scores.Dot(), mask=mask)
        self.assert_output(call, setting, np.tile((np.arange(4) != 2) / 3, (3, 1)))

    # -- 2. What is excluded, and rows that are left with nothing ----------------------------------------

    def test_logit_of_minus_infinity_excludes_its_key(self, setting: Setting) -> None:
        gone = np.array([0.0, -math.inf, 0.0, 0.0, -math.inf, 0.0, 0.0, 0.0, 0.0, 0.0, -math.inf])
        for name, call in self.each_normalizer(setting, 0):
            excluded = replace(call, score=scores.Biased(call.score, per_key=gone))
            masked = replace(call, mask=masks.AllowedKeys(gone == 0))
            got = self.run(excluded, setting)
            assert_agrees(got._replace(gradients=got.gradients[:3]), oracle_of(masked, setting), setting, name)
            assert all(np.isfinite(gradient).all() for gradient in got.gradients), name

    def test_row_emptied_by_a_mask_has_output_and_gradient_0(self, setting: Setting) -> None:
        allowed = np.ones((7, 11), dtype=bool)
        allowed[2] = False
        for name, call in self.each_normalizer(setting, 1, mask=masks.AllowedPairs(allowed)):
            self.assert_empty_row(replace(call, mask=masks.AllowedPairs(allowed)), setting, name)

    def test_row_emptied_by_minus_infinity_has_output_and_gradient_0(self, setting: Setting) -> None:
        bias = np.zeros((7, 11))
        bias[2] = -math.inf
        for name, call in self.each_normalizer(setting, 0):
            emptied = replace(call, score=scores.Biased(call.score, bias))
            if self.accepts(emptied, setting):
                self.assert_empty_row(emptied, setting, name)

    def test_call_without_any_allowed_key_gives_0_throughout(self, setting: Setting) -> None:
        for name, call in self.each_normalizer(setting, 1, mask=masks.AllowedKeys(np.zeros(11, dtype=bool))):
            got = self.run(call, setting)
            assert not got.output.any(), name
            assert not any(gradient.any() for gradient in got.gradients), name

    def test_scores_that_add_up_to_0_give_an_empty_row_under_sum(self, setting: Setting) -> None:
        query, key = np.array([[1.0], [7.0]]), np.array([[1.0], [2.0], [1.0]])
        call = Call(query, key, np.array([[4.0], [math.nan], [8.0]]), scores.Exact(), normalizers.Sum())
        got = self.run(call, setting)
        assert_close(got.output, np.array([[6.0], [0.0]]), 1e-12)
        assert all(np.isfinite(gradient).all() for gradient in got.gradients)

    def test_lowest_finite_number_is_a_number_and_excludes_nothing(self, setting: Setting) -> None:
        low = LEAST[setting.dtype]
        query, key, value = np.zeros((1, 1)), np.ones((3, 1)), np.array([[1.0], [3.0], [50.0]])
        for normalizer, expected in (
            (normalizers.Softmax(), 2.0),
            (normalizers.Mean(), 2.0),
            (normalizers.Sparsemax(), 2.0),
            (normalizers.Entmax15(), 2.0),
            (normalizers.Hard(), 1.0),
            (normalizers.TopK(2), 2.0),
        ):
            score = scores.Biased(scores.Dot(), per_key=np.array([low, low, -math.inf]))
            self.assert_output(Call(query, key, value, score, normalizer), setting, [[expected]])

    def assert_empty_row(self, call: Call, setting: Setting, name: str) -> None:
        """Assert that query 2 of a call has output 0 and gradient 0, and that all results agree with the reference."""
        got = self.run(call, setting)
        assert not got.output[..., 2, :].any(), f"{name}: output of an empty row {got.output[..., 2, :]}"
        for gradient in got.gradients:
            assert np.isfinite(gradient).all(), f"{name}: a gradient is not finite"
        if got.gradients:
            assert not got.gradients[0][..., 2, :].any(), f"{name}: gradient of the query of an empty row"
        assert_agrees(got._replace(gradients=got.gradients[:3]), oracle_of(call, setting), setting, name)

    # -- 3. What is masked is never read -----------------------------------------------------------------

    def test_nan_in_a_masked_key_or_value_does_not_leak(self, setting: Setting) -> None:
        for test, mask_name in enumerate(self.sample(setting, _MASKS_OF_KEYS)):
            for name, call in self.each_normalizer(setting, test, mask=_MASKS_OF_KEYS[mask_name]):
                self.assert_no_leak(call, setting, math.nan, f"{name}, {mask_name}")

    def test_infinity_in_a_masked_key_or_value_does_not_leak(self, setting: Setting) -> None:
        for test, number, mask_name in zip((1, 2), (math.inf, -math.inf), _MASKS_OF_KEYS, strict=False):
            for name, call in self.each_normalizer(setting, test, mask=_MASKS_OF_KEYS[mask_name]):
                self.assert_no_leak(call, setting, number, f"{name}, {mask_name}")

    def test_masked_nan_does_not_leak_through_any_kind_of_score(self, setting: Setting) -> None:
        for score in self.sample(setting, _VARIED_SCORES):
            for mask_name in self.sample(setting, _MASKS_OF_KEYS):
                call = replace(Case(score).call(), mask=_MASKS_OF_KEYS[mask_name])
                if self.accepts(call, setting):
                    self.assert_no_leak(call, setting, math.nan, f"{score}, {mask_name}")

    def test_keys_beyond_the_last_query_do_not_leak_under_causal(self, setting: Setting) -> None:
        for name, call in self.each_normalizer(setting, 0, mask=masks.Causal("start")):
            self.assert_no_leak(call, setting, math.nan, name, hidden=[7, 8, 9, 10])

    def test_nan_that_one_query_reads_does_not_reach_another(self, setting: Setting) -> None:
        # Under a causal mask aligned at the end, only the last query may attend to key 10.
        for name, call in self.each_normalizer(setting, 1, mask=masks.Causal("end")):
            got = self.run(_with(call, [10], math.nan), setting)
            expected = oracle_of(_with(call, [10], 0.0), setting)
            got, expected = (
                Outcome(result.output[..., :6, :], tuple(gradient[..., :6, :] for gradient in result.gradients[:1]))
                for result in (got, expected)
            )
            assert_agrees(got, expected, setting, name)

    def assert_no_leak(
        self, call: Call, setting: Setting, number: float, message: str, hidden: list[int] = _MASKED_KEYS
    ) -> None:
        """Assert that output and gradients do not change if the keys and values `hidden` are set to `number`."""
        got = self.run(_with(call, hidden, number), setting)
        assert_agrees(got, oracle_of(_with(call, hidden, 0.0), setting), setting, f"{number} leaks, {message}")

    # -- 8. Half precision accumulates in float32 --------------------------------------------------------

    def test_logits_beyond_the_largest_half_do_not_overflow(self, setting: Setting) -> None:
        query, key = np.full((1, 64), 64.0), np.full((3, 64), 64.0)
        key[1:] = 63.0
        call = Call(query, key, np.array([[1.0], [9.0], [9.0]]), scores.Dot(), normalizers.Softmax())
        assert_close(self.observe(call, setting).output, [[1.0]], 1e-12)

    def test_long_sums_do_not_stall(self, setting: Setting) -> None:
        # In float16, 2048 + 1 is 2048; in bfloat16, 256 + 1 is 256.
        many = np.ones((3072, 1))
        call = Call(many[:1], many, many, scores.Dot(), normalizers.Identity())
        assert_close(self.observe(call, setting).output, [[3072.0]], 1e-12)

    # -- 10. NaN in what is read propagates --------------------------------------------------------------

    def test_nan_in_a_key_that_is_read_shows(self, setting: Setting) -> None:
        for name, call in self.each_normalizer(setting, 0):
            output = to_float64(self.observe(_with(call, [4], math.nan, values=False), setting).output)
            if name != "mean":  # the mean does not depend on the logits
                assert np.isnan(output).all(), f"{name}: {output}"

    def test_nan_in_a_query_shows_in_its_row_alone(self, setting: Setting) -> None:
        for name, call in self.each_normalizer(setting, 1):
            query = call.query.copy()
            query[..., 3, :] = math.nan
            output = to_float64(self.observe(replace(call, query=query), setting).output)
            assert np.isfinite(np.delete(output, 3, axis=-2)).all(), name
            assert np.isnan(output[..., 3, :]).all() or name == "mean", name

    def test_nan_and_infinity_in_a_value_that_is_read_show_as_in_the_oracle(self, setting: Setting) -> None:
        for name, call in self.each_normalizer(setting, 0):
            value = call.value.copy()
            value[..., 4, 1], value[..., 5, 2], value[..., 6, 3] = math.nan, math.inf, -math.inf
            got = to_float64(self.observe(replace(call, value=value), setting).output)
            expected = oracle_of(replace(call, value=value), setting).output
            assert_close(got, expected, max(1e-11, 5 * setting.tolerance), message=name, min_scale=0.1)
            if name == "softmax":
                assert np.isnan(got[..., 1]).all()
                assert (got[..., 2] == math.inf).all()
                assert (got[..., 3] == -math.inf).all()

    # -- Ties --------------------------------------------------------------------------------------------

    def test_ties_go_to_the_lowest_key_and_exactly_k_are_kept(self, setting: Setting) -> None:
        key = np.zeros((11, 1))
        key[[2, 3, 7, 8, 9]] = 1.0
        call = Call(np.ones((1, 1)), key, np.eye(11), scores.Dot(), normalizers.Hard())
        for normalizer, selected in ((normalizers.Hard(), [2]), (normalizers.TopK(3), [2, 3, 7])):
            expected = np.where(np.isin(np.arange(11), selected), 1 / len(selected), 0.0)
            self.assert_output(replace(call, normalizer=normalizer), setting, expected[None, :], str(normalizer))

    # -- 12. A zero vector has cosine 0 with everything --------------------------------------------------

    def test_zero_vector_has_cosine_0_with_everything(self, setting: Setting) -> None:
        key = np.array([[0.0, 0.0], [3.0, 4.0], [-1.0, 0.0], [0.0, 0.0]])
        value = np.array([[1.0], [2.0], [3.0], [10.0]])
        call = Call(np.zeros((1, 2)), key, value, scores.Cosine(), normalizers.Softmax())
        got = self.run(call, setting)
        assert_close(got.output, [[4.0]], max(1e-12, setting.tolerance))
        assert all(np.isfinite(gradient).all() for gradient in got.gradients)
        call = replace(call, query=np.array([[1.0, 0.0]]))
        self.assert_as_oracle(call, setting)


def _with(call: Call, columns: list[int], number: float, values: bool = True) -> Call:
    """Return a copy of a call with the keys `columns`, and their values if `values` is True, set to `number`."""
    key, value = call.key.copy(), call.value.copy()
    key[..., columns, :] = number
    if values:
        value[..., columns, :] = number
    return replace(call, key=key, value=value)
