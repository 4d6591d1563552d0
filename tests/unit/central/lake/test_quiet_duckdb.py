"""DuckDB says nothing on a terminal, and is opened in one place only."""

import ast
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from central.build.engine import Engine
from central.lake import duckdb_connection

ROOT = Path(__file__).parents[4]

PROGRAM = """
import duckdb
from central.lake import duckdb_connection

connection = {}.connect()
is_on = connection.execute("SELECT current_setting('enable_progress_bar')").fetchall()[0][0]
connection.execute("SET progress_bar_time = 0")  # at once, not after 2 s; this turns the bar on
connection.execute("SET enable_progress_bar = " + str(is_on))
print("begin", flush=True)
connection.execute("SELECT sum(hash(i)) FROM range(3000000) t(i)").fetchall()
"""


def shown(program: str) -> bytes:
    """What a program shows on a terminal."""
    ours, terminal = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", program], stdout=terminal, stderr=terminal, cwd=ROOT)
    os.close(terminal)
    reported = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:  # the terminal's other end is closed
            break
        reported += piece
    os.close(ours)
    assert process.wait() == 0, reported
    return reported


@pytest.mark.parametrize(
    ("opened_by", "is_quiet"),
    [("duckdb_connection", True), ("duckdb", False)],  # the latter shows that there would be something
)
def test_a_long_query_shows_nothing_on_a_terminal(opened_by, is_quiet):
    reported = shown(PROGRAM.format(opened_by)).partition(b"begin\r\n")[2]
    assert (reported == b"") == is_quiet


def test_engines_are_quiet_and_fetch_nothing(tmp_path):
    query = "SELECT current_setting('enable_progress_bar'), current_setting('autoinstall_known_extensions')"
    with duckdb_connection.connect() as connection:
        assert connection.execute(query).fetchall() == [(False, False)]
    with Engine(memory_limit_mib=128, threads=1, spill_dir=tmp_path / "spill") as engine:
        assert engine.connection.con.execute(query).fetchall() == [(False, False)]


def test_nothing_else_opens_duckdb():
    found = [
        (path.relative_to(ROOT).as_posix(), ast.unparse(node.func))
        for folder in ("agent", "bench", "central", "collector")
        for path in (ROOT / folder).rglob("*.py")
        if "duckdb" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(("duckdb.connect", "duckdb_connection.connect"))
    ]
    elsewhere = [each for each in found if each[1] != "duckdb_connection.connect"]
    assert elsewhere == [("central/lake/duckdb_connection.py", "duckdb.connect")]
    assert len(found) > len(elsewhere)
