"""The programs for readouts, run by Triton's interpreter on tensors of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

import qkv
from qkv import masks, readouts, scores
from qkv.kernels.runtime.context import on_device
from qkv.kernels.triton import readout_programs
from qkv.kernels.triton.readout_kernel import TritonReadoutsKernel
from qkv.testing.cases import Case
from qkv.testing.execution import run_eagerly
from qkv.testing.libraries import Setting, assert_close, to_float64
from qkv.testing.readouts import ReadoutContract
from tests.kernels.interpreted import NoProgram, check_nothing_is_read_back, program_names
from tests.readouts import test_contracts

KERNEL = TritonReadoutsKernel(interpreted=True, block=(16, 16))
CHEAP: list[readouts.Readout] = [
    readouts.PooledMap(4),
    readouts.PooledMap(3, "max"),
    readouts.ColumnSum(),
    readouts.Entropy(),
    readouts.LogSumExp(),
    readouts.MeanDistance(),
]
"""Readouts without a sort, which takes the interpreter long."""
CONTRACTS = [
    contract for contract in vars(test_contracts).values()
    if isinstance(contract, type) and issubclass(contract, ReadoutContract) and contract is not ReadoutContract
]  # fmt: skip


def additive(dtype: torch.dtype, width: int = 5) -> scores.Score:
    weight = torch.tensor(np.random.default_rng(9).normal(size=(3, width)), dtype=dtype)
    return scores.Additive(weight, weight.flip(-1), None, torch.ones(3, dtype=dtype))


SCORES: dict[str, Callable[..., scores.Score]] = {
    "scaled dot": lambda *_: scores.ScaledDot(),
    "gaussian": lambda *_: scores.Gaussian(0.8),
    "additive": additive,
}


def observe(
    lengths: tuple[int, int],
    score: str,
    mask: masks.Mask | None,
    asked: Sequence[readouts.Readout],
    dtype: torch.dtype = torch.float32,
    bad: tuple[int, int] | None = None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the output and all arrays of the readouts, by the programs and by the reference in float64.

    Args:
        lengths: numbers of queries and keys.
        score: name of the score in `SCORES`.
        mask: the mask.
        asked: the readouts.
        dtype: dtype of the inputs of the programs.
        bad: a query and a key that are NaN.
    """
    rng = np.random.default_rng(sum(lengths))
    sides = [torch.tensor(rng.normal(size=(2, n, 5))).to(dtype) for n in (lengths[0], lengths[1], lengths[1])]
    if bad is not None:
        sides[0][:, bad[0]], sides[1][:, bad[1]] = torch.nan, torch.nan
    found = []
    for kind, kernel in ((dtype, KERNEL), (torch.float64, "dense")):
        options = {"score": SCORES[score](kind), "mask": mask, "readouts": asked, "kernel": kernel}
        result = qkv.observe(*(x.to(kind) for x in sides), **options, positions=qkv.Positions("end"))
        arrays = [x for each in result.readouts for x in (each if isinstance(each, tuple) else (each,))]
        found.append([to_float64(x) if x.is_floating_point() else x.numpy() for x in (result.output, *arrays)])
    return found[0], found[1]


def check(got: list[np.ndarray], wanted: list[np.ndarray], tolerance: float = 1e-5) -> None:
    for n, (x, y) in enumerate(zip(got, wanted, strict=True)):
        exact = y.dtype.kind == "i"
        assert_close(x, y, 0.0 if exact else tolerance, message=str(n), min_scale=1.0)


@pytest.mark.parametrize(
    ("lengths", "score", "mask"),
    [
        ((18, 19), "scaled dot", masks.Causal() & masks.AllowedKeys(np.arange(19) % 3 != 0)),
        ((5, 37), "additive", masks.Causal()),
        ((9, 17), "gaussian", masks.Lengths(np.array([0, 13]))),
    ],
)
def test_readouts_agree_with_the_reference(lengths: tuple[int, int], score: str, mask: masks.Mask | None) -> None:
    """With more queries than keys, so that rows have no keys, and cells of one tile and of several."""
    check(*observe(lengths, score, mask, CHEAP))


def test_largest_weights_are_found_and_ties_go_to_the_lowest_key_across_tiles() -> None:
    """Keys 3, 15, 16 and 30 tie, in two tiles, key 20 is larger, and key 1 is masked."""
    key = torch.zeros(35, 1)
    key[[3, 15, 16, 30]], key[20], key[1] = 1.0, 2.0, 9.0
    options = {"score": scores.Dot(), "mask": masks.AllowedKeys(torch.arange(35) != 1)}
    asked = [readouts.TopWeights(4)]
    got, wanted = (
        qkv.observe(torch.ones(3, 1), key, key, readouts=asked, kernel=kernel, **options).readouts[0]
        for kernel in (KERNEL, "dense")
    )
    assert got.keys[0].tolist() == [20, 3, 15, 16]
    assert torch.equal(got.keys, wanted.keys)
    assert torch.allclose(got.weights, wanted.weights)


def test_rows_with_fewer_keys_than_asked_are_filled_up() -> None:
    got, wanted = observe((4, 3), "scaled dot", masks.Causal(), [readouts.TopWeights(5)])
    check(got, wanted)
    assert (got[2][:, :2] == [[[-1] * 5, [0] + [-1] * 4]]).all()


def test_heads_are_selected() -> None:
    head = readouts.Heads
    asked = [head(readouts.PooledMap(2, "max"), (1,)), head(readouts.LogSumExp(), (1, 0)), head(CHEAP[2], (-1, 0, 1))]
    check(*observe((7, 9), "gaussian", None, asked))


def test_what_is_not_finite_reaches_only_the_rows_that_read_it() -> None:
    got, wanted = observe((12, 12), "scaled dot", masks.Causal(), [*CHEAP[:4], readouts.TopWeights(2)], bad=(3, 9))
    check(got, wanted)
    assert np.isnan(got[1]).any()
    assert not np.isnan(got[1]).all()


def test_half_precision_is_accumulated_in_single_precision() -> None:
    got, wanted = observe((9, 20), "scaled dot", masks.Causal(), CHEAP[:1], torch.float16)
    check(got[1:], wanted[1:], 1e-3)
    assert KERNEL.keeps_dtype(_problem("float16", KERNEL))
    assert TritonReadoutsKernel().keeps_dtype(_problem("bfloat16", "triton_readouts", "H100"))


def _problem(dtype: str, kernel: object, device: str = "cpu") -> qkv.plan.Problem:
    shape = (9, 64)
    options = {"library": "torch", "dtype": dtype, "kernel": kernel, "device": device}
    return qkv.explain(shape, shape, shape, readouts=CHEAP, **options).problem


def test_two_runs_are_equal_to_the_last_bit() -> None:
    first, second = (observe((5, 20), "scaled dot", None, CHEAP[:1])[0] for _ in range(2))
    assert all(np.array_equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("score", ["scaled dot", "additive"])
def test_nothing_is_read_back(score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of distances one number is read, which decides between products and differences."""
    for name in program_names(readout_programs):
        monkeypatch.setattr(readout_programs, name, NoProgram())
    asked = [*CHEAP, readouts.TopWeights(2), readouts.Heads(readouts.TopWeights(2), (0,))]
    check_nothing_is_read_back("triton_readouts", {"score": SCORES[score](torch.float32, 4)}, asked)


def test_readouts_are_planned_for_gpus_without_gradients_and_never_for_cpus() -> None:
    shape = (16, 4096, 64)
    weights = np.zeros((64, 64))
    for score in (None, scores.Gaussian(1.0), scores.Additive(weights, weights, None, np.zeros(64))):
        options = {"score": score, "library": "torch", "readouts": [readouts.PooledMap(512), readouts.TopWeights(32)]}
        plan = qkv.explain(shape, shape, shape, **options, device="H200", dtype="bfloat16")
        assert plan.kernel.name == "triton_readouts", str(plan)
        assert "the cells of a map" in str(plan)
        small = qkv.explain(shape, shape, shape, **options, device="H200", dtype="bfloat16", memory="512 MiB")
        assert "1 more to add weights up" in str(small)
        assert qkv.explain(shape, shape, shape, **options).kernel.name == "tiled"
    refused = {
        "without gradient": {"gradient": True},
        "keeps up to 64 keys": {"readouts": [readouts.TopWeights(65)]},
        "does not compute the readout": {"readouts": [readouts.Rows((1,))]},
        "the call has none": {"readouts": []},
        "neither causal nor a mask of keys": {"mask": masks.Window(3, 0)},
    }
    for reason, change in refused.items():
        options = {"library": "torch", "device": "H200", "readouts": CHEAP} | change
        with pytest.raises(qkv.errors.RefusedError, match=reason):
            qkv.explain(shape, shape, shape, kernel="triton_readouts", **options)


def test_programs_are_launched_on_the_gpu_of_the_tensors() -> None:
    with mock.patch("torch.cuda.device") as device:
        on_device(SimpleNamespace(is_cuda=True, device="cuda:1"))
        device.assert_called_once_with("cuda:1")
        with on_device(torch.ones(1)):
            device.assert_called_once()


@pytest.mark.long
@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
def test_agrees_with_the_dense_kernel_where_contracts_do(contract: type[ReadoutContract]) -> None:
    readout, accepted = contract.readout, 0
    cases = [
        Case("scaled dot", "softmax", "none"),
        Case("scaled dot", "softmax with temperature", "causal at the end"),
        Case("gaussian", "softmax with temperature", "keys"),
        Case("cosine", "softmax", "lengths"),
        Case("additive", "softmax with temperature", "causal at the end"),
    ]
    for case in cases:
        call = case.call()
        try:
            found = run_eagerly(call, Setting("torch", "float32"), KERNEL, readouts=[readout])
        except qkv.errors.RefusedError:
            continue
        accepted += 1
        wanted = run_eagerly(call, Setting("torch", "float64"), "dense", readouts=[readout])
        for x, y in zip(_arrays(found), _arrays(wanted), strict=True):
            exact = not y.is_floating_point()
            assert_close(x, y.numpy(), 0.0 if exact else 2e-5, message=str(case), min_scale=1.0)
    kinds = (readouts.Rows, readouts.Dense, readouts.SampledKey, readouts.LogProbability)
    assert (accepted == 0) == isinstance(readout, kinds)


def _arrays(observation: qkv.Observation) -> tuple[torch.Tensor, ...]:
    result = observation.readouts[0]
    return result if isinstance(result, tuple) else (result,)
