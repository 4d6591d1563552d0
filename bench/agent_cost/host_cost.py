"""What watching a host of 43 VMs costs, beside collectd: 3 running guests and 40 paused ones, 1 s, on this machine.

Counted is the CPU time of the watcher itself and of what it makes others do: libvirtd, ovsdb-server, ovs-vswitchd and
QEMU (its threads other than vCPUs, where its monitor is answered). Windows alternate, idle - whitepanda - collectd,
and the idle one before is subtracted. Both watchers run at 1 s; collectd with its plugins virt (at their defaults, so
the fewest statistics, unless --extra-stats) and ovs_stats, writing CSV files. whitepanda asks paused VMs for their
disks in one of ten periods only, which 40 of these 43 are. Needs root, the lab's packages (tests/lab/packages.sh),
collectd-core and libyajl2.

    python -m bench.agent_cost.host_cost [--seconds 60] [--rounds 3] [--paused 40] [--extra-stats] [--json]
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "tests" / "lab"
STATE = Path(os.environ.get("WHITEPANDA_LAB", "/var/lib/whitepanda-lab"))
BAR = 0.5
SETTLE_S = 8.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SERVERS = ("libvirtd", "ovsdb", "vswitchd")

COLLECTD = """
Hostname "lab"
FQDNLookup false
BaseDir "{folder}"
PIDFile "{folder}/collectd.pid"
PluginDir "/usr/lib/collectd"
TypesDB "/usr/share/collectd/types.db"
Interval 1
LoadPlugin logfile
<Plugin logfile>
  LogLevel warning
  File "{folder}/collectd.log"
</Plugin>
LoadPlugin csv
<Plugin csv>
  DataDir "{folder}/csv"
  StoreRates false
</Plugin>
LoadPlugin virt
<Plugin virt>
  Connection "qemu:///system"
  RefreshInterval 60
  HostnameFormat name
  {extra}
</Plugin>
LoadPlugin ovs_stats
<Plugin ovs_stats>
  Socket "/run/openvswitch/db.sock"
  Bridges "wplab0"
</Plugin>
"""
EXTRA = 'ExtraStats "cpu_util disk disk_err domain_state pcpu vcpu"'

AGENT = """
[agent]
host = "bench"
state_dir = "{folder}/state"
socket = "{folder}/agent.sock"
log_level = "warning"
[uplink]
address = "127.0.0.1:9"
"""


def task_ticks(path: Path) -> int:
    """CPU time of a process or thread, in clock ticks; 0 where it has ended."""
    try:
        fields = (path / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def qemu_ticks() -> int:
    """CPU time of all lab VMs' QEMUs less that of their vCPU threads: where monitors are answered."""
    total = 0
    for file in Path("/run/libvirt/qemu").glob("wplab-*.pid"):
        with contextlib.suppress(OSError, ValueError):
            process = Path("/proc") / file.read_text().strip()
            vcpus = [t for t in (process / "task").iterdir() if (t / "comm").read_text().startswith("CPU ")]
            # The process's own time has that of threads that have ended too: QEMU's workers come and go.
            total += task_ticks(process) - sum(task_ticks(task) for task in vcpus)
    return total


class Meter:
    """CPU seconds by part over a window."""

    def __init__(self, watcher: int | None) -> None:
        self._processes = {
            name: Path("/proc") / (STATE / "run" / f"{name}.pid").read_text().strip() for name in SERVERS
        }
        if watcher is not None:
            self._processes["watcher"] = Path("/proc") / str(watcher)
        self._start = self._read()

    def _read(self) -> dict[str, int]:
        return {**{name: task_ticks(path) for name, path in self._processes.items()}, "qemu": qemu_ticks()}

    def stop(self) -> dict[str, float]:
        now = self._read()
        return {name: (now[name] - self._start[name]) / TICKS_PER_S for name in now}


@contextlib.contextmanager
def idle(_folder: Path) -> Iterator[int | None]:
    yield None


@contextlib.contextmanager
def started(command: list[str], log: Path) -> Iterator[int]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process.pid
        if process.poll() is not None:
            sys.exit(f"{command[0]} ended: {log.read_text()[-1000:]}")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def whitepanda(folder: Path) -> contextlib.AbstractContextManager[int]:
    (folder / "agent.toml").write_text(AGENT.format(folder=folder))
    program = str(Path(sys.executable).parent / "whitepanda")
    return started([program, "agent", "run", "-c", str(folder / "agent.toml")], folder / "agent.log")


def collectd(folder: Path, extra: str) -> contextlib.AbstractContextManager[int]:
    (folder / "collectd.conf").write_text(COLLECTD.format(folder=folder, extra=extra))
    return started(["collectd", "-C", str(folder / "collectd.conf"), "-f"], folder / "collectd.out")


def window(
    watch: Callable[[Path], contextlib.AbstractContextManager[int | None]], folder: Path, seconds: float
) -> tuple[dict[str, float], dict[str, Any]]:
    """Run one watcher for a window; return CPU seconds by part, and what else is worth telling."""
    with watch(folder) as pid:
        time.sleep(SETTLE_S)
        meter = Meter(pid)
        time.sleep(seconds)
        spent = meter.stop()
        known: dict[str, Any] = {}
        if pid is not None:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            known["rss_mib"] = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        if (folder / "agent.sock").exists():
            known["live"] = liveness(folder)
    return spent, known


def liveness(folder: Path) -> dict[str, Any]:
    """How old the agent's values are, and which it has: what collectd's cannot match."""
    program = str(Path(sys.executable).parent / "whitepanda")
    done = subprocess.run(
        [program, "vms", "--json", "--socket", str(folder / "agent.sock")], capture_output=True, text=True, check=True
    )
    vms = json.loads(done.stdout)["vms"]
    ages: dict[str, list[float]] = {}
    for vm in vms:
        for name, metric in vm["metrics"].items():
            if metric["value"] is not None:
                ages.setdefault(name, []).append(metric["age_s"])
    keys = ("cpu_usage_cores", "network_receive_bytes_per_s", "disk_write_bytes_per_s")
    return {
        "vms": len(vms),
        "metrics_known": len(ages),
        **{f"{key}_oldest_s": round(max(ages[key]), 2) for key in keys if key in ages},
    }


def bring_up(paused: int) -> None:
    subprocess.run([LAB / "down.sh"], check=True)  # other VMs of the lab would be counted too
    subprocess.run([LAB / "up.sh", "idle", "idle", "idle"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([LAB / "paused.sh", str(paused)], check=True, stdout=subprocess.DEVNULL)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    extra = EXTRA if options.extra_stats else ""
    kinds: dict[str, Callable[[Path], contextlib.AbstractContextManager[int | None]]] = {
        "whitepanda": whitepanda,
        "collectd": lambda folder: collectd(folder, extra),
    }
    caused: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    known: dict[str, dict[str, Any]] = {name: {} for name in kinds}
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(options.rounds):
            folder = Path(temporary)
            (folder / str(number)).mkdir()
            quiet, _ = window(idle, folder, options.seconds)
            for name, watch in kinds.items():
                own = folder / str(number) / name
                own.mkdir()
                spent, known[name] = window(watch, own, options.seconds)
                caused[name].append({part: value - quiet.get(part, 0.0) for part, value in spent.items()})
                print(f"round {number + 1}, {name}: {sum(caused[name][-1].values()):.2f} CPU s", file=sys.stderr)
    per_minute = 60 / options.seconds
    result: dict[str, Any] = {
        name: {
            "cpu_s_per_minute": {
                part: round(statistics.fmean(row[part] for row in rows) * per_minute, 3) for part in rows[0]
            },
            "total_s_per_minute": [round(sum(row.values()) * per_minute, 3) for row in rows],
            **known[name],
        }
        for name, rows in caused.items()
    }
    ratios = [
        sum(whitepanda.values()) / sum(theirs.values())
        for whitepanda, theirs in zip(caused["whitepanda"], caused["collectd"], strict=True)
    ]
    result["ratio"] = round(statistics.fmean(ratios), 3)
    result["ratios"] = [round(ratio, 3) for ratio in ratios]
    return result


def show(result: dict[str, Any], paused: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"CPU seconds per minute, 3 running and {paused} paused VMs, 1 s, idle subtracted")
    parts = ("watcher", *SERVERS, "qemu")
    for column in ("", *parts, "total", "RSS"):
        table.add_column(column, justify="left" if not column else "right")
    for name in ("whitepanda", "collectd"):
        row: dict[str, Any] = result[name]
        spent: dict[str, float] = row["cpu_s_per_minute"]
        cells = [f"{spent[part]:.2f}" for part in parts]
        table.add_row(name, *cells, f"{sum(spent.values()):.2f}", f"{row['rss_mib']:.0f} MiB")
    console = Console()
    console.print(table)
    console.print(f"whitepanda's values: {result['whitepanda']['live']}")
    ratio = float(result["ratio"])
    console.print(f"{'met ' if ratio <= BAR else 'MISSED'} {ratio:.2f}x of collectd ({result['ratios']}), bar {BAR}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--paused", type=int, default=40)
    parser.add_argument("--extra-stats", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("host_cost: only root can run the lab")
    if shutil.which("collectd") is None:
        sys.exit("host_cost: no collectd; apt-get install --no-install-recommends collectd-core libyajl2")
    try:
        bring_up(options.paused)
        result = measure(options)
    finally:
        subprocess.run([LAB / "down.sh"], check=True)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        show(result, options.paused)


if __name__ == "__main__":
    main()
