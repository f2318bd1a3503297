"""Settings of random calls, which are too short for some paths of long ones."""

from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True)
def _key_ranges_in_short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("torch") is not None:
        monkeypatch.setattr("qkv.kernels.fused.pair_bias._FEWEST_PAIRS", 1)
