"""Readouts, which compute quantities from the weights of a call, such as their entropy or the largest weights."""

from qkv.readouts.base import Readout, Reduction
from qkv.readouts.column_sum import ColumnSum
from qkv.readouts.dense import Dense
from qkv.readouts.entropy import Entropy
from qkv.readouts.heads import Heads
from qkv.readouts.log_probability import LogProbability
from qkv.readouts.log_sum_exp import LogSumExp
from qkv.readouts.mean_distance import MeanDistance
from qkv.readouts.pooled_map import PooledMap
from qkv.readouts.rows import Rows
from qkv.readouts.sampled_key import SampledKey
from qkv.readouts.top_weights import Top, TopWeights

__all__ = [
    "Readout",
    "Reduction",
    "Dense",
    "Rows",
    "TopWeights",
    "Top",
    "ColumnSum",
    "PooledMap",
    "Entropy",
    "MeanDistance",
    "LogSumExp",
    "SampledKey",
    "LogProbability",
    "Heads",
]
