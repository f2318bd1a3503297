"""The command and the Python call that give the answer which the page shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from qkv.look.answers.answer_settings import AskArguments, command_options

__all__ = ["TableSource"]


@dataclass(frozen=True)
class TableSource:
    """Where a database comes from, as a command and as Python statements.

    Attributes:
        command: the words of a command that names the table, such as `("qkv", "ask", "pay.csv", "--key", "years")`;
            empty if the table is only in memory.
        opened: Python statements that open the database as `database`; empty for a database that the reader has.
    """

    command: tuple[str, ...] = ()
    opened: str = ""

    @classmethod
    def of_file(cls, path: str, key: Sequence[str], value: str, **reading: str | None) -> TableSource:
        """Return the source of a database that was opened from a file, a folder or a store.

        Args:
            path: the file.
            key: the names of the key columns.
            value: the name of the value column.
            reading: options of `Database.open`; those that are None are omitted.

        Example:
            >>> source = TableSource.of_file("pay.csv", ["years"], "pay", decimal=",")
            >>> source.shell("3,5", {"top": 10})
            'qkv ask pay.csv --key years --value pay --decimal , 3,5'
            >>> print(source.python("3,5", {"top": 10}))
            from qkv import Database
            database = Database.open('pay.csv', key='years', value='pay', decimal=',')
            database.ask('3,5')
        """
        given = {name: value for name, value in reading.items() if value is not None}
        words = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        names = {"key": ",".join(key), "value": value} if len(key) else {}
        columns = [part for name, value in names.items() for part in (f"--{name}", value)]
        arguments = ", ".join(f"{name}={value!r}" for name, value in (names | given).items())
        opened = f"from qkv import Database\ndatabase = Database.open({path!r}{', ' * bool(arguments)}{arguments})"
        return cls(("qkv", "ask", path, *columns, *words), opened)

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
