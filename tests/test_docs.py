"""The examples of the documentation run, and its links exist."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WRITTEN_BY_THE_BUILD = ("docs/gallery/index.md", "docs/coming-from/index.md", "docs/reference/")
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_print_the_shown_output(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failed, _ = doctest.testfile(str(page), module_relative=False, optionflags=flags)
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
    assert failed == 0


@pytest.mark.parametrize("page", [ROOT / "ARCHITECTURE.md", ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_the_files_that_a_page_links_to_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        path = (page.parent / target).resolve()
        if not str(path.relative_to(ROOT)).startswith(WRITTEN_BY_THE_BUILD):  # the build checks links to these
            assert path.exists(), f"{page.name} links to {target}"


def test_the_headings_that_a_page_links_to_exist() -> None:
    def anchors(page: Path) -> set[str]:
        heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
        words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads]
        return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in words}

    for page in [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *PAGES]:
        for target, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)#([^)\s]+)\)", page.read_text()):
            path = (page.parent / target).resolve() if target else page
            if path.suffix == ".md" and path.exists():
                assert anchor in anchors(path), f"{page.name} links to {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_command_of_installation_from_an_index_has_one_for_a_clone_beside_it(page: Path) -> None:
    lines = page.read_text().splitlines()
    for at, line in enumerate(lines):
        if 'pip install "qkv[' in line:
            assert '-e ".[' in " ".join(lines[max(at - 2, 0) : at + 3]), f"{page.name}:{at + 1}"


def test_no_tracked_file_names_a_path_of_a_machine() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    private = re.compile(r"(?<![\w.])/(?:work|home|root|Users)/\w")
    for name in tracked:
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".sh", ".txt", ""} and path.is_file():
            assert not private.search(path.read_text()), name


LONGER = {"glossary"}
"""Pages of more than five screens: a list of terms."""


def test_a_guide_has_at_most_five_screens() -> None:
    """Count words, of which five screens of 1,280 × 800 pixels hold about 1,650 with their code and tables."""
    measured = {"decisions", "evidence", "performance"}  # studies and records, which are read in parts
    for page in (page for page in (ROOT / "docs").rglob("*.md") if page.parent.name not in measured):
        assert len(page.read_text().split()) <= 1650 or page.stem in LONGER, page.name


def test_every_decision_is_dated() -> None:
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        assert re.search(r"^\d{4}-\d{2}-\d{2}$", page.read_text(), re.MULTILINE), f"{page.name} has no date"


def test_every_decision_that_a_file_names_has_a_page_or_a_section_of_the_archive() -> None:
    folder = ROOT / "docs" / "decisions"
    known = {page.name[:4] for page in folder.glob("0*.md")}
    known |= set(re.findall(r"^## Decision (\d{4})$", (folder / "archive.md").read_text(), re.MULTILINE))
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in tracked:
        path = ROOT / name
        if path.suffix in {".py", ".md", ".txt"} and path.is_file():
            for found in re.findall(r"(?:decisions?[ /]\[?|decision-)(0\d{3})\b", path.read_text()):
                assert found in known, f"{name} names decision {found}"


def test_the_home_page_begins_with_an_install_line_and_an_answer_in_lines_that_fit_on_a_phone() -> None:
    text = (ROOT / "docs" / "index.md").read_text()
    install, code = re.findall(r"^```(?:sh|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[:2]
    assert "pip install" in install
    assert code.startswith(">>> import qkv\n")
    assert "48200.0\n" in code
    assert text.index(code) < text.index("{picture}")
    lines = install.splitlines() + re.findall(r"^(?:>>>|\.\.\.|    \w).*", text, re.MULTILINE)
    assert len(lines) > 12
    assert max(map(len, lines)) <= 48


def test_the_readme_is_at_most_150_lines_long() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
