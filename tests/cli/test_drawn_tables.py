"""Drawn tables: `qkv ask` gives the value that was drawn for the key, or says that the key has none."""

import json

import pytest

from tests.cli.conftest import command
from tests.database.drawn_tables import drawn_table
from tests.effort import LONG

TABLES = {number: drawn_table(number) for number in range(600 if LONG else 36)}


def ask(table, folder):
    (folder / "t.csv").write_bytes(table.content)
    words = ("ask", "t.csv", "--key", table.key, "--value", "amount", *table.options, "--format", "json")
    done = command(*words, table.query, cwd=folder)
    assert not done.returncode, (table, done.stderr)
    return json.loads(done.stdout)


@pytest.mark.parametrize("number", TABLES)
def test_a_key_of_a_drawn_table_gets_its_own_value_or_is_said_to_have_none(number, tmp_path):
    table = TABLES[number]
    answer = ask(table, tmp_path)
    if table.value is None:
        assert answer["value"] is None
        assert "missing" in json.dumps(answer)
    else:
        assert answer["value"] == pytest.approx(table.value, abs=1e-9), (table, answer)
