"""Every verb, score, normalizer, mask and readout runs on NumPy in a process that cannot import PyTorch."""

import subprocess
import sys

SCRIPT = """
import sys
from importlib.machinery import PathFinder

ABSENT = {"torch", "jax", "tensorflow", "keras"}

class WithoutThem:
    # Finds what is installed, but for these.
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.split(".")[0] in ABSENT else PathFinder.find_spec(name, path, target)

sys.meta_path = [WithoutThem if finder is PathFinder else finder for finder in sys.meta_path]
try:
    import torch
    raise AssertionError("torch was found")
except ImportError:
    pass

import numpy as np

import qkv
from qkv import masks, normalizers, readouts
from qkv.errors import RefusedError
from qkv.kernels import KERNELS
from qkv.testing.cases import MASKS, NORMALIZERS, SCORES, Case
from qkv.testing.execution import run_eagerly
from qkv.testing.libraries import Setting
from qkv.core.equation import attend_dense

r = np.random.default_rng(0)
batch, q, k, width = 2, 40, 700, 8
query, key, value = (r.normal(size=(batch, n, w)) for n, w in ((q, width), (k, width), (k, 3)))
logits = query @ key.swapaxes(-1, -2) / np.sqrt(width)
rows, cols = np.arange(q)[:, None], np.arange(k)
allowed = cols <= rows + (k - q)
logits = np.where(allowed, logits, -np.inf)
e = np.exp(logits - logits.max(-1, keepdims=True))
w = e / e.sum(-1, keepdims=True)
output = w @ value
top = np.argsort(-w, axis=-1, kind="stable")[..., :5]
cells = lambda x, how: np.stack([np.stack([how(b, (-2, -1)) for b in np.array_split(a, 4, -1)], -1)
                                 for a in np.array_split(x, 4, -2)], -2)
with np.errstate(all="ignore"):
    surprise = np.where(w > 0, -w * np.log(w), 0.0).sum(-1)

READOUTS = {
    "Dense": (readouts.Dense(), w),
    "Rows": (readouts.Rows((3, -1)), w[:, [3, -1]]),
    "TopWeights": (readouts.TopWeights(5), (np.take_along_axis(w, top, -1), top)),
    "ColumnSum": (readouts.ColumnSum(), w.sum(-2)),
    "PooledMap": (readouts.PooledMap(4), cells(w, np.mean)),
    "Entropy": (readouts.Entropy(), surprise),
    "MeanDistance": (readouts.MeanDistance(), (w * abs(cols - rows - (k - q))).sum(-1)),
    "LogSumExp": (readouts.LogSumExp(), np.log(e.sum(-1)) + logits.max(-1)),
    "Heads": (readouts.Heads(readouts.Entropy(), (1,)), surprise[1:]),
}
parts = {"mask": masks.Causal("end"), "positions": qkv.Positions(align="end")}

def close(got, wanted, said):
    got = tuple(got) if isinstance(got, tuple) else (got,)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for one, other in zip(got, wanted):
        assert isinstance(one, np.ndarray), said
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12, err_msg=said)

kernels = []
for kernel in (None, *sorted(kernel.name for kernel in KERNELS)):
    try:
        plan = qkv.explain(query, key, value, kernel=kernel, **parts)
    except RefusedError:
        continue
    kernels.append(plan.kernel.name)
    close(qkv.attend(query, key, value, kernel=kernel, **parts), output, f"attend {kernel}")
    shapes = (query.shape, key.shape, value.shape)
    prepared = qkv.prepare(qkv.Spec(**parts), shapes, kernel=kernel, dtype="float64")
    close(prepared(query, key, value).output, output, f"prepare {kernel}")
    for name, (readout, wanted) in READOUTS.items():
        try:
            qkv.explain(query, key, value, readouts=[readout], kernel=kernel, **parts)
        except RefusedError:
            assert kernel not in (None, "dense"), name
            continue
        seen = qkv.observe(query, key, value, readouts=[readout], kernel=kernel, **parts)
        close(seen.output, output, f"observe {name} {kernel}")
        close(seen.readouts[0], wanted, f"{name} {kernel}")

drawn = qkv.observe(query, key, value, normalizer=normalizers.Sample(), seed=1, **parts,
                    readouts=[readouts.SampledKey(), readouts.LogProbability()])
chosen, probability = drawn.readouts
close(drawn.output, np.take_along_axis(value, chosen[..., None], -2), "SampledKey")
close(probability, np.log(np.take_along_axis(w, chosen[..., None], -1))[..., 0], "LogProbability")
READOUTS |= {"SampledKey": None, "LogProbability": None}
assert set(READOUTS) == set(readouts.__all__) - {"Readout", "Reduction", "Top"}, "a readout is missing here"
assert len(set(kernels)) > 1, kernels

for n, score in enumerate(SCORES):
    names = [name for name in NORMALIZERS if Case(score, name).sensible]
    for normalizer in (names if score in ("dot", "exact") else [names[n % len(names)]]):
        mask = list(MASKS)[n % len(MASKS)]
        call = Case(score, normalizer, mask).call()
        got = run_eagerly(call, Setting("numpy", "float64"), None).output
        wanted = attend_dense(call.query, call.key, call.value, score=call.score, normalizer=call.normalizer,
                              mask=call.mask, positions=call.positions, seed=call.seed).output
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12, err_msg=f"{score} {normalizer} {mask}")
assert not ABSENT & set(sys.modules)
print("all", sorted(set(kernels)))
"""


def test_every_verb_part_and_readout_runs_on_numpy_without_torch() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("all")
