"""Importing qkv.interop imports no other library."""

import pytest

from qkv.core import extras
from qkv.errors import MissingPackageError
from qkv.interop import huggingface
from tests.processes import run_python


def test_importing_interop_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, qkv.interop, qkv.interop.huggingface;"
        "print([name for name in ('torch', 'transformers', 'jax', 'keras') if name in sys.modules])"
    )
    assert run_python("-c", code).strip() == "[]"


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "_installed", lambda package: package != missing)
    with pytest.raises(MissingPackageError, match=rf'{missing}, which is not installed.*"qkv\[hf\]"'):
        huggingface.__getattr__("register")
