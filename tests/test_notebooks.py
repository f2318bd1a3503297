"""Notebooks of the tutorials have the examples of their pages, and run."""

import doctest
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("nbformat") is None:
    pytest.skip("nbformat is not installed", allow_module_level=True)

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "docs"))
TUTORIALS = sorted(set((ROOT / "docs" / "tutorials").glob("*.md")) - {ROOT / "docs" / "tutorials" / "index.md"})


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_notebook_has_the_examples_of_its_page_in_order(page: Path) -> None:
    import nbformat  # which loads a parser of addresses for a second
    from generate.notebooks import notebook

    made = notebook(page.read_text())
    nbformat.validate(made)
    cells = [cell.source.removesuffix("\nfigure") for cell in made.cells if cell.cell_type == "code"]
    examples = doctest.DocTestParser().get_examples(page.read_text())
    assert "\n".join(cells) == "\n".join(example.source.rstrip("\n") for example in examples)
    for cell in made.cells:
        assert cell.cell_type == "code" or not {":::", "](../", "{picture}"} & set(cell.source.split()), cell.source


def test_a_code_cell_ends_after_each_example_with_an_output() -> None:
    from generate.notebooks import notebook

    made = notebook(
        "# Title\n\n```python\n>>> a = 1\n>>> a\n1\n>>> for b in (2,):\n...     print(b)\n2\n\n```\n\nEnd.\n"
    )
    assert [cell.source for cell in made.cells if cell.cell_type == "code"] == [
        "a = 1\na",
        "for b in (2,):\n    print(b)",
    ]


@pytest.mark.parametrize("name", ["analyst", "model-builder", "lecturer"])
def test_every_step_of_a_tutorial_has_an_output_or_a_picture_and_exercises_have_solutions(name: str) -> None:
    text = "\n".join(page.read_text() for page in TUTORIALS if page.stem.startswith(name))
    assert text.count("**Exercise") == text.count("{dropdown} Solution") >= 3
    for step in text.split("\n## ")[1:]:
        shown = any(example.want for example in doctest.DocTestParser().get_examples(step))
        assert shown or "```sh" in step or "{picture}" in step or step.startswith("What"), step[:40]
    assert "Jon Smiht" in text
    assert "3.5" in text


@pytest.mark.long
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_notebook_runs(page: Path) -> None:
    from generate.notebooks import notebook

    client = pytest.importorskip("nbclient").NotebookClient(notebook(page.read_text()), timeout=300)
    client.execute(cwd=str(ROOT))
