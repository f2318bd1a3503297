"""The attention tests that tokamax ships, run with an attention function of qkv; see `tokamax_cases.py`.

Of 85 in version 0.0.12, tokamax skips 12 on every machine (8 of vmap, 2 of invalid shapes, 2 of benchmarks). The 5 of
quantized arrays are left out, because qkv takes no such arrays. In that of dropout, which passes a table of what is
dropped, tokamax expects an error. The other 67 compare outputs and gradients.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokamax")
pytest.importorskip("chex")

ROOT = Path(__file__).parent.parent.parent


def results(kernel: str) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["src", *sys.path]), "QKV_KERNEL": kernel}
    done = subprocess.run(
        [sys.executable, "-m", "tests.peers.tokamax_cases"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["", "jax_loops"])
def test_the_attention_tests_of_tokamax_pass(kernel: str) -> None:
    found = results(kernel)
    assert not found["wrong"]
    assert (found["run"], len(found["skipped"])) == (80, 12)
