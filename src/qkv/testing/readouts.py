"""Contract tests that every readout must pass, as a class from which the tests of a readout inherit.

    class TestEntropy(ReadoutContract):
        readout = Entropy()

The inherited tests check, for every kernel, that the readout and its gradients agree with those of the dense kernel for
every score and normalizer, that it uses the weights before dropout, that it does not change the output, and that it
gives a reason for each normalizer that it does not support.

In short runs, the kernels take turns: each kernel computes every other normalizer for a readout, and the others for
other readouts. The environment variable `HYPOTHESIS_PROFILE=long` runs all of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import qkv
from qkv import masks
from qkv.core.arrays import cast, ignore_numpy_warnings, zeros
from qkv.core.batch import BatchIndex, batch_indices
from qkv.core.equation import BoundCall
from qkv.core.tile import Tile
from qkv.core.typing import ArrayLike, PairArray
from qkv.engine import Observation
from qkv.errors import RefusedError
from qkv.kernels.dense.kernel import DenseKernel
from qkv.kernels.numpy_blocks.kernel import NumpyBlocksKernel
from qkv.kernels.row_blocks.kernel import RowBlocksKernel
from qkv.kernels.runtime.tile_loop import Limits, attend_rows, ranges
from qkv.kernels.runtime.tile_readouts import ReadoutAccumulator, accumulate_rows, readable_by_tile
from qkv.kernels.tiled.kernel import TiledKernel
from qkv.normalizers.base import Summary
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem
from qkv.readouts import Readout
from qkv.testing.cases import NORMALIZERS, SCORES, Call, Case
from qkv.testing.execution import inputs_of, parts_of, run_eagerly
from qkv.testing.gradients import assert_numerical
from qkv.testing.libraries import LIBRARIES, LONG, Setting, assert_close, to_float64, turn


@dataclass(frozen=True)
class TileReader(Kernel):
    """Kernel without gradients that computes the output of a row block first, and then the readouts of its tiles.

    Args:
        rows: number of queries in a tile.
        cols: number of keys in a tile.
        most: largest number of batch elements in a tile.
    """

    name: ClassVar[str] = "tile reader"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "torch")
    rows: int = 3
    cols: int = 4
    most: int = 2

    def limits(self, problem: Problem) -> Iterator[str]:
        """Yield a reason for each feature of a problem that the kernel does not support: gradients, some readouts."""
        if problem.gradient:
            yield "it does not support gradients"
        if not readable_by_tile(problem.readouts, problem.normalizer):
            yield "it does not support readouts that need whole rows"

    def scratch(self, problem: Problem) -> float:
        """Return 0, so that every budget suffices."""
        return 0.0

    def run(self, call: BoundCall, problem: Problem) -> Result:
        tile, accumulators = call.tile, [ReadoutAccumulator(readout, call.tile) for readout in problem.readouts]
        output: ArrayLike = zeros(call.value, (*tile.batch, tile.q_total, call.value.shape[-1]))
        with ignore_numpy_warnings():
            for index in batch_indices(tile.batch, self.most):
                one = call.select_batch(index) if index else call
                for rows in ranges(tile.q_total, self.rows):
                    rows_output, summary = attend_rows(one, rows, self.cols)
                    output[(*index, slice(*rows)) if index else (..., slice(*rows), slice(None))] = rows_output
                    self._read(accumulators, one, summary, rows, index)
        return Result(cast(output, call.out_dtype), tuple(accumulator.result() for accumulator in accumulators))

    def _read(
        self,
        accumulators: Sequence[ReadoutAccumulator],
        call: BoundCall,
        summary: Summary,
        rows: Limits,
        index: BatchIndex,
    ) -> None:
        normalizer = call.normalizer

        def weighed() -> Iterator[tuple[PairArray, PairArray, Tile]]:
            for limits in ranges(call.tile.k_total, self.cols):
                tile, logits = call.tile.restrict(rows, limits), call.logits(rows, limits)
                if logits is not None:
                    yield logits, normalizer.tile_weights(normalizer.prepare(logits), summary, tile), tile

        all_keys = call.tile.restrict(rows, (0, call.tile.k_total))
        accumulate_rows(accumulators, all_keys, weighed(), normalizer, call.value, index)


_READERS: dict[str, Kernel] = {
    "dense": DenseKernel(),
    "tiled": TiledKernel(budget=30, row_block_budget=3000),
    "row_blocks": RowBlocksKernel(budget=3000),
    "numpy_blocks": NumpyBlocksKernel(budget=12, row_block_budget=3000),
    "tiles": TileReader(rows=4, cols=6, most=4),
}
"""Kernels that compute readouts, with tiles so small that each call has several."""

_DENSE = [Setting(library, dtype) for library in LIBRARIES for dtype in ("float64", "float32")]
_PIECEWISE = [
    (name, Setting(library, "float64"))
    for name, kernel in _READERS.items()
    for library in kernel.libraries
    if name != "dense" and library in LIBRARIES
]

_observed: dict[type, dict[tuple[object, ...], Observation | None]] = {}
"""Results that several tests of the class that runs compare."""


class ReadoutContract:
    """Contract tests of readouts. Subclasses must set `readout`, and may define `formula` to check its values."""

    readout: ClassVar[Readout]
    differentiable: ClassVar[bool] = True
    """Whether the result is differentiable, which indices are not."""
    suits: ClassVar[str] = "softmax"
    """Name of a normalizer that the readout supports."""
    needs_queries: ClassVar[bool] = False
    number: ClassVar[int] = 0
    """Number of the class, so that not all classes leave out the same calls in short runs."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.number = zlib.crc32(cls.__name__.encode())

    def formula(self, weights: ArrayLike, logits: ArrayLike) -> ArrayLike:
        """Return the expected readout of one query, given its softmax weights and logits, each `(k,)`.

        The method of this class returns None, with which no test compares the readout.
        """
        return None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize `reader` and `setting` with the kernels other than the dense one, and their libraries."""
        if "reader" in metafunc.fixturenames:
            ids = [f"{name}-{setting.library}" for name, setting in _PIECEWISE]
            metafunc.parametrize(("reader", "setting"), _PIECEWISE, ids=ids)
        elif "setting" in metafunc.fixturenames:
            metafunc.parametrize("setting", _DENSE, ids=str)

    def calls(self) -> list[tuple[str, Call]]:
        """Return `(name, call)` for each normalizer that the readout supports, with a fully masked row in each call."""
        mask = masks.AllowedPairs(self.allowed())
        calls = [(name, replace(Case("similarity", name).call(), mask=mask)) for name in NORMALIZERS]
        return [(name, call) for name, call in calls if self.readout.refuse(call.normalizer) is None]

    def calls_in_turn(self, reader: str, setting: Setting) -> list[tuple[str, Call]]:
        """Return those of `calls` whose turn it is with a kernel and a library: all in long runs."""
        return turn(self.calls(), _PIECEWISE.index((reader, setting)) + self.number, 4)

    def allowed(self) -> ArrayLike:
        """Return a random mask `(7, 11)` that allows each pair with probability 2/3, except those of query 2."""
        allowed = np.random.default_rng(0).random((7, 11)) < 2 / 3
        allowed[2] = False
        return allowed

    def observe(self, call: Call, setting: Setting, reader: str = "dense") -> Observation:
        """Run a call with the readout and the kernel `_READERS[reader]`, and return the result of `qkv.observe`."""
        return run_eagerly(call, setting, _READERS[reader], readouts=[self.readout])

    def observe_once(self, name: str, call: Call, setting: Setting, reader: str = "dense") -> Observation | None:
        """Return `observe` of a variant of the call `name` in `calls`, computed by the first test that needs it.

        Returns None if the kernel does not support the call.
        """
        if type(self) not in _observed:
            _observed.clear()
        results = _observed.setdefault(type(self), {})
        key = (name, type(call.score).__name__, call.dropout, call.mask is None, str(setting), reader)
        if key not in results:
            try:
                results[key] = self.observe(call, setting, reader)
            except RefusedError:
                results[key] = None
        return results[key]

    def accepted(
        self, calls: Iterable[tuple[str, Call]], setting: Setting, reader: str
    ) -> Iterator[tuple[str, Call, Observation]]:
        """Yield `(name, call, result)` for each of `calls` that the kernel `_READERS[reader]` supports."""
        for name, call in calls:
            observation = self.observe_once(name, call, setting, reader)
            if observation is not None:
                yield name, call, observation

    def assert_as_dense(self, calls: Iterable[tuple[str, Call]], setting: Setting, reader: str) -> None:
        """Assert that the readouts of the kernel `_READERS[reader]` agree with those of the dense kernel.

        Calls that the kernel does not support are skipped.
        """
        for name, call, observation in self.accepted(calls, setting, reader):
            expected = self.observe_once(name, call, setting)
            assert expected is not None, name
            _assert_same(observation, expected, name)

    def test_some_normalizer_is_accepted(self) -> None:
        assert self.calls()

    def test_agrees_with_the_dense_kernel_for_scores_of_every_kind(self, reader: str, setting: Setting) -> None:
        names = ("additive", "gaussian", "alibi", "class table", "biased")
        chosen = turn(names, _PIECEWISE.index((reader, setting)) + self.number, 4)
        self.assert_as_dense(((name, Case(name, self.suits, "window").call()) for name in chosen), setting, reader)

    @pytest.mark.long
    def test_agrees_with_the_dense_kernel_for_all_combinations(self, reader: str, setting: Setting) -> None:
        cases = (Case(score, name, mask="pairs") for score in SCORES for name in NORMALIZERS)
        calls = ((str(case), case.call()) for case in cases if case.sensible)
        accepted = ((name, call) for name, call in calls if self.readout.refuse(call.normalizer) is None)
        self.assert_as_dense(accepted, setting, reader)

    def test_output_is_the_same_with_and_without_the_readout(self, reader: str, setting: Setting) -> None:
        for name, call, observation in self.accepted(self.calls_in_turn(reader, setting), setting, reader):
            alone = to_float64(run_eagerly(call, setting, _READERS[reader]).output)
            assert_close(observation.output, alone, 1e-13, message=name, min_scale=1.0)
            assert np.array_equal(to_float64(observation.output) == 0, alone == 0), name

    def test_agrees_with_the_dense_kernel_for_every_normalizer(self, reader: str, setting: Setting) -> None:
        variants = []
        for number, (name, call) in enumerate(self.calls_in_turn(reader, setting)):
            changed = turn([replace(call, dropout=0.4), replace(call, mask=None)], number + self.number, 2)
            variants += [(name, variant) for variant in (call, *changed)]
        self.assert_as_dense(variants, setting, reader)

    def test_agrees_with_its_formula(self, setting: Setting) -> None:
        call = replace(Case("similarity", "softmax").call(), mask=masks.AllowedPairs(self.allowed()))
        if type(self).formula is ReadoutContract.formula or self.readout.refuse(call.normalizer) is not None:
            return
        (found,) = _results(self.observe(call, setting))
        with setting.active():
            logits = call.score(setting.rounded(call.query), setting.rounded(call.key))
        logits = np.where(self.allowed(), logits, -np.inf)  # type: ignore[call-overload]
        for index in np.ndindex(*logits.shape[:-1]):
            expected = np.asarray(self.formula(_softmax(logits[index]), logits[index]))
            assert_close(found[index], expected, 10 * setting.tolerance, message=f"{index}:", min_scale=1.0)

    def test_weights_are_read_before_dropout(self) -> None:
        setting = Setting("numpy", "float64")
        for name, call in self.calls():
            expected = self.observe_once(name, call, setting)
            assert expected is not None, name
            _assert_same(self.observe(replace(call, dropout=0.5), setting), expected, name)

    def test_gradients_agree_with_the_dense_kernel(self) -> None:
        torch = pytest.importorskip("torch")
        setting = Setting("torch", "float64")
        for number, (name, call) in turn(list(enumerate(self.calls() if self.differentiable else ())), self.number, 2):
            found: list[tuple[ArrayLike, ...]] = []
            others = ("tiled", "row_blocks") if number // 2 % 2 else ("row_blocks", "tiled")
            for reader in ("dense", *others):
                if len(found) == 2 and not LONG:
                    break  # the two kernels take turns
                leaves = [x.requires_grad_() for x in inputs_of(call, setting)]
                try:
                    parts = parts_of(call, setting, leaves[3:])
                    observation = qkv.observe(*leaves[:3], **parts, readouts=[self.readout], kernel=_READERS[reader])
                except RefusedError:
                    continue
                result = _results(observation)[0]
                result = torch.where(torch.isfinite(result), result, torch.zeros_like(result))
                torch.manual_seed(0)
                total = (result * torch.randn_like(result)).sum() + (
                    observation.output * torch.randn_like(observation.output)
                ).sum()
                found.append(torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True))
            assert len(found) >= 2, name
            for other in found[1:]:
                for n, (mine, theirs) in enumerate(zip(other, found[0], strict=True)):
                    message = f"{name}, gradient {n}:"
                    assert_close(mine, to_float64(theirs), 1e-9, message=message, min_scale=0.1)

    def test_first_and_second_derivatives_agree_with_finite_differences(self) -> None:
        pytest.importorskip("torch")
        setting, call = Setting("torch", "float64"), Case("scaled dot", self.suits).call()
        parts = parts_of(call, setting, inputs_of(call, setting)[3:])

        def result(query: ArrayLike, key: ArrayLike) -> ArrayLike:
            return _results(qkv.observe(query, key, key, **parts, readouts=[self.readout], kernel=_READERS["tiled"]))[0]

        if self.differentiable:
            assert_numerical(result, [call.query, call.key], second=True)

    def test_refuses_a_normalizer_with_a_reason(self) -> None:
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

    def test_nothing_is_nan_for_a_query_without_keys(self, reader: str, setting: Setting) -> None:
        for name, _, observation in self.accepted(self.calls_in_turn(reader, setting), setting, reader):
            assert not any(np.isnan(np.asarray(array)).any() for array in _results(observation)), name

    def test_no_keys_and_no_queries_work(self, reader: str, setting: Setting) -> None:
        for shape in ("no keys", "no queries")[: 1 if self.needs_queries else 2]:
            call = Case("similarity", self.suits, shape=shape).call()
            _assert_same(self.observe(call, setting, reader), self.observe(call, setting), shape)


def _softmax(logits: ArrayLike) -> ArrayLike:
    e = np.exp(logits)
    return e / (e.sum() or 1)


def _results(observation: Observation) -> tuple[ArrayLike, ...]:
    """Return the arrays of the first readout of a result as a tuple."""
    result: ArrayLike = observation.readouts[0]
    return result if isinstance(result, tuple) else (result,)


def _assert_same(observation: Observation, expected: Observation, message: str) -> None:
    for mine, theirs in zip(_results(observation), map(np.asarray, _results(expected)), strict=True):
        tolerance = 1e-11 if theirs.dtype.kind == "f" else 0.0  # indices are compared exactly
        assert_close(mine, theirs, tolerance, message=message, min_scale=0.1)
