"""The contract of a readout.

    class TestEntropy(ReadoutContract):
        readout = Entropy()

The inherited tests check on every kernel, and tile by tile, that the readout agrees with the dense kernel for every
score and normalizer, with gradients; that it uses the weights before dropout; that it leaves the output unchanged;
and that it refuses a normalizer with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

import qkv
from qkv import masks
from qkv.core.typing import ArrayLike
from qkv.errors import RefusedError
from qkv.kernels import DenseKernel, NumpyBlocksKernel, RowBlocksKernel, TiledKernel
from qkv.plan import Kernel
from qkv.readouts import Readout
from qkv.testing.cases import NORMALIZERS, SCORES, Call, Case
from qkv.testing.examples import with_floats
from qkv.testing.execution import run_eagerly
from qkv.testing.gradients import assert_numerical
from qkv.testing.libraries import LIBRARIES, Setting, assert_close, to_float64
from qkv.testing.tile_reader import TileReader

__all__ = ["ReadoutContract", "read"]

READERS: dict[str, Kernel] = {
    "dense": DenseKernel(),
    "tiled": TiledKernel(budget=12, row_block_budget=3000),
    "row_blocks": RowBlocksKernel(budget=3000),
    "numpy_blocks": NumpyBlocksKernel(budget=12, row_block_budget=3000),
    "tiles": TileReader(rows=4, cols=6, most=4),
}
"""Kernels that compute readouts, with tiles so small that several are combined."""

DENSE = [Setting(library, dtype) for library in LIBRARIES for dtype in ("float64", "float32")]
PIECEWISE = [
    (name, Setting(library, "float64"))
    for name, kernel in READERS.items()
    for library in kernel.libraries
    if name != "dense" and library in LIBRARIES
]


def read(call: Call, setting: Setting, kernel: Kernel | str | None, *readouts: Readout) -> ArrayLike:
    """Return the results of readouts as NumPy arrays, or tuples of them."""
    seen = run_eagerly(call, setting, kernel, readouts=readouts)
    return [
        tuple(map(np.asarray, result)) if isinstance(result, tuple) else np.asarray(result) for result in seen.readouts
    ]


class ReadoutContract:
    """Contract of readouts: inherit, and define `readout` and `formula`."""

    readout: ClassVar[Readout]
    differentiable: ClassVar[bool] = True
    """Whether the result has gradients; indices have none."""
    suits: ClassVar[str] = "softmax"
    """Name of a normalizer that the readout accepts."""
    needs_queries: ClassVar[bool] = False

    def formula(self, weights: ArrayLike, logits: ArrayLike) -> ArrayLike:
        """Return the result for a row `(k,)` of NumPy weights and logits under softmax, or None."""
        return None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize `reader` and `setting` with the kernels that compute readouts in parts."""
        if "reader" in metafunc.fixturenames:
            ids = [f"{name}-{setting.library}" for name, setting in PIECEWISE]
            metafunc.parametrize(("reader", "setting"), PIECEWISE, ids=ids)
        elif "setting" in metafunc.fixturenames:
            metafunc.parametrize("setting", DENSE, ids=str)

    def calls(self) -> list[tuple[str, Call]]:
        """Return a masked call with an empty row for each normalizer that the readout accepts."""
        out = []
        for name in NORMALIZERS:
            call = replace(Case("similarity", name).call(), mask=masks.Pairs(self.allowed()))
            if self.readout.refuse(call.normalizer) is None:
                out.append((name, call))
        return out

    def allowed(self) -> ArrayLike:
        """Return a mask that allows two of three pairs, and none for query 2."""
        allowed = np.random.default_rng(0).random((7, 11)) < 2 / 3
        allowed[2] = False
        return allowed

    def test_some_normalizer_suits_it(self) -> None:
        assert self.calls()

    def test_scores_of_every_kind_can_be_read(self, reader: str, setting: Setting) -> None:
        for score in ("additive", "gaussian", "alibi", "class table", "biased"):
            call = Case(score, self.suits, mask="window").call()
            try:
                got = read(call, setting, READERS[reader], self.readout)[0]
            except RefusedError:
                continue
            _same(got, read(call, setting, READERS["dense"], self.readout)[0], score)

    @pytest.mark.long
    def test_every_score_can_be_read_under_every_normalizer(self, reader: str, setting: Setting) -> None:
        for score in SCORES:
            for name in NORMALIZERS:
                case = Case(score, name, mask="pairs")
                call = case.call()
                if not case.sensible or self.readout.refuse(call.normalizer) is not None:
                    continue
                try:
                    got = read(call, setting, READERS[reader], self.readout)[0]
                except RefusedError:
                    continue
                _same(got, read(call, setting, READERS["dense"], self.readout)[0], str(case))

    def test_asking_leaves_the_output_as_it_is(self, reader: str, setting: Setting) -> None:
        for name, call in self.calls():
            try:
                seen = run_eagerly(call, setting, READERS[reader], readouts=[self.readout])
            except RefusedError:
                continue
            alone = run_eagerly(call, setting, READERS[reader]).output
            assert_close(seen.output, to_float64(alone), 1e-13, message=name, min_scale=1.0)
            assert np.array_equal(to_float64(seen.output) == 0, to_float64(alone) == 0), name

    def test_every_kernel_reads_what_the_dense_one_reads(self, reader: str, setting: Setting) -> None:
        for name, call in self.calls():
            for variant in (call, replace(call, dropout=0.4), replace(call, mask=None)):
                try:
                    got = read(variant, setting, READERS[reader], self.readout)[0]
                except RefusedError:
                    continue
                wanted = read(variant, setting, READERS["dense"], self.readout)[0]
                _same(got, wanted, name)

    def test_says_what_its_formula_says(self, setting: Setting) -> None:
        written = type(self).formula is not ReadoutContract.formula
        for name, call in self.calls():
            if name != "softmax" or not written:
                continue
            got = read(call, setting, "dense", self.readout)[0]
            with setting.active():
                logits = call.score(setting.rounded(call.query), setting.rounded(call.key))
            logits = np.where(self.allowed(), logits, -np.inf)  # type: ignore[call-overload]
            for index in np.ndindex(*logits.shape[:-1]):
                wanted = self.formula(_softmax(logits[index]), logits[index])
                if wanted is not None:
                    said = f"{name} {index}:"
                    assert_close(got[index], np.asarray(wanted), 10 * setting.tolerance, message=said, min_scale=1.0)

    def test_dropout_is_not_in_what_is_read(self) -> None:
        for name, call in self.calls():
            whole = read(call, Setting("numpy", "float64"), "dense", self.readout)[0]
            dropped = read(replace(call, dropout=0.5), Setting("numpy", "float64"), "dense", self.readout)[0]
            _same(dropped, whole, name)

    def test_gradient_is_that_of_the_dense_kernel(self) -> None:
        torch = pytest.importorskip("torch")
        setting = Setting("torch", "float64")
        if not self.differentiable:
            return
        for name, call in self.calls():
            found = []
            for kernel in (READERS["dense"], READERS["tiled"], READERS["row_blocks"]):
                leaves = [setting.array(x).requires_grad_() for x in (call.query, call.key, call.value)]
                normalizer = setting.part(call.normalizer)
                arrays: Sequence[ArrayLike] = normalizer.arrays()
                held = [array.requires_grad_() for array in arrays]
                try:
                    seen = qkv.observe(
                        *leaves,
                        score=call.score,
                        normalizer=with_floats(normalizer, held),
                        mask=setting.part(call.mask),  # type: ignore[type-var]
                        positions=call.positions,
                        seed=call.seed,
                        readouts=[self.readout],
                        kernel=kernel,
                    )
                except RefusedError:
                    continue
                result: ArrayLike = seen.readouts[0]
                result = result[0] if isinstance(result, tuple) else result
                result = torch.where(torch.isfinite(result), result, torch.zeros_like(result))
                torch.manual_seed(0)
                total = (result * torch.randn_like(result)).sum() + (seen.output * torch.randn_like(seen.output)).sum()
                found.append(torch.autograd.grad(total, leaves + held, allow_unused=True, materialize_grads=True))
            assert len(found) >= 2, name
            for other in found[1:]:
                for n, (mine, theirs) in enumerate(zip(other, found[0], strict=True)):
                    assert_close(mine, to_float64(theirs), 1e-9, message=f"{name}, gradient {n}:", min_scale=0.1)

    def test_gradient_is_that_of_small_differences_and_so_is_its_own(self) -> None:
        pytest.importorskip("torch")
        if not self.differentiable:
            return
        call = Case("scaled dot", self.suits).call()
        part = Setting("torch", "float64").part(call.normalizer)

        def result(query: ArrayLike, key: ArrayLike) -> ArrayLike:
            seen = qkv.observe(
                query,
                key,
                key,
                normalizer=part,
                positions=call.positions,
                seed=call.seed,
                readouts=[self.readout],
                kernel=READERS["tiled"],
            ).readouts[0]
            return seen[0] if isinstance(seen, tuple) else seen

        assert_numerical(result, [call.query, call.key], second=True)

    def test_refuses_in_a_sentence_what_it_makes_no_sense_of(self) -> None:
        for name in NORMALIZERS:
            call = Case("similarity", name).call()
            sentence = self.readout.refuse(call.normalizer)
            if sentence is None:
                continue
            assert any(type(part).__name__ in sentence for part in self.readout.parts())
            assert str(call.normalizer) in sentence
            assert sentence.endswith(".")
            with pytest.raises(RefusedError) as refusal:
                run_eagerly(call, Setting("numpy", "float64"), None, readouts=[self.readout])
            assert str(refusal.value) == sentence

    def test_query_without_keys_reads_finite_numbers_or_minus_infinity(self, reader: str, setting: Setting) -> None:
        for name, call in self.calls():
            try:
                result = read(call, setting, READERS[reader], self.readout)[0]
            except RefusedError:
                continue
            for array in result if isinstance(result, tuple) else [result]:
                assert not np.isnan(array).any(), name

    def test_no_keys_and_no_queries_work(self, reader: str, setting: Setting) -> None:
        for shape in ("no keys", "no queries")[: 1 if self.needs_queries else 2]:
            call = Case("similarity", self.suits, shape=shape).call()
            got, wanted = (read(call, setting, READERS[name], self.readout)[0] for name in (reader, "dense"))
            _same(got, wanted, shape)


def _softmax(logits: ArrayLike) -> ArrayLike:
    e = np.exp(logits)
    return e / (e.sum() or 1)


def _same(got: ArrayLike, wanted: ArrayLike, said: str) -> None:
    if isinstance(wanted, tuple):
        for mine, theirs in zip(got, wanted, strict=True):
            _same(mine, theirs, said)
    elif wanted.dtype.kind == "f":
        assert_close(got, wanted, 1e-11, message=said, min_scale=0.1)
    else:
        assert np.array_equal(got, wanted), f"{said}: {got}, wanted {wanted}"
