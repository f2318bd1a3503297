"""Pages of the reference: one for each public name, written from its signature and its docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import qkv

from .docstrings import Docstring, docstring_markdown, fenced, link_names
from .toctree import hidden_toctree

MODULES = ("qkv.distributed", "qkv.errors", "qkv.nn.positions", "qkv.workloads")
"""Public modules that are no packages."""

INTERNALS = ("database.partials", "kernels", "look.answers", "plan", "store", "testing", "tuning", "workloads")
"""Modules, without `qkv.`, that are described apart with the modules in them: they serve those who extend qkv."""

_SOURCE = Path(qkv.__file__).parent


@cache
def public_modules() -> dict[str, tuple[str, ...]]:
    """Return the names that each public module exports, outer modules first; nothing is imported."""
    paths = {_module(path.parent): path for path in _SOURCE.rglob("__init__.py")}
    paths |= {name: _SOURCE / f"{name.removeprefix('qkv.').replace('.', '/')}.py" for name in MODULES}
    found = {name: _exported(paths[name]) for name in sorted(paths, key=_depth)}
    return {name: exported for name, exported in found.items() if exported}


def _module(folder: Path) -> str:
    return ".".join(["qkv", *folder.relative_to(_SOURCE).parts])


def _depth(name: str) -> tuple[int, str]:
    return name.count("."), name


def _exported(path: Path) -> tuple[str, ...]:
    """Return `__all__` of a module, with the names of each module whose `__all__` it adds to its own."""
    names = [*(_assigned(path, "__all__") or ())]
    for module in re.findall(r"^__all__ \+= (\w+)\.__all__$", path.read_text(), re.MULTILINE):
        names += next(_exported(file) for file in path.parent.rglob(f"{module}.py"))
    return tuple(names)


def _assigned(path: Path, name: str) -> Any:
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return ast.literal_eval(statement.value) if statement.value else None
    return None


@cache
def public_names() -> dict[str, str]:
    """Return the home of every public name as a mapping from its full name, such as `qkv.scores.Dot`, to its module.

    The home is the outermost package that exports the name; `qkv` is the home only of what no public module exports.
    """
    modules = public_modules()
    shortcuts = _assigned(_SOURCE / "__init__.py", "_HOMES")
    homes: dict[str, str] = {}
    for module, names in modules.items():
        for name in names:
            if module == "qkv":
                is_home = f"qkv.{name}" not in modules and shortcuts.get(name) not in modules
            else:
                outer = module.rpartition(".")[0]
                is_home = outer == "qkv" or name not in modules.get(outer, ())
            if is_home and f"{module}.{name}" not in modules:
                homes[f"{module}.{name}"] = module
    return homes


def is_internal(module: str) -> bool:
    """Return whether a public module belongs to the internals."""
    return f"{module.removeprefix('qkv.')}.".startswith(tuple(f"{name}." for name in INTERNALS))


def page_name(full_name: str) -> str:
    """Return the page of a public name, without suffix, relative to the folder of the reference."""
    module, _, name = full_name.rpartition(".")
    if name.islower() and name.capitalize() in public_modules()[module]:
        name += "-function"  # some file systems do not distinguish repair.html and Repair.html
    return f"{module_page_name(module)}/{name}"


def module_page_name(module: str) -> str:
    """Return the page of a module, without suffix, relative to the folder of the reference."""
    return module.removeprefix("qkv.")


def reference_pages() -> dict[str, str]:
    """Return the text of every page of the reference by its path, relative to the folder of the reference."""
    homes = public_names()
    links: dict[str, str] = {}
    for full in sorted(homes, key=lambda full: (homes[full] == "qkv.nn", full.count("."))):
        # The names of scores that qkv.nn repeats for its modules mean the score everywhere else.
        links.setdefault(full.rpartition(".")[2], full)
        links[full.removeprefix("qkv.")] = full
    pages = {f"{page_name(full)}.md": _page(full, links) for full in homes}
    modules = sorted(set(homes.values()), key=lambda name: (name != "qkv", name))
    for module in modules:
        pages[f"{module_page_name(module)}.md"] = _module_page(module, homes, links)
    everyday, internals = ([m for m in modules if is_internal(m) == internal] for internal in (False, True))
    pages["index.md"] = _index(
        _EVERYDAY, everyday, ["command-line/index", *map(module_page_name, everyday), "internals"]
    )
    pages["internals.md"] = _index(_INTERNALS, internals, map(module_page_name, internals))
    return pages


_EVERYDAY = """# Reference

Every name of these modules has a page with its signature, shapes, errors and an example. A name is public if the
`__all__` of a package lists it. [The command line](command-line/index.md) lists every command and option, and
[internals](internals.md) the kernels, plans and stores behind these names."""

_INTERNALS = """# Internals

Names for those who write a kernel, a plan rule or a store, or who test their own parts. [What is
stable](../stability.md) says which of them may change. [Architecture](../design/architecture.md) says how they work
together."""


def write_reference(folder: Path) -> None:
    """Write all pages of the reference into a folder."""
    for name, text in reference_pages().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _index(text: str, modules: list[str], entries: Iterable[str]) -> str:
    rows = [
        f"| [`{module}`]({module_page_name(module)}.md) | {Docstring.of(importlib.import_module(module)).summary} |"
        for module in modules
    ]
    return "\n".join([text, "", "| module | contents |", "|---|---|", *rows, "", *hidden_toctree(entries)])


def _module_page(module: str, homes: dict[str, str], links: dict[str, str]) -> str:
    package = importlib.import_module(module)
    names = [full for full, home in homes.items() if home == module]
    rows = []
    for full in names:
        name = full.rpartition(".")[2]
        summary = link_names(_docstring(package, name).summary, {k: v for k, v in links.items() if k != name})
        rows.append(f"| {{py:obj}}`{name} <{full}>` | {summary.replace('|', chr(92) + '|')} |")
    text = Docstring.of(package)
    again = [
        f"{{py:obj}}`{name} <{links[name]}>`"
        for name in package.__all__
        if f"{module}.{name}" not in homes and links.get(name)
    ]
    again += [
        f"[`{name}`]({module}.{name}.md)".replace("(qkv.", "(")
        for name in package.__all__
        if f"{module}.{name}" in public_modules()
    ]
    also = [f"`{module}` also exports {', '.join(again)}.", ""] if again else []
    return "\n".join(
        [
            f"# {module}",
            "",
            f"```{{py:module}} {module}",
            "```",
            "",
            *docstring_markdown(text, links),
            "",
            "| name | what it is |",
            "|---|---|",
            *rows,
            "",
            *also,
            *hidden_toctree(f"{full.rpartition('.')[2]} <{page_name(full)}>" for full in names),
        ]
    )


def _docstring(package: ModuleType, name: str) -> Docstring:
    thing = getattr(package, name)
    if inspect.isclass(thing) or inspect.isroutine(thing):
        return Docstring.of(thing)
    return Docstring.parse(_text_after_assignment(package, name) or f"Value of type `{type(thing).__name__}`.")


def _text_after_assignment(package: ModuleType, name: str) -> str:
    """Return the string literal that follows the assignment of a name in one of the modules of a package."""
    path = Path(package.__file__ or "")
    for source in [path, *sorted(path.parent.glob("*.py"))]:
        body = ast.parse(source.read_text()).body
        for statement, following in pairwise(body):
            targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
            if (
                any(isinstance(target, ast.Name) and target.id == name for target in targets)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
            ):
                return inspect.cleandoc(following.value.value)
    return ""


def _page(full: str, links: dict[str, str]) -> str:
    module, _, name = full.rpartition(".")
    package = importlib.import_module(module)
    thing = getattr(package, name)
    local = {each: f"{module}.{each}" for each in links if getattr(package, "__all__", ()) and each in package.__all__}
    links = links | {each: target for each, target in local.items() if target in public_names()}
    others = {key: target for key, target in links.items() if target != full}
    lines = [f"# {full}", "", *fenced("python", [f"from {module} import {name}"]), ""]
    if inspect.isclass(thing):
        lines += _class(full, thing, others, links)
    elif inspect.isroutine(thing):
        lines += _directive(
            "function", f"{full}{_signature(thing, links)}", docstring_markdown(Docstring.of(thing), others)
        )
    else:
        shown = repr(thing)
        body = docstring_markdown(_docstring(package, name), others)
        if len(shown) < 2000 and " at 0x" not in shown:
            body += ["", *fenced("text", [shown])]
        lines += _directive("data", full, body)
    return "\n".join([*lines, ""])


def _class(full: str, cls: type, links: dict[str, str], types: dict[str, str]) -> list[str]:
    kind = "exception" if issubclass(cls, BaseException) else "class"
    body: list[str] = []
    bases = [base for base in cls.__mro__[1:] if base.__name__ in links and base.__module__.startswith("qkv")]
    if bases:
        body += [
            "Derived from " + ", ".join(f"{{py:obj}}`{b.__name__} <{links[b.__name__]}>`" for b in bases) + ".",
            "",
        ]
    body += docstring_markdown(Docstring.of(cls), links)
    for name, member in _members(cls, set(bases)):
        body += ["", *_member(name, member, links, types, inherited=any(hasattr(base, name) for base in bases))]
    signature = "" if kind == "exception" and cls.__init__ is Exception.__init__ else _signature(cls, types)
    return _directive(kind, f"{full}{signature}", body, fence=6)


def _members(cls: type, public_bases: set[type]) -> Iterator[tuple[str, Any]]:
    """Yield the documented members that a class, or an internal base of it, defines.

    A method that inherits the docstring of a public base is described on the page of that base.
    """
    seen: set[str] = set()
    documented = {ancestor for base in public_bases for ancestor in base.__mro__}
    for base in cls.__mro__:
        if not base.__module__.startswith("qkv") or base in documented:
            continue
        for name, member in vars(base).items():
            if (name.startswith("_") and name != "__call__") or name in seen:
                continue
            function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
            is_member = inspect.isroutine(function) or isinstance(member, property)
            if is_member and function.__doc__:
                seen.add(name)
                yield name, member


def _member(name: str, member: Any, links: dict[str, str], types: dict[str, str], *, inherited: bool) -> list[str]:
    function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
    text = Docstring.of(function)
    if inherited:
        text = text.only_summary()
    body = docstring_markdown(text, links)
    if isinstance(member, property) or type(member).__name__ == "cached_property":
        return _directive("property", name, body, fence=5)
    kind = {classmethod: ":classmethod:", staticmethod: ":staticmethod:"}.get(type(member), "")
    options = [kind] if kind else []
    return _directive(
        "method", f"{name}{_signature(function, types, method=kind != ':staticmethod:')}", body, 5, options
    )


def _directive(kind: str, head: str, body: list[str], fence: int = 6, options: list[str] | None = None) -> list[str]:
    colons = ":" * fence
    return [f"{colons}{{py:{kind}}} {head}", *(options or []), "", *body, colons]


def _signature(thing: Any, links: dict[str, str], *, method: bool = False) -> str:
    """Return the signature with annotations as in the source; defaults without a literal are shown as `...`."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return "()"
    parameters = list(signature.parameters.values())
    if method and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    shown = []
    for parameter in parameters:
        default = parameter.default
        if default is not inspect.Parameter.empty and "<" in repr(default):
            default = _Text("...")
        shown.append(parameter.replace(default=default, annotation=_annotation(parameter.annotation, links)))
    result = _annotation(signature.return_annotation, links)
    return str(signature.replace(parameters=shown, return_annotation=result)).replace("\n", " ")


def _annotation(annotation: Any, links: dict[str, str]) -> Any:
    """Return an annotation with public names in full, which Sphinx links and shows by their last part."""
    if not isinstance(annotation, str):
        return inspect.Parameter.empty
    text = annotation.strip("'\"").replace("'", '"').replace("*#batch", "*batch")
    pieces = re.split(r'("[^"]*")', text)
    names = r"(?<![\w.])([A-Za-z_]\w*)(?![\w.])"
    return _Text("".join(p if p.startswith('"') else re.sub(names, lambda m: links.get(m[1], m[1]), p) for p in pieces))


@dataclass(frozen=True)
class _Text:
    """Text that a signature shows without quotes."""

    text: str

    def __repr__(self) -> str:
        return self.text
