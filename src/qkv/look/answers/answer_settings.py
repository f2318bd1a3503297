"""The settings of the page of answers: texts in the browser, options of `Database.ask` in Python, words of a command.

`TableSource` names the table of the page, so that the command and the Python call that give its answer are complete.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from dataclasses import dataclass, fields
from typing import Any, TypedDict, Unpack, cast

from qkv.errors import OptionError


@dataclass(frozen=True)
class TableSource:
    """Source of a database, as a command and as Python statements that open it.

    Attributes:
        command: the words of a command that names the table, such as `("qkv", "ask", "pay.csv", "--key", "years")`;
            empty if the table is only in memory.
        opened: Python statements that open the database as `database`; empty for a database that the reader has.
    """

    command: tuple[str, ...] = ()
    opened: str = ""

    @classmethod
    def of_table(
        cls,
        *files: str,
        sql: str | None = None,
        key: str = "",
        value: str = "",
        version: int | None = None,
        **reading: Any,
    ) -> TableSource:
        """Return the source of a database that was opened from files, a folder, a store or a SQL query.

        Args:
            files: the table, the parts of the table, or the store; "-" for standard input, which has no source.
            sql: the SQL query.
            key: the key columns; empty for those of a store.
            value: the value column; empty for that of a store.
            version: the version of a store.
            reading: other options of `Database.open`.

        Example:
            >>> source = TableSource.of_table("pay.csv", key="years", value="pay", decimal=",")
            >>> source.shell("3,5", {"top": 10})
            'qkv ask pay.csv --key years --value pay --decimal , 3,5'
            >>> print(source.python("3,5", {"top": 10}))
            from qkv import Database
            database = Database.open('pay.csv', key='years', value='pay', decimal=',')
            database.ask('3,5')
        """
        if files == ("-",):
            return cls()
        options = ({"key": key, "value": value} if key else {}) | reading
        pairs = [(name, str(text)) for name, text in options.items() if name != "cyclic"]
        pairs += [("cyclic", f"{name}={period:g}") for name, period in options.get("cyclic", {}).items()]
        words = [part for name, text in pairs for part in (f"--{name.replace('_', '-')}", text)]
        words += [] if version is None else ["--version", str(version)]
        source = repr(sql if sql is not None else files[0] if len(files) == 1 else list(files))
        arguments = ", ".join([source, *(f"{name}={text!r}" for name, text in options.items())])
        call = f"Database.{'open' if sql is None else 'sql'}({arguments})"
        call += "" if version is None else f".at({version})"
        named = files if sql is None else ("--sql", sql)
        return cls(("qkv", "ask", *named, *words), f"from qkv import Database\ndatabase = {call}")

    def shell(self, query: str, options: AskArguments) -> str:
        """Return the command that answers a query, quoted for a POSIX shell; empty if the table is only in memory."""
        if not self.command:
            return ""
        words = [*self.command, *command_options(options)]
        if not re.match(r"--|-[^\W\d_]", query):
            return shlex.join([*words, query])
        # Words that begin like an option are read from standard input.
        top = [] if "--top" in words else ["--top", str(options.get("top", 10))]
        return f"printf '%s\\n' {shlex.quote(query)} | {shlex.join([*words, *top])}"

    def python(self, query: str, options: AskArguments) -> str:
        """Return the Python statements that answer a query."""
        given = [f", {name}={value!r}" for name, value in options.items() if (name, value) != ("top", 10)]
        arguments = "".join([*given, ", printed=True" * ("\\" in query)])
        call = f"database.ask({query!r}{arguments})"
        return f"{self.opened}\n{call}" if self.opened else call


KERNELS = ("gaussian", "laplace", "boxcar", "epanechnikov", "triangular")
"""Names of the scores that have a bandwidth."""

_MAX_TOP = 200
_MAX_TEXT = 2000


class AskArguments(TypedDict, total=False):
    """Keyword arguments of `Database.ask` that have a name on the command line."""

    score: str
    normalizer: str
    aggregate: str
    where: str
    min_similarity: float
    max_distance: float
    top: int


@dataclass(frozen=True)
class AnswerSettings:
    """The settings of the page; an empty text stands for the default.

    Attributes:
        score: name of the score, without its bandwidth.
        bandwidth: bandwidth of the score, in the unit of the key.
        normalizer: name of the normalizer.
        neighbours: number of rows that get weight; empty: as the normalizer does.
        aggregate: "mean", "vote" or "local-linear".
        where: SQL predicate.
        min_similarity: least similarity of a match.
        max_distance: largest distance of a match.
        top: number of rows of evidence.
    """

    score: str = ""
    bandwidth: str = ""
    normalizer: str = ""
    neighbours: str = ""
    aggregate: str = ""
    where: str = ""
    min_similarity: str = ""
    max_distance: str = ""
    top: str = "10"

    @classmethod
    def parse(cls, request: object) -> AnswerSettings:
        """Return the settings in a request of the browser.

        Raises:
            OptionError: the request has other fields, or a field is not a text of at most 2,000 characters.
        """
        names = {field.name for field in fields(cls)}
        given: dict[object, object] = request if isinstance(request, dict) else {"": request}
        texts: dict[str, str] = {}
        for name, value in given.items():
            if not isinstance(name, str) or not isinstance(value, str) or name not in names or len(value) > _MAX_TEXT:
                raise OptionError(
                    f"settings must have texts of at most {_MAX_TEXT:,} characters for {', '.join(sorted(names))}, got "
                    f"{name!r}: {str(value)[:80]!r}. Reload the page."
                )
            texts[name] = value.strip()
        return cls(**texts)

    @classmethod
    def from_options(cls, **options: Unpack[AskArguments]) -> AnswerSettings:
        """Return the settings that stand for options of `Database.ask`.

        Example:
            >>> AnswerSettings.from_options(score="gaussian:0.5", normalizer="topk:3").options()
            {'score': 'gaussian:0.5', 'normalizer': 'topk:3', 'top': 10}
        """
        texts = {name: str(value) for name, value in options.items() if value is not None}
        name, _, bandwidth = texts.get("score", "").partition(":")
        if name.lower() in KERNELS:
            texts |= {"score": name, "bandwidth": bandwidth}
        first, _, rest = texts.get("normalizer", "").partition(":")
        count, _, inner = rest.partition(":")
        if first.lower() == "topk" and count.isdigit() and (not inner or inner[0].isalpha()):
            texts |= {"normalizer": inner, "neighbours": count}
        return cls(**texts)

    def options(self, inner: str = "") -> AskArguments:
        """Return the keyword arguments of `Database.ask`; those of default settings are omitted."""
        score = f"{self.score or 'gaussian'}:{_number('bandwidth', self.bandwidth)}" if self.bandwidth else self.score
        normalizer = self.normalizer
        if self.neighbours:
            chosen = "" if normalizer.lower().startswith("topk") else normalizer or inner
            normalizer = f"topk:{_integer('neighbours', self.neighbours)}" + (f":{chosen}" if chosen else "")
        texts = {"score": score, "normalizer": normalizer, "aggregate": self.aggregate, "where": self.where}
        out: dict[str, object] = {name: text for name, text in texts.items() if text}
        for name in ("min_similarity", "max_distance"):
            if text := getattr(self, name):
                out[name] = float(_number(name, text))
        return cast("AskArguments", out | {"top": min(_integer("rows", self.top), _MAX_TOP)})


def command_options(options: AskArguments) -> list[str]:
    """Return the options of `qkv ask` for keyword arguments of `Database.ask`.

    Example:
        >>> command_options({"score": "boxcar:1", "max_distance": 0.5, "top": 10})
        ['--score', 'boxcar:1', '--max-distance', '0.5']
    """
    given = [(name, value) for name, value in options.items() if (name, value) != ("top", 10)]
    words = [part for name, value in given for part in (f"--{name.replace('_', '-')}", str(value))]
    return [*words, *["--gradient"] * (options.get("aggregate") == "local-linear")]


def _number(name: str, text: str) -> str:
    """Return the text of a positive number, without spaces."""
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < float("inf"):
            return text.replace(" ", "")
    raise OptionError(f"{name} must be a number that is at least 0, got {text!r}. Write, for example, 0.5.")


def _integer(name: str, text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 10**9:
        raise OptionError(f"{name} must be a positive whole number, got {text!r}. Write, for example, 10.")
    return int(text)
