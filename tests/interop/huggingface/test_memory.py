"""Recording needs little more memory than running, and allocates no array of q · k elements."""

import json
from pathlib import Path
from typing import Any

import pytest

from qkv.readouts import PooledMap, TopWeights
from tests.processes import run_python

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from qkv.interop import record  # noqa: E402

SCRIPT = """
import contextlib, gc, json, os, sys
from pathlib import Path
import torch, transformers
from qkv.interop import record
from qkv.readouts import PooledMap, TopWeights

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024

def run(model, length, recorded):
    tokens = torch.randint(0, 1000, (1, length))
    seen = record(model, [TopWeights(8), PooledMap(256)]) if recorded else contextlib.nullcontext()
    with torch.no_grad(), seen:
        return model(tokens).last_hidden_state, seen

def measure(length, layers, heads, recorded):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=1000, hidden_size=64 * heads, intermediate_size=256 * heads, num_hidden_layers=layers,
        num_attention_heads=heads, max_position_embeddings=length,
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    run(model, 64, recorded)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    output, seen = run(model, length, recorded)
    peak = status("VmHWM")
    shapes = [
        [list(one.readouts[0].weights.shape), list(one.readouts[1].shape)]
        for calls in (seen.layers.values() if recorded else ()) for one in calls
    ]
    print(json.dumps({"peak": peak, "growth": peak - before, "shapes": shapes}), flush=True)

transformers.BertModel  # imported late
for recorded in (False, True):
    if os.fork() == 0:
        measure(*json.loads(sys.argv[1]), recorded)
        os._exit(0)
    os.wait()
"""


def measure(*asked: int) -> list[dict[str, int]]:
    """The memory of running and of recording, each in a process forked after the imports."""
    printed = run_python("-c", SCRIPT, json.dumps(asked), HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    return [json.loads(line) for line in printed.splitlines()[-2:]]


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="there is no /proc to read the peak from")
def test_recording_stays_under_one_and_a_half_times_the_memory_of_running() -> None:
    length, layers, heads = 8192, 2, 4  # all weights: 268 MB a head and layer
    plain, recorded = measure(length, layers, heads)
    assert recorded["shapes"] == [[[1, heads, length, 8], [1, heads, 256, 256]]] * layers
    assert recorded["peak"] < 1.5 * plain["peak"], (plain, recorded)
    # What is kept, 12 bytes for each of 8 weights a row and a map a head, and the tiles at work: some tens
    # of MiB, where one matrix of all weights is 256 MiB.
    kept = layers * heads * (length * 8 * 12 + 256 * 256 * 4)
    assert recorded["growth"] < plain["growth"] + kept + 64 * 2**20, (plain, recorded)


class Largest(TorchDispatchMode):
    """Note the elements of the largest array that an operator returns."""

    elements = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.untyped_storage().nbytes() // x.itemsize)
        return result


def test_recording_creates_no_array_of_all_pairs() -> None:
    length, tiny = 8192, dict.fromkeys(("hidden_size", "intermediate_size"), 8)
    config = transformers.BertConfig(
        vocab_size=9, num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=length, **tiny
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad(), Largest() as made, record(model, [TopWeights(8), PooledMap(256)]) as seen:
        model(torch.zeros(1, length, dtype=torch.int64))
    assert [
        list(x.shape) for (call,) in seen.layers.values() for x in (call.readouts[0].weights, call.readouts[1])
    ] == [[1, 1, length, 8], [1, 1, 256, 256]]
    assert made.elements < length**2 / 4
