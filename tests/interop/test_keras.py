"""Keras layers, each backend in a separate process: the tests of Keras, and files exchanged between backends."""

import atexit
import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("keras") is None:
    pytest.skip("Keras is not installed", allow_module_level=True)

ROOT = Path(__file__).parents[2]
BACKENDS = [name for name in ("tensorflow", "jax", "torch") if importlib.util.find_spec(name)]


def run(backend: str, *arguments: str) -> Any:
    """The JSON that a module of these tests prints on a backend."""
    if backend == "torch":
        return run_forked(*arguments)
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, env=environment(backend)
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@cache
def torch_process() -> subprocess.Popen[str]:
    """A process that has imported Keras with PyTorch, from which others are forked; the import takes seconds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.interop.keras_forks"],
        cwd=ROOT,
        env=environment("torch"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    atexit.register(process.__exit__, None, None, None)
    return process


def run_forked(*arguments: str) -> Any:
    """The JSON that a module of these tests prints with PyTorch, in a forked process."""
    process = torch_process()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(arguments) + "\n")
    process.stdin.flush()
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("exit code"):
            break
    assert lines[-1:] == ["exit code 0\n"], "".join(lines)[-4000:]
    return json.loads(lines[-2])


def environment(backend: str) -> dict[str, str]:
    """The variables of a process with a backend."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONPATH": paths,
    }


def keras_suite(backend: str, *chosen: str) -> Any:
    """The result of Keras' own tests on our layers."""
    package = importlib.util.find_spec("keras")
    assert package is not None
    assert package.origin is not None
    if not (Path(package.origin).parent / "src" / "layers" / "attention" / "attention_test.py").exists():
        pytest.skip("this version of Keras comes without its tests")
    found = run(backend, "tests.interop.keras_suite", *chosen)
    assert found["backend"] == backend
    assert found["failed"] == []
    # Keras skips one of its tests on TensorFlow, which has no flash attention.
    assert all("Flash attention" in reason for reason in found["skipped"])
    return found


def test_some_of_keras_own_tests_pass_on_our_layers() -> None:
    if "torch" not in BACKENDS:
        pytest.skip("the torch backend, which takes the least time, is not installed")
    assert keras_suite("torch", "correctness", "with_mask", "test_masking_causal")["run"] >= 5


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_all_of_keras_own_tests_pass_on_our_layers(backend: str) -> None:
    found = keras_suite(backend)
    assert found["run"] >= 80
    assert len(found["left"]) == 1


@cache
def saved(backend: str, folder: Path) -> tuple[Path, Any]:
    """A trained model of a backend, and what it predicts."""
    path = folder / f"{backend}.keras"
    return path, run(backend, "tests.interop.keras_model", "save", str(path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the files of all tests of this module."""
    return tmp_path_factory.mktemp("models")


@pytest.mark.long
@pytest.mark.parametrize(("one", "other"), [(one, other) for one in BACKENDS for other in BACKENDS if one != other])
def test_model_saved_on_one_backend_predicts_the_same_on_another(one: str, other: str, folder: Path) -> None:
    path, wanted = saved(one, folder)
    got = run(other, "tests.interop.keras_model", "load", str(path))
    assert np.allclose(got, wanted, rtol=0, atol=1e-5)


@pytest.mark.long
def test_tensorflow_trains_and_predicts_sequences_whose_length_its_graph_does_not_know(folder: Path) -> None:
    if "tensorflow" not in BACKENDS:
        pytest.skip("TensorFlow is not installed")
    path = folder / "unknown.keras"
    wanted = run("tensorflow", "tests.interop.keras_model", "save", str(path), "unknown")
    for backend in BACKENDS:
        got = run(backend, "tests.interop.keras_model", "load", str(path))
        assert np.allclose(got, wanted, rtol=0, atol=1e-5)


def test_our_layers_do_what_their_examples_show_and_differ_from_keras_where_we_say_so() -> None:
    if "torch" not in BACKENDS:
        pytest.skip("the torch backend, which takes the least time, is not installed")
    found = run("torch", "tests.interop.keras_differences")
    assert found["examples"] == [[0, 8], [0, 4]]  # failed, run: other tests do not import Keras
    assert found["row without keys"] == [0.0, 0.0]
    assert found["keras, row without keys"] != [0.0, 0.0]
    assert found["scores with dropout"] == found["scores without dropout"]
    assert found["outputs with dropout"] != found["outputs without dropout"]
    assert found["nan in a masked value"] is False
    assert found["longer than its pairs fit"] == [1, 3000, 2]
    assert max(found["output and weights of heads"]) < 1e-6
    assert found["config"] == {"normalizer": "sparsemax", "kernel": "dense", "memory": "1 GiB"}
    assert "softmax" in found["unknown normalizer"]


@pytest.mark.parametrize(
    ("backend", "count"),
    [pytest.param(name, 60, marks=() if name == "torch" else pytest.mark.long) for name in BACKENDS],
)
def test_causal_masks_windows_and_masks_of_tokens_count_along_the_axes_of_attention(backend: str, count: int) -> None:
    assert run(backend, "tests.interop.keras_axes", str(count)) == {"calls": count, "different": []}
