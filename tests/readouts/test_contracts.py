"""Every readout keeps the contract; its formula is written out for one row."""

from typing import Any

import numpy as np
import pytest

from qkv import readouts
from qkv.testing.readouts import ReadoutContract


class TestDense(ReadoutContract):
    readout = readouts.Dense()

    def formula(self, weights: Any, logits: Any) -> Any:
        return weights


class TestRows(ReadoutContract):
    readout = readouts.Rows((4, -1, 0, 4))
    needs_queries = True


class TestTopWeights(ReadoutContract):
    readout = readouts.TopWeights(3)


class TestMoreTopWeightsThanKeys(ReadoutContract):
    readout = readouts.TopWeights(20)


class TestEntropy(ReadoutContract):
    readout = readouts.Entropy()

    def formula(self, weights: Any, logits: Any) -> Any:
        return -sum(w * np.log(w) for w in weights if w)


class TestLogSumExp(ReadoutContract):
    readout = readouts.LogSumExp()

    def formula(self, weights: Any, logits: Any) -> Any:
        with np.errstate(divide="ignore"):
            return np.log(np.sum(np.exp(logits)))


class TestSampledKey(ReadoutContract):
    readout = readouts.SampledKey()
    suits = "sample"
    differentiable = False


class TestLogProbability(ReadoutContract):
    readout = readouts.LogProbability()
    suits = "sample"


class TestPooledMap(ReadoutContract):
    readout = readouts.PooledMap(4)


class TestMaximaOfPooledMap(ReadoutContract):
    readout = readouts.PooledMap(3, "max")


class TestPooledMapWithMoreCellsThanPairs(ReadoutContract):
    readout = readouts.PooledMap(100)

    def formula(self, weights: Any, logits: Any) -> Any:
        return weights


class TestColumnSum(ReadoutContract):
    readout = readouts.ColumnSum()


class TestMeanDistance(ReadoutContract):
    readout = readouts.MeanDistance()


class TestHeads(ReadoutContract):
    readout = readouts.Heads(readouts.TopWeights(3), (1, 0, -1))


class TestMapsOfHeads(ReadoutContract):
    readout = readouts.Heads(readouts.PooledMap(4, "max"), (1,))


class TestTotalsOfHeads(ReadoutContract):
    readout = readouts.Heads(readouts.LogSumExp(), (1, 0))


@pytest.mark.parametrize("name", [name for name in readouts.__all__ if name not in ("Readout", "Reduction", "Top")])
def test_readout_has_a_contract(name: str) -> None:
    kept = {type(contract.readout) for contract in ReadoutContract.__subclasses__()}
    assert getattr(readouts, name) in kept
