"""Check of the links of the built site."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif value and ((tag == "a" and name == "href") or name == "src" or (tag == "link" and name == "href")):
                self.links.append(value)


def broken_links(site: Path) -> list[str]:
    """Return one line for each link to a file or an anchor that does not exist."""
    pages: dict[Path, _Page] = {}
    for path in (path for path in site.rglob("*.html") if "_static" not in path.parts):
        page = pages[path.resolve()] = _Page()
        page.feed(path.read_text())
    found = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(parts.fragment)
            if not target.exists():
                found.append(f"{path.name} links to {link}, which does not exist")
            elif "=" in anchor:
                continue  # the layer, head and tokens with which a page of attention opens
            elif anchor and target in pages and anchor not in pages[target].anchors and path.name != "search.html":
                found.append(f"{path.name} links to {link}, which has no such heading")
    return sorted(set(found))
