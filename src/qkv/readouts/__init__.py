"""Readouts: what can be read from the weights without keeping them. One per file."""

from qkv.readouts.base import Readout
from qkv.readouts.dense import Dense
from qkv.readouts.entropy import Entropy
from qkv.readouts.log_probability import LogProbability
from qkv.readouts.log_sum_exp import LogSumExp
from qkv.readouts.rows import Rows
from qkv.readouts.sampled_key import SampledKey
from qkv.readouts.top_weights import Top, TopWeights

__all__ = [
    "Readout",
    "Dense",
    "Rows",
    "TopWeights",
    "Top",
    "Entropy",
    "LogSumExp",
    "SampledKey",
    "LogProbability",
]
