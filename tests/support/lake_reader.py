"""The lake as a reader that is not ours sees it: by the blocks of docs/open-the-lake.md, as they stand there."""

import collections
import re
from pathlib import Path

import polars as pl

from tests.support.doc_commands import ROOT

_PAGE = ROOT / "docs" / "open-the-lake.md"


def block(title: str) -> str:
    """Return the code of the page's section of this title."""
    text = _PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^## {title}$.*?^```\w+\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def by_polars(lake: str | Path) -> pl.LazyFrame:
    """Return the page's `windows` of a lake, a folder or URL."""
    scope: dict[str, pl.LazyFrame] = {}
    exec(block("Polars").replace("LAKE", str(lake)).replace("print(", "("), scope)  # noqa: S102 - the page's own code
    return scope["windows"]


def windows_by_polars(lake: str | Path, start_unix_ns: int) -> collections.Counter[tuple[str, int]]:
    """Return how often each (host, window's start after `start_unix_ns`) is there."""
    rows = by_polars(lake).select("host", pl.col("start_unix_ns") - start_unix_ns).collect()
    return collections.Counter(rows.iter_rows())
