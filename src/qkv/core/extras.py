"""Functions that import modules on first use and report optional packages that are not installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from qkv.errors import MissingPackageError

INDEX_COMMAND = 'pip install "qkv[{}]"'
CLONE_COMMAND = 'pip install -c constraints.txt -e ".[{}]"'
"""Commands that install an extra, or several that are joined by commas, from the package index and from a clone."""

_DISTRIBUTIONS = {"ir_measures": "ir-measures", "sklearn": "scikit-learn"}
"""Package index names of packages that are imported under a different name."""


def missing_package(purpose: str, packages: str, extra: str) -> MissingPackageError:
    """Return a `MissingPackageError` whose message states how to install the missing packages.

    Args:
        purpose: start of the error message, a subject and a verb such as "text scores need".
        packages: the package index names of the missing packages, joined by " and ".
        extra: the extra of `qkv` that installs them.

    Example:
        >>> print(missing_package("text scores need", "rapidfuzz", "ask"))
        text scores need rapidfuzz, which is not installed. Run: pip install "qkv[ask]"
        (in a clone: pip install -c constraints.txt -e ".[ask]").
    """
    verb = "are" if " and " in packages else "is"
    return MissingPackageError(
        f"{purpose} {packages}, which {verb} not installed. Run: {INDEX_COMMAND.format(extra)} "
        f"(in a clone: {CLONE_COMMAND.format(extra)})."
    )


def require_packages(purpose: str, extra: str, *packages: str) -> None:
    """Raise a `MissingPackageError` if one of `packages` is not installed; no package is imported."""
    missing = [_DISTRIBUTIONS.get(package, package) for package in packages if not _installed(package)]
    if missing:
        raise missing_package(purpose, " and ".join(missing), extra)


def import_optional(message: str, *modules: str) -> ModuleType:
    """Import modules, and return the first of them.

    Args:
        message: the message of the error if a module cannot be imported.
        modules: full names of the modules.

    Raises:
        MissingPackageError: a module cannot be imported.
    """
    try:
        first, *_ = map(import_module, modules)
    except ImportError:
        raise MissingPackageError(message) from None
    return first


def alias_modules(package: str, moved: Mapping[str, str], renamed: Mapping[str, str] | None = None) -> None:
    """Let files name modules and classes as they were named before, because pickles of parts hold these names.

    Args:
        package: name of the package.
        moved: for each module of now, the names of those that it was before, separated by spaces.
        renamed: for each public class of now that was renamed, the name that it had before.
    """
    for now, before in moved.items():
        for name in before.split():
            sys.modules[f"{package}.{name}"] = import_module(f"{package}.{now}")
    for now, name in (renamed or {}).items():
        kind = getattr(sys.modules[package], now)
        setattr(sys.modules[kind.__module__], name, kind)


def lazy_attributes(
    package: str, homes: Mapping[str, str], *requirement: str, libraries: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return a function for use as `__getattr__` of a package, which imports each public name on first use.

    Args:
        package: name of the package.
        homes: dictionary from each public name to its module, relative to the package.
        requirement: arguments of `require_packages`, which is called before a module is imported.
        libraries: the extra that installs each library whose import a module may fail at.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if requirement:
            require_packages(*requirement)
        try:
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        except ModuleNotFoundError as error:
            extra = (libraries or {}).get((error.name or "").split(".")[0])
            if extra is None:
                raise
            raise missing_package(f"{name} of {package} needs", str(error.name), extra) from None

    return get


@cache
def _installed(package: str) -> bool:
    return find_spec(package) is not None
