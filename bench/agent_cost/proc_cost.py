"""Cost of the shipped sources on the real /proc: sleeping processes of 8 threads as VMs, sampled each second.

The whole agent runs as on a host, with procfs and cgroup required, the others as they come (perf by what this machine's
PMU allows); libvirt's status files name the processes. Beside it, in the same run: the two sources alone, and plain
psutil reading the same threads' times, each in a process of its own. Bar: the agent takes at most 2 % of one core, and
ten times as many VMs cost at most eleven times as much.

    python -m bench.agent_cost.proc_cost [--vms 100] [--seconds 60] [--json]
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VCPUS = 8
GROWTH = 10
GROWTH_FROM = 30  # a thousand processes are many for a small machine: growth is shown from 30 to 300 VMs
WARM_UP_S = 12  # a NUMA poll of every VM, and the first windows
BAR_PERCENT = 2.0
BAR_GROWTH = 11.0

SLEEPER = f"""
import sys, threading, time
threading.stack_size(65536)
for _ in range({VCPUS - 1}):
    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
print("up", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def groups(pids: list[int]) -> Iterator[int]:
    """Put each process in a control group of its own, named as libvirt's are, in every hierarchy that counts."""
    from collector.cgroup.tree import CgroupTree

    made: list[Path] = []
    try:
        with contextlib.suppress(OSError):
            for mount in CgroupTree().mounts():
                if mount.controllers and not mount.controllers & {"cpu", "memory"}:
                    continue
                for number, pid in enumerate(pids):
                    group = Path(mount.point, f"qemu-{number}-whitepanda-bench-{os.getpid()}.libvirt-qemu")
                    group.mkdir()
                    made.append(group)
                    (group / "cgroup.procs").write_text(str(pid))
        yield len(made)
    finally:
        for group in made:
            for process in (group / "cgroup.procs").read_text().split():
                (group.parent / "cgroup.procs").write_text(process)
            group.rmdir()


@contextlib.contextmanager
def sleepers(count: int, folder: Path) -> Iterator[None]:
    """Start the processes and write a status file for each, as libvirt would."""
    processes = []
    try:
        for number in range(count):
            uuid = f"00000000-0000-4000-8000-{number:012d}"
            command = [sys.executable, "-S", "-E", "-c", SLEEPER, "-uuid", uuid]
            processes.append((uuid, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)))
        for number, (uuid, process) in enumerate(processes):
            assert process.stdout is not None
            process.stdout.readline()
            tids = sorted(int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir())
            vcpus = "".join(f"<vcpu id='{index}' pid='{tid}'/>" for index, tid in enumerate(tids))
            (folder / f"vm{number}.xml").write_text(
                f"<domstatus state='running' pid='{process.pid}'><vcpus>{vcpus}</vcpus><domain type='kvm'>"
                f"<name>vm{number}</name><uuid>{uuid}</uuid></domain></domstatus>"
            )
        with groups([process.pid for _, process in processes]) as made:
            if not made:
                print("no control groups can be made here: the cgroup source has little to read", file=sys.stderr)
            yield
    finally:
        for _, process in processes:
            process.kill()
        for _, process in processes:
            process.communicate()


def rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def report(cpu_s: float, seconds: float, **more: float) -> None:
    print(json.dumps({"core_percent": cpu_s / seconds * 100, "rss_mib": rss_mib(), **more}), flush=True)


def child_agent(state_dir: Path, seconds: float) -> None:
    from agent.config import load
    from agent.daemon import Daemon
    from collector.base import Reason
    from whitepanda.common import log

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "agent.toml").write_text(
            f"""
            [agent]
            host = "bench"
            state_dir = "{folder}"
            socket = "{folder}/agent.sock"
            [sources]
            libvirt.mode = "off"
            libvirt.state_dir = "{state_dir}"
            procfs.mode = "required"
            cgroup.mode = "required"
            qemu.mode = "off"
            [uplink]
            address = "127.0.0.1:9"
            """
        )
        log.configure("error")
        daemon = Daemon(load(Path(folder) / "agent.toml"))
        spent: dict[str, float] = {}

        def note(key: str) -> None:
            spent[key], spent[f"{key}_at"] = time.process_time(), time.monotonic()

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(WARM_UP_S, note, "start")
            loop.call_later(WARM_UP_S + seconds, note, "end")
            loop.call_later(WARM_UP_S + seconds, daemon.stop)
            await daemon.run()

        table = daemon.state.pipeline.table
        asyncio.run(main())
        seconds = spent["end_at"] - spent["start_at"]
        known = {
            f"vms_with_{name}": sum(not isinstance(getattr(vm.rates, name), Reason) for vm in table)
            for name in ("cpu_usage_cores", "guest_ratio", "pressure_cpu_some_ratio", "memory_charged_bytes")
        }
        report(spent["end"] - spent["start"], seconds, vms=len(table), **known)


def loop(seconds: float, work: Callable[[], Any], **more: float) -> None:
    """Do only `work`, each second."""
    due = time.monotonic()
    begin = cpu_s = 0.0
    for tick in range(WARM_UP_S + int(seconds)):
        if tick == WARM_UP_S:
            begin, cpu_s = time.monotonic(), time.process_time()
        work()
        due += 1
        time.sleep(max(0.0, due - time.monotonic()))
    report(time.process_time() - cpu_s, time.monotonic() - begin, **more)


def child_sources(state_dir: Path, seconds: float) -> None:
    """Read procfs and cgroup, in turn, in one thread."""
    from collector.cgroup.source import CgroupSource
    from collector.inventory.inventory import Inventory
    from collector.procfs.source import ProcfsSource

    inventory = Inventory(str(state_dir), fresh_s=0.04)  # as the agent makes it
    sources = (ProcfsSource(inventory), CgroupSource(inventory))
    for source in sources:
        source.open()
    loop(seconds, lambda: [source.sample() for source in sources], vms=len(inventory.vms()))


def child_psutil(state_dir: Path, seconds: float) -> None:
    """Read the same threads' CPU times with plain psutil: no wait, no pressures, no rates."""
    import psutil

    from collector.inventory.inventory import Inventory

    processes = [psutil.Process(vm.pid) for vm in Inventory(str(state_dir)).vms()]
    last: dict[int, float] = {}

    def work() -> None:
        for process in processes:
            for thread in process.threads():
                last[thread.id] = thread.user_time + thread.system_time

    loop(seconds, work, vms=len(processes))


CHILDREN = {"agent": child_agent, "sources": child_sources, "psutil": child_psutil}


def run(kind: str, state_dir: Path, seconds: float) -> dict[str, float]:
    arguments = [
        *(sys.executable, __file__, "--child", kind),
        *("--state-dir", str(state_dir), "--seconds", str(seconds)),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(vms: int, seconds: float, kinds: tuple[str, ...]) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder, sleepers(vms, Path(folder)):
        return {kind: run(kind, Path(folder), seconds) for kind in kinds}


def show(results: dict[str, dict[str, dict[str, float]]]) -> None:
    base = results["main"]["psutil"]["core_percent"]
    reported = {key: value for key, value in results["main"]["agent"].items() if key.startswith("vms_")}
    print(
        "VMs for which the agent knows "
        + ", ".join(f"{key.removeprefix('vms_with_')}: {value:.0f}" for key, value in reported.items())
    )
    print(f"{'':24} {'VMs':>5} {'of a core':>10} {'RSS':>9} {'vs psutil':>10}")
    for part, rows in results.items():
        for kind, row in rows.items():
            ratio = f"{row['core_percent'] / base:9.2f}x" if part == "main" else ""
            line = f"{kind:24} {row['vms']:5.0f} {row['core_percent']:8.2f} % {row['rss_mib']:5.0f} MiB {ratio}"
            print(line)
    agent = results["main"]["agent"]["core_percent"]
    print(f"{'met ' if agent <= BAR_PERCENT else 'MISSED'} agent: {agent:.2f} % of one core, bar {BAR_PERCENT} %")
    few, many = (results[part]["agent"]["core_percent"] for part in ("few", "many"))
    growth = many / few
    print(f"{'met ' if growth <= BAR_GROWTH else 'MISSED'} growth at x{GROWTH} VMs: {growth:.2f}x, bar {BAR_GROWTH:g}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vms", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=CHILDREN)
    parser.add_argument("--state-dir", type=Path)
    options = parser.parse_args()
    if options.child:
        CHILDREN[options.child](options.state_dir, options.seconds)
        return
    short = options.seconds / 2
    results = {
        "main": measure(options.vms, options.seconds, ("agent", "sources", "psutil")),
        "few": measure(GROWTH_FROM, short, ("agent",)),
        "many": measure(GROWTH_FROM * GROWTH, short, ("agent",)),
    }
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        show(results)


if __name__ == "__main__":
    main()
