"""Which packages `make test-versions` installs, and which settings of XLA the tests use."""

import re
import tomllib
from pathlib import Path

from tests.versions import GPU, LEFT_OUT, ROOT, requirements
from tests.xla_flags import known_flags


def test_every_package_of_an_extra_is_tested_at_its_lowest_version_except_pytorch_and_ray():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    users = {name for extra in extras.keys() - {"test", "bench", "dev"} for name in _names(extras[extra])}
    installed = {name for name in _names(requirements()) if not GPU.match(name)}
    lowest = (installed - set(LEFT_OUT["lowest"])) | (installed - set(LEFT_OUT["numpy1"]))
    assert users - lowest == {"qkv", "torch", "ray"}


def test_settings_that_the_installed_xla_does_not_know_are_left_out(tmp_path: Path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$XLA_FLAGS" in *fusion_emitters*) exit 134;; esac\n')
    python.chmod(0o755)
    assert known_flags(str(python)) == "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def _names(listed: list[str]) -> list[str]:
    return [re.split(r"[^\w-]", entry)[0] for entry in listed]
