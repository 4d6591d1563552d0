"""DuckDB in this process, opened here and nowhere else: it prints nothing and fetches nothing.

On a terminal, and where Python has no script (-c), DuckDB draws a bar on standard output during long queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

__all__ = ["connect"]


def connect(**settings: str | bool | float | list[str]) -> duckdb.DuckDBPyConnection:
    """Open a database in memory.

    Args:
        settings: DuckDB's own, such as `memory_limit` or `threads`.

    Raises:
        duckdb.Error: a setting that there is not, or a value that it cannot have.

    """
    import duckdb  # noqa: PLC0415 - takes 0.1 s; the daemon opens none before its first build

    connection = duckdb.connect(config={**settings, "autoinstall_known_extensions": False})
    connection.execute("SET enable_progress_bar = false")  # DuckDB takes no such setting before it is open
    return connection
