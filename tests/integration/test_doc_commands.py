"""The commands of README.md and docs/, run as they stand there: each page in a folder of its own, in its order.

What is not run is in tests/doc_commands.toml, with the reason of each.
"""

import csv
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from central.incidents.store import IncidentStore
from central.lake.schema import SAMPLES
from central.lake.segments import Lake, segment_stem
from tests.support.doc_commands import ROOT, Script, all_scripts, exceptions
from tests.support.fleet_cli import samples

#: A file that a page shows: its name, then its content.
FILE = re.compile(r"`([\w-]+\.csv)`:\n\n```csv\n(.*?)```", re.DOTALL)
#: Of a page's own addresses; each run has others, because they may be taken.
ADDRESSES = ("localhost:7443", "127.0.0.1:7480")
DEADLINE_S = 400.0  # of a page, on a busy machine; quiet, the longest takes 45 s


def runnable() -> dict[str, list[Script]]:
    """The scripts that are run, by page."""
    left = exceptions()
    found: dict[str, list[Script]] = {}
    for script in all_scripts():
        if not any(row.covers(script) for row in left):
            found.setdefault(script.page, []).append(script)
    return found


def free_addresses() -> dict[str, str]:
    """Each of `ADDRESSES` with a port that is free now."""
    with socket.socket() as one, socket.socket() as other:
        for held in (one, other):
            held.bind(("127.0.0.1", 0))
        return {
            address: f"{address.rpartition(':')[0]}:{held.getsockname()[1]}"
            for address, held in zip(ADDRESSES, (one, other), strict=True)
        }


def write_runs(folder: Path) -> None:
    """RUNS.csv and ROWS.csv of docs/degradation.md: a queue whose latency goes with its idle share and its IPC."""
    chance = random.Random(1)
    names = ("scenario", "repetition", "vm", "phase", "at_s", "p95_latency_s", "ipc", "llc_mpki")
    more = ("memory_bandwidth_bytes_per_s", "total_stall_ratio", "guest_ratio")
    rows = []
    for scenario in range(2):
        for repetition in range(3):
            for at_s in range(12):
                stress = 0.0 if at_s < 4 else (0.2 + 0.2 * scenario) * chance.uniform(0.9, 1.1)
                busy = 0.3 * (1 + stress)
                latency = 0.004 / (1 - busy) * (1 + stress) * chance.uniform(0.97, 1.03)
                phase = "stress" if stress else "quiet"
                values = (1.2 / (1 + stress), 2 + 6 * stress, 1e9 * (1 + stress), 0.4 + 0.2 * stress, busy)
                rows.append((f"s{scenario}", repetition, "web", phase, at_s, latency, *values))
    for name, skipped in (("RUNS.csv", ()), ("ROWS.csv", ("p95_latency_s",))):
        with (folder / name).open("w", newline="") as file:
            table = csv.DictWriter(file, [n for n in (*names, *more) if n not in skipped], extrasaction="ignore")
            table.writeheader()
            table.writerows(dict(zip((*names, *more), row, strict=True)) for row in rows)


def write_state(folder: Path) -> None:
    """`state` of docs/operate.md, as central leaves it: a lake of one segment, and a history of incidents."""
    write_lake(folder / "state" / "lake")
    IncidentStore("", folder / "state").close()


def write_lake(folder: Path) -> None:
    """A lake of one segment."""
    now_ns = time.time_ns()
    rows = [{**dict.fromkeys(SAMPLES.names), **row} for row in samples("h1", "P", now_ns // 10**10 * 10**10, 1.0)]
    stem = segment_stem("r", "0123abcd", 1)
    Lake(folder).write_segment(pa.Table.from_pylist(rows, schema=SAMPLES), stem)


#: What pages take for granted is there.
GIVEN = {
    "docs/degradation.md": write_runs,
    "docs/open-the-lake.md": lambda folder: write_lake(folder / "LAKE"),
    "docs/operate.md": write_state,
}


def run_page(page: str, scripts: list[Script], folder: Path) -> list[tuple[Script, str]]:
    """Run all scripts of a page in one bash; what each printed. The first that fails is an AssertionError."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, content in FILE.findall(text):
        (folder / name).write_text(content, encoding="utf-8")
    GIVEN.get(page, lambda _folder: None)(folder)
    lines = ["set -eu"]
    for number, script in enumerate(scripts):
        lines += [f'printf {number} > "$AT/at"; exec > "$AT/out-{number}" 2> "$AT/err-{number}"', script.text]
    whole = "\n".join(lines)
    for address, other in free_addresses().items():
        whole = whole.replace(address, other)
    (folder / "page.sh").write_text(whole, encoding="utf-8")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in {"FORCE_COLOR", "CI"}},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "200",
        "NO_COLOR": "1",
        "AT": str(folder),
    }
    shell = subprocess.Popen(
        ["bash", folder / "page.sh"],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = shell.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        # Daemons that a page starts are in the session of its shell.
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(shell.pid, number)
            except ProcessLookupError:
                break
        shell.wait(10)
    reported = int((folder / "at").read_text())
    errors = (folder / f"err-{reported}").read_text(encoding="utf-8")[-2000:]
    assert code == 0, f"{scripts[reported].place}: exit code {code}\n{scripts[reported].text}\n{errors}"
    return [(script, (folder / f"out-{number}").read_text(encoding="utf-8")) for number, script in enumerate(scripts)]


def words_of(text: str) -> set[str]:
    """Words, without numbers: what a page's example and any other run have in common."""
    return set(re.findall(r"[A-Za-z][A-Za-z_-]{2,}", text))


@pytest.mark.long
@pytest.mark.alone  # daemons whose slots are 2 s long
@pytest.mark.parametrize("page", sorted(runnable()))
def test_the_pages_commands_work_and_print_what_it_says(page, tmp_path):
    for script, printed in run_page(page, runnable()[page], tmp_path):
        missing = words_of(script.output or "") - words_of(printed)
        assert missing == set(), f"{script.place}: the page says {sorted(missing)}, printed was\n{printed}"


@pytest.mark.long
def test_a_command_that_fails_or_prints_other_words_is_reported(tmp_path):
    scripts = [Script("docs/x.md", 3, "echo fine\n"), Script("docs/index.md", 7, "false\n")]
    with pytest.raises(AssertionError, match=re.escape("docs/index.md:7: exit code 1")):
        run_page("docs/index.md", scripts, tmp_path)
    assert words_of("VM one 1.5x\n") - words_of("VM two") == {"one"}
