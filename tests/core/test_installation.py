"""The packages of each extra are those of the distribution, and the versions that it requires are compared rightly."""

import random
from importlib import metadata
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from qkv.core.installation import Package, extras, install_command

NAMES = [name for name in metadata.metadata("qkv").get_all("Provides-Extra") if name not in ("dev", "test", "bench")]


def wanted(extra, seen):
    """The requirements of an extra, as the library `packaging` reads them."""
    found = {}
    for line in metadata.requires("qkv"):
        one = Requirement(line)
        if one.marker is None or not one.marker.evaluate({"extra": extra}) or one.marker.evaluate({"extra": ""}):
            continue
        if one.name == "qkv":
            for each in one.extras - seen:
                for name, limits in wanted(each, seen | one.extras).items():
                    found[name] = found.get(name, SpecifierSet()) & limits
        else:
            found[one.name] = found.get(one.name, SpecifierSet()) & one.specifier
    return found


@pytest.mark.parametrize("name", NAMES)
def test_an_extra_has_the_packages_of_all_extras_that_it_includes(name):
    (extra,) = extras([name])
    assert {package.name: SpecifierSet(package.required) for package in extra.packages} == wanted(name, {name})


def test_versions_are_compared_as_package_installers_compare_them():
    draw = random.Random(0)
    for _ in range(2000):
        version = ".".join(str(draw.randint(0, 12)) for _ in range(draw.randint(1, 3)))
        limits = [
            draw.choice([">=", "<=", "<", ">", "=="])
            + ".".join(str(draw.randint(0, 12)) for _ in range(draw.randint(1, 3)))
            for _ in range(draw.randint(1, 2))
        ]
        required = ",".join(limits)
        expected = SpecifierSet(required).contains(version)
        assert Package("p", required, version).works is expected, (version, required)


def test_a_package_that_is_not_installed_does_not_work():
    assert not Package("p", "", None).works


def test_a_clone_is_installed_from_its_folder_with_the_constraints(monkeypatch):
    editable = '{"url": "file:///clone", "dir_info": {"editable": true}}'
    for origin, command in (
        (editable, 'pip install -c constraints.txt -e ".[ask,look]"'),
        (None, 'pip install "qkv[ask,look]"'),
    ):
        made = SimpleNamespace(read_text=lambda name, origin=origin: origin)
        monkeypatch.setattr(metadata, "distribution", lambda name, made=made: made)
        assert install_command(["ask", "look"]) == command
