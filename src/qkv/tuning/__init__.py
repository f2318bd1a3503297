"""Measurement of the kernels on this machine, from which the planner estimates times."""

from qkv.tuning.fit import fit_table, median_loss
from qkv.tuning.measure import Measurement, measure_kernels
from qkv.tuning.table import save_table

__all__ = ["Measurement", "fit_table", "measure_kernels", "median_loss", "save_table"]
