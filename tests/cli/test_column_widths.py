"""Evidence tables show the value and whole numbers on narrow terminals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.cli.answer_writers import ColumnWidth, fit_widths

from .conftest import command

COLUMNS = st.builds(ColumnWidth, st.integers(1, 30), st.integers(0, 60), st.booleans())


@given(st.lists(COLUMNS, min_size=1, max_size=5), st.integers(0, 120), st.integers(0, 4))
def test_widths_fit_if_the_numbers_do_and_numbers_are_never_shortened(columns, total, last):
    last %= len(columns)
    widths = fit_widths(columns, total, last)
    least = sum(max(1, column.cells if column.rigid else min(column.cells, 4)) for column in columns)
    assert sum(widths) <= max(total, least)
    for width, column in zip(widths, columns, strict=True):
        assert (column.cells if column.rigid else 1) <= width <= column.full
    if sum(column.full for column in columns) <= total:
        assert widths == [column.full for column in columns]
    # The value is shortened only after all other texts.
    if widths[last] < min(columns[last].cells, columns[last].full):
        others = [index for index in range(len(columns)) if index != last]
        assert all(widths[i] <= max(1, columns[i].cells if columns[i].rigid else 4) for i in others)


@pytest.mark.parametrize("width", [30, 40, 80, 120])
def test_the_value_is_visible_in_every_row(tmp_path, width):
    names = ["International Business Machines", "国際電気通信基礎技術研究所 大阪本社", "Bank of the West"]
    rows = [f"{name},{1_234_567_890 * i}.25,{'x' * 30}" for i, name in enumerate(names, 1)]
    (tmp_path / "t.csv").write_text("\n".join(["company name,net revenue in thousands,comment", *rows]) + "\n")
    arguments = ("--key", "company name", "--value", "net revenue in thousands", "--score", "spelling")
    out = command("ask", "t.csv", *arguments, "Bnak of the West", cwd=tmp_path, env={"COLUMNS": str(width)}).stdout
    evidence = out.split("net rev")[1].splitlines()[1:4]
    assert [line.split()[-1] for line in evidence] == ["3,703,703,670", "1,234,567,890", "2,469,135,780"]
    assert any("█" in line for line in evidence) == (width == 120)
