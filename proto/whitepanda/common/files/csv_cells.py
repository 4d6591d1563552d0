r"""Cells of CSV files that people may open in a spreadsheet.

A spreadsheet evaluates a cell that begins with =, +, -, @, a tab or a carriage return as a formula, and users can give
their VMs such names: the writer puts a quote (') before such a text, and the reader removes it. In many locales a
spreadsheet also splits cells at `;`, so the writer puts a quote after each `;`, tab or line end inside a text if a
formula would begin there. All CSV files are written by this module or `central.tables.csv_files`.
"""

import csv
import io
import re
from collections.abc import Iterable

#: A text that gets a leading quote, unless it is a `NUMBER`. It may have leading quotes already, so that escaping is
#: reversible.
FORMULA = r"^'*[=+\-@\t\r]"
NUMBER = r"^[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?$"
#: An escaped text; the group is the text without the added quote.
QUOTED = r"^'('*[=+\-@\t\r])"
#: The same after a separator inside a text; the groups are the parts before and after the quote.
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
    """Return one line of a CSV file, with its line end. `cells`: texts, numbers, or None for an empty cell."""
    line = io.StringIO()
    written = (csv_cell(cell) if isinstance(cell, str) else cell for cell in cells)
    csv.writer(line, lineterminator="\r\n").writerow(written)  # so that it quotes both characters
    return line.getvalue().removesuffix("\r\n") + "\n"
