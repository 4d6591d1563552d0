r"""Cells of CSV files that people may open in a spreadsheet.

A spreadsheet takes a cell that begins with =, +, -, @, a tab or a carriage return for a formula, and users
can give their VMs such names. Such texts are written with a quote (') before them, which readers remove. In many
countries a spreadsheet splits lines at `;` and takes the quotes around a cell as part of it: so a quote is also written
after a `;`, a tab or a line end within a text, where a formula would begin. Every file is written by this module or
`central.tables.csv_files`.
"""

import csv
import io
import re
from collections.abc import Iterable

#: Written with one more quote, unless it is a `NUMBER`; quotes are counted, so that no two texts become one.
FORMULA = r"^'*[=+\-@\t\r]"
NUMBER = r"^[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?$"
#: Such a text as it was written; its group is the text without the quote.
QUOTED = r"^'('*[=+\-@\t\r])"
#: The same after each separator within a text; its groups are what is around the quote.
WITHIN = r"""([;\t\r\n])(["']*[=+\-@])"""
WITHIN_QUOTED = r"""([;\t\r\n])'(["']*[=+\-@])"""

_FORMULA, _NUMBER, _QUOTED = re.compile(FORMULA), re.compile(NUMBER), re.compile(QUOTED)
_WITHIN, _WITHIN_QUOTED = re.compile(WITHIN), re.compile(WITHIN_QUOTED)


def csv_cell(text: str) -> str:
    """Return a text as it is written into a cell."""
    text = _WITHIN.sub(r"\1'\2", text)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def csv_text(cell: str) -> str:
    """Return the text of a cell that was read."""
    return _QUOTED.sub(r"\1", _WITHIN_QUOTED.sub(r"\1\2", cell))


def csv_line(cells: Iterable[object]) -> str:
    """Return a line of a CSV file, with its end: texts, numbers, and None for nothing."""
    line = io.StringIO()
    written = (csv_cell(cell) if isinstance(cell, str) else cell for cell in cells)
    csv.writer(line, lineterminator="\r\n").writerow(written)  # so that it quotes both characters
    return line.getvalue().removesuffix("\r\n") + "\n"
