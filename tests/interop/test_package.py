"""Names of qkv.interop whose package is missing. `tests/test_loading.py` says what it imports."""

import pytest

from qkv.core import extras
from qkv.errors import MissingPackageError
from qkv.interop import huggingface


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "_installed", lambda package: package != missing)
    with pytest.raises(MissingPackageError, match=rf'{missing}, which is not installed.*"qkv\[hf\]"'):
        huggingface.__getattr__("register")
