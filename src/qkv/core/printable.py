"""Text from outside, such as cells, tokens and queries, made safe to print or to be part of a SQL query.

Characters that act are written as escapes.

An escape sequence in a cell could recolor the terminal, change its title or hide other lines, and a bidirectional
override shows text in another order than it has.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_CONTROLS = "\x00-\x1f\x7f-\x9f"  # C0 with NUL and ESC, DEL, C1
_HIDDEN = (
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"  # marks of direction, breaks, lone surrogates
)
_ACTING = re.compile(f"[{_CONTROLS}{_HIDDEN}]")
_ACTING_EXCEPT_LAYOUT = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_HIDDEN}]")
_ACTING_IN_JSON = re.compile(f"[\x7f-\x9f{_HIDDEN}]")

_WRITTEN_ESCAPE = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})")

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return a text in which control characters and marks of direction are written as Python writes them.

    Letters of every script, joined emoji and combining characters stay as they are.

    Args:
        lines: keep line breaks and tabs.

    Example:
        >>> print(printable("red\x1b[31m \u202egnp.exe"))
        red\x1b[31m \u202egnp.exe
        >>> printable("année 日本 👩‍🚀")
        'année 日本 👩‍🚀'
    """
    return (_ACTING_EXCEPT_LAYOUT if lines else _ACTING).sub(_escape, text)


def html_table(title: str, rows: Iterable[Sequence[object]], head: Sequence[object] = ()) -> str:
    """Return a table for notebooks, of at most 600 × 400 pixels, in which everything is escaped.

    Args:
        title: text above the table.
        rows: cells of each row; a float from 0 to 1 gets a bar.
        head: names of the columns.

    Example:
        >>> html_table("one", [["<b>"]])[-65:]
        '<tr><td style="text-align:left">&lt;b&gt;</td></tr></table></div>'
    """

    def cell(content: object, kind: str) -> str:
        bar = isinstance(content, float) and 0 <= content <= 1
        text = f"{content:.3f}" if bar else html.escape(printable(str(content)))
        meter = f'<meter value="{content:.3f}" title="{content:.3f}"></meter> ' if bar else ""
        return f'<{kind} style="text-align:left">{meter}{text}</{kind}>'

    lines = [*([(head, "th")] if head else []), *((row, "td") for row in rows)]
    body = "".join(f"<tr>{''.join(cell(content, kind) for content in line)}</tr>" for line, kind in lines)
    heading = f"<b>{html.escape(printable(title))}</b>"  # a caption would be broken at the width of a narrow table
    return f'<div style="max-width:600px;max-height:400px;overflow:auto">{heading}<table>{body}</table></div>'


def printable_key(text: str, backslashes: bool = True) -> str:
    r"""Return a key as one line of text from which `read_escapes` reads the same key.

    Control characters, marks of direction, and white space at the ends are written as \xHH or \uHHHH, and so is the
    backslash of a key that holds such an escape itself.

    Args:
        text: the key.
        backslashes: whether such a backslash is written as an escape; False for a query, which may hold escapes.

    Example:
        >>> print(printable_key("a\tb "), printable_key("C:\\new"), printable_key("\\x09"))
        a\x09b\x20 C:\new \x5cx09
    """
    if backslashes:
        text = _WRITTEN_ESCAPE.sub(lambda found: "\\x5c" + found[0][1:], text)
    inner = text.strip()
    start = text.index(inner) if inner else len(text)
    ends = text[:start], text[start + len(inner) :]
    before, after = ("".join(map(_hexadecimal, end)) for end in ends)
    return before + _ACTING.sub(lambda found: _hexadecimal(found[0]), inner) + after


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error, or its class if it has none, shortened to 200 characters."""
    return (str(error).strip().split("\n")[0] or type(error).__name__)[:200].rstrip(". ")


def quoted_name(name: str) -> str:
    """Return the name of a column as a SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def sql_text(text: str) -> str:
    """Return a text as a SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def quoted_key(text: str) -> str:
    r"""Return a key in quotation marks, from which `read_escapes` reads the same key without the marks.

    Unlike the `repr` of the key, it has one backslash for a backslash, so that it can be copied into a query.

    Example:
        >>> print(quoted_key("C:\\new"), quoted_key("a\tb"), quoted_key("O'Neil"))
        'C:\new' 'a\x09b' "O'Neil"
    """
    mark = '"' if "'" in text and '"' not in text else "'"
    return f"{mark}{printable_key(text)}{mark}"


def read_escapes(text: str) -> str:
    r"""Return a text with the characters that `printable_key` writes as escapes.

    Example:
        >>> [read_escapes(printable_key(key)) for key in ("a\tb ", "C:\\new", "\\x09", "é")]
        ['a\tb ', 'C:\\new', '\\x09', 'é']
    """
    return _WRITTEN_ESCAPE.sub(lambda found: chr(int(found[1] or found[2], 16)), text)


def escaped_json(document: str) -> str:
    r"""Return a JSON document in which such characters are written as JSON escapes, which mean the same text.

    Example:
        >>> print(escaped_json('"a\u202eb\x9b31m"'))
        "a\u202eb\u009b31m"
    """
    return _ACTING_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def quoted_formula(cell: object) -> object:
    """Return a cell of a CSV file that a spreadsheet would execute with an apostrophe before it, and others unchanged.

    Spreadsheets read a text as a formula if it starts with `=`, `+`, `-`, `@`, a tab or a carriage return. Texts that
    are numbers are no formulas.

    Source: https://owasp.org/www-community/attacks/CSV_Injection

    Example:
        >>> [quoted_formula(cell) for cell in ("=HYPERLINK(1)", "-2+3", "-2.5", "a=b", -2)]
        ["'=HYPERLINK(1)", "'-2+3", '-2.5', 'a=b', -2]
    """
    if not isinstance(cell, str) or not cell.lstrip(" ").startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _hexadecimal(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    named = {9: "\\t", 10: "\\n", 13: "\\r"}
    return named.get(code) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")
