"""Print the settings of XLA that shorten compilation in tests, those that the installed JAX knows.

XLA ends the process at the first call if `XLA_FLAGS` has a setting that it does not know, and settings come and go with
versions of JAX. `make test` and `tests/versions.py` therefore try them in a process first:

    XLA_FLAGS="$(python -m tests.xla_flags)" python -m pytest
"""

import os
import subprocess
import sys

# XLA compiles in a quarter of the time without optimizing and with its simpler code generator.
_FLAGS = (
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
)


def known_flags(python: str = sys.executable) -> str:
    """Return the settings, with spaces between, that the JAX of a Python knows: none if JAX is not installed.

    Args:
        python: the Python whose JAX is asked.
    """
    if _starts(python, " ".join(_FLAGS)):
        return " ".join(_FLAGS)
    return " ".join(flag for flag in _FLAGS if _starts(python, flag))


def _starts(python: str, flags: str) -> bool:
    settings = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [python, "-c", "import jax; jax.devices()"]
    return subprocess.run(command, env=settings, check=False, capture_output=True).returncode == 0


if __name__ == "__main__":
    print(known_flags())
