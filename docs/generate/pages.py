"""Source of the site: the pages of docs/ with figures, the pages of the repository, and indexes of folders."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from .keywords import with_search_words
from .look_gallery import LookPage, look_cards, write_look_gallery
from .modules import modules
from .pictures import BLOCK, draw_pictures
from .toctree import hidden_toctree

OUTSIDE = {
    "ARCHITECTURE.md": "design/architecture.md",
    "CHANGELOG.md": "design/changelog.md",
    "CONTRIBUTING.md": "design/contributing.md",
    "SECURITY.md": "design/security.md",
}
"""Pages outside of docs/, and their place on the site."""

RENAMED = {"search.md": "searching.md"}
"""Pages of docs/ whose names Sphinx uses for pages of its own."""

GALLERY = {
    "First steps": (
        "attention-is-a-query",
        "scores",
        "distance-scores",
        "weights",
        "self-attention",
        "write-a-mask",
        "positions",
    ),
    "Models": (
        "from-torch",
        "transformer",
        "change-the-attention-of-my-gpt",
        "recent-models",
        "long-contexts",
        "every-library",
        "pytorch",
        "onnx",
    ),
    "Tables, texts and pictures": ("databases", "films", "answer", "latent-semantics", "pictures-by-words"),
    "Specialities": ("hard-attention", "squeeze-and-excitation", "roles-of-the-projections"),
}
"""Pages of the gallery in the order of its index."""

_FIGURE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
_ALONE = re.compile(r"^(!\[[^\]]*\]\([^)]+\.png\))$", re.MULTILINE)
_BLANK_ENDS = re.compile(r"\n\n+```$", re.MULTILINE)
_IN_BROWSER = re.compile(r"^\|.*\(start/index\.md#in-the-browser\).*\n", re.MULTILINE)
_LINK = re.compile(r"\[(?P<words>[^\]]*)\]\((?P<target>(?!https?:|mailto:)[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def write_pages(root: Path, source: Path) -> None:
    """Write every page of the repository and the figures into the source folder of the site."""
    docs = root / "docs"
    (source / "drawn").mkdir(parents=True)
    shutil.copytree(docs / "pictures", source / "pictures")
    shutil.copytree(docs / "_static", source / "_static")
    shutil.copy(docs / "conf.py", source)
    first: dict[str, str] = {}
    for page in sorted(docs.rglob("*.md")):
        name = page.relative_to(docs)
        text, stems = draw_pictures(page, root, source / "drawn")
        if stems:
            first[str(name)] = stems[0]
        if str(name) == "decisions/README.md":
            text += _LIST
        if str(name) == "index.md" and not (root / "build" / "pyodide" / "pyodide.mjs").exists():
            text = _IN_BROWSER.sub("", text)
        _write(source / RENAMED.get(str(name), name), with_search_words(str(name), _links(text, page, name, root)))
    for table in docs.rglob("*.csv"):
        _write(source / table.relative_to(docs), table.read_text())
    for outside, name in OUTSIDE.items():
        page = root / outside
        _write(source / name, with_search_words(name, _links(page.read_text(), page, Path(name), root)))
    _write(source / "design" / "modules.md", with_search_words("design/modules.md", modules(root / "src" / "qkv")))
    _write(source / "gallery" / "index.md", gallery_index(docs, first, write_look_gallery(source)))
    _write(source / "coming-from" / "index.md", coming_from_index(docs / "coming-from"))


def coming_from_index(folder: Path) -> str:
    """Return the index of the tables of equivalents, with a list of its pages where the page itself has none."""
    page = folder / "index.md"
    text = page.read_text() if page.exists() else _COMING_FROM
    names = sorted(each.stem for each in folder.glob("*.md") if each.stem != "index")
    if not names or "{toctree}" in text:
        return text
    return "\n".join([text, "```{toctree}", ":maxdepth: 1", "", *names, "```", ""])


def title_and_summary(text: str) -> tuple[str, str]:
    """Return the title of a page and the first sentence of its first paragraph."""
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    paragraphs = re.split(r"\n\s*\n", text[title.end() if title else 0 :].strip())
    summary = " ".join(next((each for each in paragraphs if re.match(r"[A-Z`*\[]", each)), "").split())
    summary = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", summary)
    sentence = re.match(r".+?[.](?= |$)", summary)
    return (title[1] if title else "").replace("`", ""), (sentence[0] if sentence else summary).rstrip(":")


def gallery_index(docs: Path, first: dict[str, str], look: list[LookPage]) -> str:
    """Return the index of the gallery: cards of its pages, of others, and of the pages to explore."""
    lines = ["# Gallery", "", "Each page shows one idea: a problem, the code that solves it, and what it prints.", ""]
    for part, names in GALLERY.items():
        lines += [f"## {part}", "", *_cards(docs, [f"gallery/{name}.md" for name in names], first)]
    lines += ["## More pages with figures", "", "These pages show the other [capabilities](../capabilities.md).", ""]
    lines += _cards(docs, pages_outside(docs), first)
    return "\n".join([*lines, *look_cards(look), *hidden_toctree(name for names in GALLERY.values() for name in names)])


def pages_outside(docs: Path) -> list[str]:
    """Return the pages with a figure that show capabilities, outside of the gallery."""
    found = re.findall(r"\]\(([^)#\s]+\.md)", (docs / "capabilities.md").read_text())
    pages = [name for name in dict.fromkeys(found) if not name.startswith("gallery/")]
    return [name for name in pages if has_figure((docs / name).read_text())]


def has_figure(text: str) -> bool:
    """Return whether a page draws or shows a figure."""
    return bool(BLOCK.search(text) or _FIGURE.search(text))


def _cards(docs: Path, names: list[str], first: dict[str, str]) -> list[str]:
    """Return a grid of cards, one for each page, with its title, first figure and first sentence."""
    lines = ["::::{grid} 1 2 3 3", ":gutter: 3", ""]
    for name in names:
        text = (docs / name).read_text()
        title, summary = title_and_summary(text)
        place = "../" + RENAMED.get(name, name).removesuffix(".md")
        lines += [
            f":::{{grid-item-card}} {title}",
            f":link: {place}",
            ":link-type: doc",
            ":class-card: gallery-card",
            "",
        ]
        picture, stem = _FIGURE.search(text), first.get(name)
        if stem:
            for theme in ("light", "dark"):
                lines += _thumbnail(
                    f"../drawn/{stem}-{theme}.png", BLOCK.search(text)["words"], f"only-{theme} thumbnail"
                )
        elif picture:
            lines += _thumbnail((Path("..") / name).parent.joinpath(picture[2]).as_posix(), picture[1], "thumbnail")
        lines += [summary, ":::", ""]
    return [*lines, "::::", ""]


def _thumbnail(path: str, alternative: str, classes: str) -> list[str]:
    return [f"```{{image}} {path}", f":alt: {alternative}", f":class: {classes}", "```", ""]


_LIST = """
```{toctree}
:hidden:
:glob:

0*
archive
```
"""
_COMING_FROM = """# Coming from another library

Tables of equivalents: what a call of another library is called here, and where the two differ.
"""


def _links(text: str, page: Path, name: Path, root: Path) -> str:
    """Return the text with links that are valid on the site; a file that is no page is shown by its path."""

    def link(found: re.Match[str]) -> str:
        target = (page.parent / found["target"]).resolve()
        if not target.is_relative_to(root):
            return found[0]
        path = target.relative_to(root)
        if str(path) in OUTSIDE:
            place = Path(OUTSIDE[str(path)])
        elif path.parts and path.parts[0] == "docs" and target.suffix in (".md", ".png", ".svg", ".csv"):
            place = path.relative_to("docs")
            place = Path(RENAMED.get(str(place), place))
        elif str(path) == "README.md":
            place = Path("index.md")
        else:
            words = found["words"].strip("`")
            return f"`{path}`" if words in (str(path), path.name) else f"{found['words']} (`{path}`)"
        up = "../" * (len(name.parts) - 1)
        return f"[{found['words']}]({up}{place}{found['anchor'] or ''})"

    text = _ALONE.sub(r":::{container} wide-figure\n\1\n:::", _BLANK_ENDS.sub("\n```", text))
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
