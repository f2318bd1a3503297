"""Every public name, command option and capability has a page on the site; nothing is built here."""

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "docs"))
CAPABILITIES = (ROOT / "docs" / "capabilities.md").read_text()
ROWS = re.findall(r"^\| ([A-G]\d*) \| (.+) \|$", CAPABILITIES, re.MULTILINE)


def test_every_name_that_a_package_exports_has_a_page_in_the_reference() -> None:
    from generate.reference import page_name, public_modules, public_names

    homes = public_names()
    names = {full.rpartition(".")[2] for full in homes}
    for module, exported in public_modules().items():
        exported = [name for name in exported if f"{module}.{name}" not in public_modules()]
        missing = set(exported) - names
        assert not missing, f"{module} exports {missing}, which have no page"
    pages = [page_name(full).lower() for full in homes]
    assert len(set(pages)) == len(pages), "two pages differ only in case, which some file systems do not distinguish"


def test_the_names_of_the_reference_are_those_that_the_packages_export() -> None:
    from generate.reference import public_modules

    for module in ("qkv.scores", "qkv.masks", "qkv.errors"):
        assert list(public_modules()[module]) == list(importlib.import_module(module).__all__)
    packages = [path.parent for path in (ROOT / "src" / "qkv").rglob("__init__.py") if "\n__all__" in path.read_text()]
    exporting = {".".join(["qkv", *package.relative_to(ROOT / "src" / "qkv").parts]) for package in packages}
    assert exporting <= set(public_modules())


def test_a_page_of_the_reference_shows_signature_arguments_errors_and_example() -> None:
    from generate.reference import _page

    page = _page("qkv.scores.Additive", {"ShapeError": "qkv.errors.ShapeError"})
    for part in ("{py:class} qkv.scores.Additive(query_weight", ":param vector:", ":raises ShapeError:", ">>> one ="):
        assert part in page


def test_the_two_parts_of_the_reference_name_each_module_once() -> None:
    from generate.reference import is_internal, public_names

    modules = set(public_names().values())
    internals = {module for module in modules if is_internal(module)}
    assert {"qkv.kernels", "qkv.plan", "qkv.plan.rewrites", "qkv.store", "qkv.testing", "qkv.tuning"} <= internals
    assert {"qkv", "qkv.scores", "qkv.nn", "qkv.nn.positions", "qkv.database", "qkv.errors"} <= modules - internals


def test_the_page_of_a_name_shows_its_module_and_how_it_is_imported() -> None:
    from generate.reference import _module_page, _page, public_names

    head = "# qkv.nn.MultiHeadAttention\n\n```python\nfrom qkv.nn import MultiHeadAttention\n```\n"
    assert _page("qkv.nn.MultiHeadAttention", {}).startswith(head)
    assert "qkv.nn.positions" not in public_names()  # a page of its value would show a path of the machine
    assert "[`positions`](nn.positions.md)" in _module_page("qkv.nn", public_names(), {})


def test_every_option_of_every_command_has_a_page() -> None:
    pytest.importorskip("typer")
    from generate.command_line import command_pages, commands

    pages = command_pages()
    for words, command in commands().items():
        page = pages[f"{words.replace(' ', '-')}.md"]
        assert f"[`qkv {words}`]" in pages["index.md"]
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                for name in parameter.opts:
                    assert re.search(rf"^::::{{option}} .*{re.escape(name)}\b", page, re.MULTILINE), f"{words} {name}"


def test_every_capability_links_to_a_heading_that_shows_it() -> None:
    assert len(ROWS) > 40
    for name, row in ROWS:
        links = re.findall(r"\]\(([^)#\s]+)(#[^)\s]+)?\)", row)
        assert links, f"row {name} has no page"
        for target, anchor in links:
            page = (ROOT / "docs" / target).resolve()
            assert page.is_file(), f"row {name} links to {target}"
            if anchor and page.suffix == ".md":
                heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
                assert anchor[1:] in slugs, f"row {name} links to {target}{anchor}"


def test_every_capability_but_the_benchmarks_is_shown_by_a_page_with_a_figure_and_a_card_in_the_gallery() -> None:
    from generate.pages import has_figure, pages_outside

    cards = set(pages_outside(ROOT / "docs"))
    for name, row in ROWS:
        pages = re.findall(r"\]\(([^)#\s]+)", row)
        shown = [page for page in pages if has_figure((ROOT / "docs" / page).read_text())]
        assert name == "G2" or any(page.startswith("gallery/") or page in cards for page in shown), f"row {name}"


def test_the_index_of_the_gallery_links_to_the_pages_of_attention() -> None:
    from generate.look_gallery import look_cards, look_pages

    from qkv.look.gallery import _Card, _index

    index = _index([_Card("sink", "sink.html#layer=4&head=0", "A & B", "“[SEP]” has 76% of the weight.", b"")])
    (page,) = look_pages(index)
    assert (page.address, page.picture, page.title) == ("sink.html#layer=4&head=0", "sink.png", "A & B")
    assert ":link: ../look-gallery/sink.html#layer=4&head=0" in look_cards([page])
