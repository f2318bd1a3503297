"""Settings of all tests: assertion rewriting for the contract suites, and profiles of hypothesis."""

import asyncio
import os
import signal
import tempfile
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("qkv.testing")

# Tests neither read nor write the cache folder of the user, and neither do processes that they start.
_CACHE = tempfile.TemporaryDirectory(prefix="qkv-cache-")
os.environ["QKV_CACHE"] = _CACHE.name

# A shell ignores Ctrl-C in background jobs, and processes that the tests start would inherit that and never stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test ends with a loss of power, and waiting for the disk takes a twentieth of the time.
os.fsync = lambda handle: None

settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=7)
settings.register_profile(
    "long",
    deadline=None,
    database=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow],  # two hundred large examples take long
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def _servers_that_stop_at_once():
    """Shorten the naps of servers in threads: they look ten times a second whether to stop, and then nap once more."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("uvicorn") is not None:
            naps = SimpleNamespace(**vars(asyncio) | {"sleep": lambda seconds: asyncio.sleep(seconds / 10)})
            patch.setattr("uvicorn.server.asyncio", naps)
        yield
