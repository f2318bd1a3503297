"""Which optional packages of `qkv` are installed, and the command that installs the others."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata

__all__ = ["Extra", "Package", "extras", "install_command", "own_version"]

_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[(?P<extras>[^\]]*)\])?\s*(?P<versions>[^;]*)")
_EXTRA = re.compile(r"extra\s*==\s*['\"](?P<name>[^'\"]+)['\"]")
_PLATFORM = re.compile(r"sys_platform\s*==\s*['\"](?P<name>[^'\"]+)['\"]")


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
        return self.installed is not None and all(
            _satisfies(self.installed, limit) for limit in self.required.split(",") if limit.strip()
        )


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
    target = f"[{','.join(names)}]"
    if _from_clone():
        return f'pip install -c constraints.txt -e ".{target}"'
    return f'pip install "qkv{target}"'


def _packages(lines: list[str], extra: str) -> tuple[Package, ...]:
    """Return the packages of an extra and of the extras of `qkv` that it includes, each once with all its limits."""
    limits: dict[str, list[str]] = {}
    waiting, read = [extra], set()
    while waiting:
        name = waiting.pop(0)
        if name in read:
            continue
        read.add(name)
        for line in lines:
            wanted, platform = _EXTRA.search(line), _PLATFORM.search(line)
            if wanted is None or wanted["name"] != name or (platform and platform["name"] != sys.platform):
                continue
            found = _REQUIREMENT.match(line)
            assert found is not None, line
            if found["name"] == "qkv":
                waiting += [other.strip() for other in (found["extras"] or "").split(",")]
            else:
                limits.setdefault(found["name"], []).append(found["versions"].strip(" ()"))
    return tuple(Package(name, ",".join(dict.fromkeys(found)), _installed(name)) for name, found in limits.items())


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


def _satisfies(version: str, limit: str) -> bool:
    """Whether a version satisfies one limit such as ">=3.13"; only the numbers of the release are compared."""
    found = re.match(r"\s*(>=|<=|==|!=|<|>|~=)\s*([0-9.]+)", limit)
    if found is None:
        return True
    mine, bound = _release(version), _release(found[2])
    length = max(len(mine), len(bound))
    a, b = (each + (0,) * (length - len(each)) for each in (mine, bound))
    return {
        ">=": a >= b,
        "~=": a >= b,
        "<=": a <= b,
        "==": a == b,
        "!=": a != b,
        "<": a < b,
        ">": a > b,
    }[found[1]]


def _release(version: str) -> tuple[int, ...]:
    numbers = re.match(r"[0-9]+(?:\.[0-9]+)*", version.strip())
    return tuple(int(part) for part in numbers[0].split(".")) if numbers else ()
