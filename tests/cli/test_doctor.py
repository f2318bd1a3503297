"""`qkv doctor` reports packages that are missing or too old, and kernels that are wrong."""

import json
from importlib import metadata

import numpy as np
import pytest

from qkv.tuning import KernelCheck, check, check_kernels

doctor = pytest.importorskip("qkv.cli.doctor")


def test_missing_and_old_packages_are_named_with_the_command_that_adds_them(monkeypatch, qkv):
    real = metadata.version

    def version(name):
        if name == "bm25s":
            raise metadata.PackageNotFoundError(name)
        return "0.1" if name == "matplotlib" else real(name)

    monkeypatch.setattr(metadata, "version", version)
    code, shown, _ = qkv("doctor", "--no-kernels")
    assert code == 0
    assert "missing: bm25s>=0.2" in shown
    assert "matplotlib>=3.8 (is 0.1)" in shown
    assert "[search,look" in shown.splitlines()[-1]
    report = json.loads(qkv("doctor", "--no-kernels", "--json")[1])
    assert {"name": "matplotlib", "required": ">=3.8", "installed": "0.1"} in report["extras"]["look"]
    assert "search" in report["command"]


def test_every_extra_for_users_has_a_purpose():
    names = set(metadata.metadata("qkv").get_all("Provides-Extra"))
    assert set(doctor._PURPOSES) == names - {"all", "bench", "dev", "test"}


def test_the_kernels_for_numpy_agree_with_the_equation():
    found = check_kernels(["numpy"])
    assert {one.kernel for one in found} == {"linear", "dense", "numpy_blocks"}
    assert all(one.problem == "" and one.error < 1e-5 and one.milliseconds > 0 for one in found)


def test_a_kernel_that_is_wrong_or_fails_is_reported_with_exit_code_2(monkeypatch, qkv):
    right = check.attend

    def attend(*arrays, kernel, **options):
        if kernel == "linear":
            raise RuntimeError("no device")
        return right(*arrays, kernel=kernel, **options) * np.float32(1 + 1e-3 * (kernel == "dense"))

    monkeypatch.setattr(check, "attend", attend)
    problems = {one.kernel: one.problem for one in check_kernels(["numpy"])}
    assert problems == {
        "linear": "it failed: RuntimeError: no device",
        "dense": "its output differs from the equation by 1.0e-03",
        "numpy_blocks": "",
    }
    monkeypatch.setattr("qkv.tuning.installed_libraries", lambda: ["numpy"])
    code, shown, error = qkv("doctor")
    assert code == 2
    assert "numpy_blocks" in shown
    assert "dense with numpy: its output differs" in error


def test_a_kernel_for_gpus_is_not_run_without_one(monkeypatch):
    pytest.importorskip("torch")
    if __import__("torch").cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(check, "KERNELS", [kernel for kernel in check.KERNELS if kernel.name == "triton"])
    assert check_kernels(["torch"]) == [KernelCheck("triton", "torch", None, None, "not run: it runs on GPUs")]
