"""For tests of `whitepanda fleet`: the command in this process, tables to give it, and a lake."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from central.cli import fleet as command
from central.cli.shared import fleet_tables, outputs
from central.lake.schema import SAMPLES
from central.lake.segments import DAY_NS, Lake, segment_stem
from whitepanda.common import cli
from whitepanda.common.cli import PlainConsole

HEADER = "job,weight,mean,std,instances,cost"
PAPER = f"{HEADER}\ncompute,0.5,100,7.4,1500,1\nnetwork,0.5,100,17.5,1500,1\n"


@pytest.fixture
def run(capsys, monkeypatch):
    """The exit code, standard output and standard error of `whitepanda fleet ...`."""

    def call(*arguments, width=120):
        monkeypatch.setattr(sys, "argv", ["whitepanda", "fleet", *map(str, arguments)])
        for module in (fleet_tables, outputs):
            monkeypatch.setattr(module, "console", PlainConsole(width=width))
        monkeypatch.setattr(cli, "errors", PlainConsole(stderr=True, width=200))
        monkeypatch.setattr(cli, "build", _app)
        try:
            cli.main()
        except SystemExit as error:
            code = error.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return call


def _app():
    """One command, whatever entry points this environment knows."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    app.add_typer(command.app, name="fleet")
    return app


def write(path, text):
    path.write_text(text)
    return path


def rows_file(path, seed=0, gain=1.0, machines=range(30), column="ipc", extra=None):
    rng = np.random.default_rng(seed)
    names = [f"m{m}" for m in machines for _ in "ab"]
    job = ["a", "b"] * len(machines)
    value = np.where(np.array(job) == "a", 1.0, 2.0) * np.exp(0.05 * rng.standard_normal(len(job))) * gain
    table = pa.table({"machine": names, "job": job, column: value, **(extra(job) if extra else {})})
    pq.write_table(table, path)
    return path


def samples(host, platform, start_ns, ipc, jobs=("a", "b")):
    rows = []
    for k, job in enumerate(jobs):
        known = {"host": host, "spool_id": "s", "sequence": start_ns // 10**9, "machine": host, "vm": f"{host}-{job}"}
        known |= {"epoch": "e", "job": job, "platform": platform, "latency_sensitive": False, "start_unix_ns": start_ns}
        known |= {"duration_ns": 10**10, "cpu_usage_cores": 1.0 + k, "cpi": 1 / ipc}
        rows.append(known | {"cycles": 10**9, "instructions": round(ipc * 10**9)})
    return rows


@pytest.fixture
def lake(tmp_path):
    """Day 0: all hosts alike, odd ones of platform Q. Day 1: hosts 0 to 9 have 10 % more IPC."""
    rng = np.random.default_rng(0)
    rows = []
    for day in (0, 1):
        for host in range(40):
            for window in (1, 2):
                ipc = (1.1 if day and host < 10 else 1.0) * np.exp(0.02 * rng.standard_normal())
                rows += samples(f"h{host:02}", "PQ"[host % 2], day * DAY_NS + window * 10**10, ipc)
    table = pa.Table.from_pylist([{**dict.fromkeys(SAMPLES.names), **row} for row in rows], schema=SAMPLES)
    Lake(tmp_path / "lake").write_segment(table, segment_stem("r", "0123abcd", 1))
    (tmp_path / "test.csv").write_text("machine\n" + "".join(f"h{host:02}\n" for host in range(10)))
    return tmp_path / "lake"
