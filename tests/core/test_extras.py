"""Optional packages: what their absence says, and when they are imported."""

import sys

import pytest

from qkv.core import extras
from qkv.core.extras import lazy_attributes, missing_package, require_packages
from qkv.errors import MissingPackageError


@pytest.mark.parametrize(("packages", "verb"), [("rapidfuzz", "is"), ("pyarrow and duckdb", "are")])
def test_the_error_names_the_packages_the_extra_and_both_ways_to_install_it(packages, verb):
    error = missing_package("text scores need", packages, "ask")
    assert isinstance(error, MissingPackageError)
    assert str(error) == (
        f'text scores need {packages}, which {verb} not installed. Run: pip install "qkv[ask]" '
        '(in a clone: pip install -c constraints.txt -e ".[ask]").'
    )


def test_only_what_is_missing_is_named_by_the_name_to_install(monkeypatch):
    monkeypatch.setattr(extras, "_installed", lambda package: package in ("numpy", "scipy"))
    require_packages("tables need", "ask", "numpy", "scipy")
    with pytest.raises(MissingPackageError, match=r"^tables need duckdb and scikit-learn, which are not .*qkv\[ask\]"):
        require_packages("tables need", "ask", "numpy", "duckdb", "sklearn")
    with pytest.raises(MissingPackageError, match=r"^tables need ir-measures, which is not"):
        require_packages("tables need", "ask", "ir_measures")


def test_packages_are_looked_for_without_importing_them():
    sys.modules.pop("colorsys", None)
    require_packages("nothing needs", "ask", "colorsys")
    assert "colorsys" not in sys.modules
    with pytest.raises(MissingPackageError, match="no_such_package_at_all"):
        require_packages("nothing needs", "ask", "no_such_package_at_all")


def test_lazy_attributes_import_the_module_of_a_name_and_check_the_requirement_first():
    get = lazy_attributes("qkv.core", {"missing_package": "extras", "hidden": "extras"})
    assert get("missing_package") is missing_package
    with pytest.raises(AttributeError, match=r"module 'qkv\.core' has no attribute 'absent'"):
        get("absent")
    needing = lazy_attributes("qkv.core", {"missing_package": "extras"}, "these need", "ask", "no_such_package_at_all")
    with pytest.raises(AttributeError, match="absent"):
        needing("absent")
    with pytest.raises(MissingPackageError, match=r"^these need no_such_package_at_all, .*qkv\[ask\]"):
        needing("missing_package")
