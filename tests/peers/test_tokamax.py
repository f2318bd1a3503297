"""The attention tests that tokamax ships, run with an attention function of qkv; see `tokamax_cases.py`.

Of 85 in version 0.0.12, tokamax skips 12 on every machine (8 of vmap, 2 of invalid shapes, 2 of benchmarks). The 5 of
quantized arrays are left out, because qkv takes no such arrays. In that of dropout, which passes a table of what is
dropped, tokamax expects an error. The other 67 compare outputs and gradients.
"""

import json
from typing import Any

import pytest

from tests.processes import run_python

pytest.importorskip("tokamax")
pytest.importorskip("chex")


def results(kernel: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_python("-m", "tests.peers.tokamax_cases", QKV_KERNEL=kernel))
    return found


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["", "jax_loops"])
def test_the_attention_tests_of_tokamax_pass(kernel: str) -> None:
    found = results(kernel)
    assert not found["wrong"]
    assert (found["run"], len(found["skipped"])) == (80, 12)
