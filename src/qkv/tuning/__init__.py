"""Measurement of the kernels on this machine, from which the planner estimates times, and a check of their results."""

from qkv.tuning.check import KernelCheck, check_kernels, installed_libraries
from qkv.tuning.fit import fit_table, median_loss, save_table
from qkv.tuning.measure import Measurement, measure_kernels

__all__ = [
    "KernelCheck",
    "Measurement",
    "check_kernels",
    "fit_table",
    "installed_libraries",
    "measure_kernels",
    "median_loss",
    "save_table",
]
