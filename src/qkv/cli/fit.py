"""`qkv fit`: what can be learned, one command for each."""

import typer

from qkv.cli.fit_join import fit_join

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Learn from examples: a join from labelled pairs.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("join", short_help="Learn a join of two tables from labelled pairs.")(fit_join)


@app.callback()
def _fit() -> None:
    """A group, even while it holds one command."""
