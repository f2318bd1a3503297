"""The command `qkv doctor`, which reports what is installed, which kernels work, and how to add what is missing."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from qkv.cli.console import new_console
from qkv.cli.shared_options import flag
from qkv.core.installation import Extra, extras, install_command, own_version
from qkv.core.progress import ProgressBar
from qkv.errors import DamagedError

if TYPE_CHECKING:
    from qkv.tuning import KernelCheck


_PURPOSES = {
    "ask": "tables and this command",
    "search": "search, joins, estimators",
    "look": "pages, plots and notebooks",
    "torch": "attention in PyTorch",
    "hf": "models of Hugging Face",
    "jax": "attention in JAX",
    "jax-nn": "modules for Flax and Equinox",
    "keras": "layers for Keras",
    "onnx": "export to ONNX",
    "stores": "stores in clouds and in Lance",
    "serve": "qkv serve and its client",
    "ray": "clusters with Ray",
}


def doctor(
    kernels: Annotated[bool, flag("--kernels/--no-kernels", "Run each kernel of the installed libraries.")] = True,
    as_json: Annotated[bool, flag("--json", "Print the report as JSON.")] = False,
) -> None:
    """Report which packages are installed, which kernels work and how fast they are.

    Each kernel computes a call with 4 heads of 512 tokens of width 64, and its output is compared with the equation
    in float64. The first imports of JAX and TensorFlow take some seconds. The exit code is 2 if a kernel is wrong.

    \b
    Examples:
      qkv doctor
      qkv doctor --no-kernels
      qkv doctor --json
    """
    machine, found = _machine(), extras(_PURPOSES)
    checks: list[KernelCheck] = []
    if kernels:
        checks = _check()
    missing = [extra.name for extra in found if extra.lacking]
    if as_json:
        report: dict[str, object] = {
            "machine": machine,
            "extras": {extra.name: [asdict(package) for package in extra.packages] for extra in found},
            "kernels": [asdict(check) for check in checks],
            "command": install_command(missing) if missing else None,
        }
        print(json.dumps(report, indent=2))
    else:
        _print(machine, found, checks, missing)
    wrong = [f"{check.kernel} with {check.library}: {check.problem}" for check in checks if check.wrong]
    if wrong:
        raise DamagedError(
            f"Every kernel must agree with the equation, got {'; '.join(wrong)}. Install the supported versions of "
            "the packages again, and report it if that does not help."
        )


def _check() -> list[KernelCheck]:
    from qkv.tuning import check_kernels, installed_libraries

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with ProgressBar() as progress:
        return check_kernels(installed_libraries(), progress)


def _machine() -> dict[str, str]:
    from qkv.plan.budget import machine_memory
    from qkv.plan.devices import processor_name
    from qkv.plan.time_model import is_tuned

    return {
        "qkv": own_version(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor_name(),
        "cores": str(os.cpu_count()),
        "memory": f"{machine_memory() / 2**30:.0f} GiB",
        "times of kernels": "measured on this machine"
        if is_tuned()
        else "measured on another one; qkv tune adapts them",
    }


def _print(machine: dict[str, str], found: list[Extra], checks: list[KernelCheck], missing: list[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = new_console(width=100)
    console.print(f"qkv {machine['qkv']}, Python {machine['python']}, {machine['system']}", style="bold")
    console.print(f"{machine['processor']}, {machine['cores']} cores, {machine['memory']}")
    console.print(f"times of kernels: {machine['times of kernels']}\n")
    if not found:
        console.print("qkv is not installed, but runs from its folder: packages are not listed.\n")
    else:
        table = Table("extra", "for", "packages", box=None, pad_edge=False, header_style="bold")
        for extra in found:
            lacking = [
                f"{package.name}{package.required}" + (f" (is {package.installed})" if package.installed else "")
                for package in extra.lacking
            ]
            state = f"missing: {', '.join(lacking)}" if lacking else "installed"
            table.add_row(extra.name, _PURPOSES[extra.name], Text(state), style="yellow" if lacking else None)
        console.print(table)
        console.print()
    if checks:
        table = Table("kernel", "library", "ms", "error", "", box=None, pad_edge=False, header_style="bold")
        for check in checks:
            time = "" if check.milliseconds is None else f"{check.milliseconds:.1f}"
            error = "" if check.error is None else f"{check.error:.0e}"
            state = check.problem or "works"
            style = "red" if check.wrong else None
            table.add_row(check.kernel, check.library, time, error, Text(state), style=style)
        console.print(table)
        console.print()
    if missing:
        console.print("To add what is missing, or the part of it that you need:")
        console.print(f"  {install_command(missing)}", style="bold", soft_wrap=True, markup=False)
    elif found:
        console.print("Every extra is installed.")
