"""The command `qkv tune`, which measures the kernels on this machine for the planner."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from qkv.cli.shared_options import option
from qkv.core.extras import require_packages
from qkv.core.progress import ProgressBar
from qkv.errors import OptionError


def tune(
    seconds: Annotated[float, option("SECONDS", "Duration of the measurement.")] = 100.0,
    seed: Annotated[int, option("NUMBER", "Seed of the random calls.")] = 0,
    output: Annotated[
        Path | None, option("FILE", "File to write; default: the file in the cache folder that qkv reads.")
    ] = None,
) -> None:
    """Measure the PyTorch kernels on this machine, so that the planner estimates their times from measurements.

    Random calls run on every kernel on one thread, and the coefficients of the time model are fitted to their CPU
    times. Close other programs that use the processor first. Without this command, qkv uses coefficients that were
    measured on another processor.

    \b
    Examples:
      qkv tune
      qkv tune --seconds 30
      qkv tune --output times.json
    """
    if seconds <= 0:
        raise OptionError(f"--seconds must be positive, got {seconds:g}. For example, write --seconds 100.")
    require_packages("qkv tune needs", "search,torch", "torch", "scipy")
    from qkv.plan.devices import processor_name
    from qkv.plan.time_model import load_table
    from qkv.tuning import fit_table, measure_kernels, median_loss, save_table

    with ProgressBar() as progress:
        measurements = measure_kernels(seconds, seed, progress)
    table = fit_table(measurements)
    print(f"{len(measurements)} calls measured on {processor_name()}")
    for name, coefficients in (("before", load_table()), ("now", table)):
        loss = median_loss(measurements, coefficients)
        if loss:
            print(
                f"{name:8s}the chosen kernel takes {loss['median']:.2f} × the time of the fastest in the median, "
                f"{loss['p95']:.2f} × at the 95th percentile, {loss['max']:.2f} × at most"
            )
    print(f"{len(table)} rows of coefficients written to {save_table(table, output)}")
