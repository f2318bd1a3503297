"""Public names."""

import importlib
import pkgutil

import pytest

import qkv

PACKAGES = ["qkv"] + [
    f"qkv.{module.name}" for module in pkgutil.iter_modules(qkv.__path__) if module.ispkg and module.name != "testing"
]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_in_all_exists(name: str) -> None:
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        assert hasattr(module, public), f"{name}.{public}"


def test_every_public_name_has_one_home() -> None:
    """Check the rule of decision 0020: the packages that export an object are nested, and the outermost is its home."""
    exporters: dict[int, list[str]] = {}
    for found in pkgutil.walk_packages(qkv.__path__, "qkv."):
        package = importlib.import_module(found.name) if found.ispkg else None
        for public in getattr(package, "__all__", ()):
            exporters.setdefault(id(getattr(package, public)), []).append(f"{found.name}.{public}")
    for names in exporters.values():
        home = min(names, key=lambda name: name.count(".")).rsplit(".", 1)[0]
        assert all(name.startswith(f"{home}.") for name in names), f"{names} are one object with several homes"


def test_shortcuts_of_the_top_level_are_exported_by_the_package_or_defined_in_the_module_they_come_from() -> None:
    for name, home in qkv._HOMES.items():
        module = importlib.import_module(home)
        exported = getattr(module, "__all__", ())
        assert name in exported or getattr(module, name).__module__ == home, f"{home}.{name}"


@pytest.mark.parametrize("name", ["qkv.scores", "qkv.normalizers", "qkv.masks", "qkv.readouts"])
def test_every_part_is_exported(name: str) -> None:
    from qkv.core.parts import Part

    package = importlib.import_module(name)
    shared = {"WrapperScore", "LinearNormalizer", "And", "Or", "Not", "BandMask", "GaussianOfDifferences"}
    for found in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{name}.{found.name}")
        for public in module.__all__:
            thing = getattr(module, public)
            if isinstance(thing, type) and issubclass(thing, Part) and public not in shared:
                assert public in package.__all__, f"{name}.{found.name}.{public} is not exported"
