"""Which optional packages of `qkv` are installed, and the command that installs the others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata

from qkv.core.extras import CLONE_COMMAND, INDEX_COMMAND


@dataclass(frozen=True)
class Package:
    """A required package.

    Attributes:
        name: its name in the package index.
        required: the versions that `qkv` supports, such as ">=17".
        installed: the installed version; None if it is not installed.
    """

    name: str
    required: str
    installed: str | None

    @property
    def works(self) -> bool:
        """Whether a supported version is installed."""
        from packaging.specifiers import SpecifierSet

        return self.installed is not None and SpecifierSet(self.required).contains(self.installed, prereleases=True)


@dataclass(frozen=True)
class Extra:
    """An extra of `qkv`, with its packages and those of the extras that it includes.

    Attributes:
        name: its name, such as "ask".
        packages: the packages that it requires.
    """

    name: str
    packages: tuple[Package, ...]

    @property
    def lacking(self) -> tuple[Package, ...]:
        """The packages that are not installed, or in versions that are not supported."""
        return tuple(package for package in self.packages if not package.works)


def extras(names: Iterable[str]) -> list[Extra]:
    """Return extras of the installed distribution of `qkv`, each with all packages that it requires.

    Args:
        names: the names of the extras; unknown ones have no packages.

    Returns:
        One `Extra` for each name, or an empty list if `qkv` runs from a folder without being installed.

    Example:
        >>> [extra.name for extra in extras(["ask"])] in (["ask"], [])
        True
    """
    try:
        lines = metadata.requires("qkv") or []
    except metadata.PackageNotFoundError:
        return []
    return [Extra(name, _packages(lines, name)) for name in names]


def own_version() -> str:
    """Return the version of `qkv`, or that it runs from its folder without being installed."""
    return _installed("qkv") or "(not installed; running from source)"


def install_command(names: Iterable[str]) -> str:
    """Return the command that installs extras: from the clone if `qkv` is installed from one, otherwise from the index.

    Example:
        >>> install_command(["ask", "look"]).endswith('[ask,look]"')
        True
    """
    return (CLONE_COMMAND if _from_clone() else INDEX_COMMAND).format(",".join(names))


def _packages(lines: Iterable[str], extra: str) -> tuple[Package, ...]:
    """Return the packages of an extra and of the extras of `qkv` that it includes, each once with all its limits."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    requirements = [Requirement(line) for line in lines]
    limits: dict[str, SpecifierSet] = {}
    waiting, read = [extra], set()
    while waiting:
        name = waiting.pop(0)
        if name in read:
            continue
        read.add(name)
        for one in requirements:
            if one.marker is None or not one.marker.evaluate({"extra": name}):
                continue
            if one.name == "qkv":
                waiting += sorted(one.extras)
            else:
                limits[one.name] = limits.get(one.name, SpecifierSet()) & one.specifier
    return tuple(Package(name, str(found), _installed(name)) for name, found in limits.items())


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _from_clone() -> bool:
    try:
        content = metadata.distribution("qkv").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return True
    origin = json.loads(content) if content else {}
    return bool(origin.get("dir_info", {}).get("editable"))
