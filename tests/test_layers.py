"""Check the layers of ARCHITECTURE.md: packages import themselves and those below, modules never in a cycle."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "qkv"

LAYERS = [
    {"errors"},
    {"core", "workloads"},
    {"scores", "normalizers", "masks"},
    {"readouts"},
    {"plan"},
    {"kernels", "store"},
    {"cache", "ring", "torch_bridge"},
    {"engine", "distributed"},
    {"nn", "encoders", "tuning"},
    {"interop"},
    {"estimators"},
    {"database"},
    {"join", "search"},
    {"look", "serve"},
    {"cli", "testing"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
LONGEST = 600


def package(path: Path) -> str:
    relative = path.relative_to(SOURCE).with_suffix("")
    return relative.parts[0]


@functools.cache
def import_lines(path: Path) -> list[tuple[str | None, list[str]]]:
    """Return what a module imports at run time, also within functions: pairs of a module and the names taken from it.

    The module is None for `import a, b`. Imports under TYPE_CHECKING do not count: `core` names the parts that a call
    is bound to.
    """
    found: list[tuple[str | None, list[str]]] = []
    queue: list[ast.AST] = [ast.parse(path.read_text())]
    while queue:
        node = queue.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            queue += node.orelse
        elif isinstance(node, ast.Import):
            found.append((None, [alias.name for alias in node.names]))
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0 and node.module:
                found.append((node.module, [alias.name for alias in node.names]))
        elif not isinstance(node, ast.expr):
            queue += ast.iter_child_nodes(node)
    return found


def imports(path: Path) -> set[str]:
    """Return the packages of qkv that a module imports at run time, and those that lazy public names load."""
    from qkv import _HOMES

    found: set[str] = set()
    for module, members in import_lines(path):
        names = members if module is None else [module]
        if module == "qkv":
            names = [_HOMES.get(name, f"qkv.{name}") for name in members]
        found |= {name.split(".")[1] for name in names if name.startswith("qkv.")}
    return found


MODULES = sorted(SOURCE.rglob("*.py"))


def test_modules_import_only_their_own_package_and_those_below() -> None:
    entry_points = {SOURCE / "__init__.py", SOURCE / "__main__.py"}  # which import every package lazily
    wrong = [
        f"{path.relative_to(SOURCE)} imports qkv.{other}"
        for path in MODULES
        if path not in entry_points
        for other in imports(path)
        if other != package(path) and RANK[other] >= RANK[package(path)]
    ]
    assert not wrong, "\n".join(wrong)


def test_every_package_has_a_layer() -> None:
    packages = {package(path) for path in MODULES} - {"__init__", "__main__", "qkv"}
    assert packages <= set(RANK)


def test_no_module_exceeds_the_maximum_length() -> None:
    long = {str(p.relative_to(SOURCE)): n for p in MODULES if (n := len(p.read_text().splitlines())) > LONGEST}
    assert not long, f"over {LONGEST} lines: {long}. Split it, or justify it in docs/decisions and here."


def module_name(path: Path) -> str:
    """Return the dotted name of a module or package."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path, names: set[str]) -> set[str]:
    """Return the modules of `names` that a module imports, also within functions, but not those under TYPE_CHECKING."""
    found: set[str] = set()
    for module, members in import_lines(path):
        if module is None:
            found |= set(members)
        else:
            found |= ({f"{module}.{name}" for name in members} & names) or {module}
    return (found & names) - {module_name(path)}


ALGORITHMS_IMPORTED = {
    ("tiled", "row_blocks"),  # readouts with a gradient
    ("flex", "fused"),  # mapping of batch axes
    ("fused", "tiled"),  # data that is not finite
    ("batched", "dense"),  # data that is not finite
    ("triton", "fused"),  # lifts of queries and keys
    ("jax_fused", "jax_loops"),  # calls that a library refuses
    ("dense", "jax_loops"),  # data of JAX that is not finite
}
"""Pairs of folders of qkv.kernels of which the first runs the kernel of the second for some calls."""


def test_shared_code_of_kernels_imports_no_algorithm_and_algorithms_import_few_others() -> None:
    names, kernels = {module_name(path) for path in MODULES}, SOURCE / "kernels"
    for path in kernels.rglob("*.py"):
        folder = path.relative_to(kernels).parts[0]
        found = {name for name in imported_modules(path, names) if name.startswith("qkv.kernels.")}
        others = {name.split(".")[2] for name in found} - {folder, "runtime"}
        unexpected = {other for other in others if (folder, other) not in ALGORITHMS_IMPORTED}
        assert not unexpected or path.parent == kernels, f"kernels/{folder} imports {unexpected}"


def test_no_module_imports_itself_through_others() -> None:
    names = {module_name(path) for path in MODULES}
    # The file of a package only re-exports; the module that defines the name counts.
    graph = {
        module_name(path): imported_modules(path, names)
        for path in MODULES
        if path.name not in ("__init__.py", "__main__.py")
    }
    cycles = list(find_cycles(graph))
    assert not cycles, cycles


def find_cycles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Return one cycle for each module that a depth-first search reaches from itself."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> Iterator[list[str]]:
        if name in path:
            yield [*path[path.index(name) :], name]
        elif name in graph and name not in done:
            for other in sorted(graph[name]):
                yield from visit(other, [*path, name])
            done.add(name)

    for name in sorted(graph):
        yield from visit(name, [])
