"""What the history on the host costs: CPU and memory of the agent with and without it, and bytes on disk per value.

Both agents run at the same time, each in a process of its own, on the same simulated VMs of 8 vCPUs. Bytes are those
of frames behind the first one of a file, which has the names: that one is printed too.

    python -m bench.agent_cost.history [--vms 100] [--seconds 100] [--json]
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.agent_cost.tick import ROOT, VCPUS, rss_mib

WARM_UP_S = 5.0
BARS = {"core_percent_more": 0.3, "rss_mb_more": 10.0}


def child(vms: int, seconds: float, days: float) -> None:
    """The daemon itself; prints one JSON object."""
    from agent.config import load
    from agent.daemon import Daemon
    from whitepanda.common import log

    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        rows = [f'[[vms]]\nname = "vm{i:04d}"\njob = "job{i % 20}"\nvcpus = {VCPUS}\n' for i in range(vms)]
        (base / "scenario.toml").write_text(f"seed = 1\n[host]\ncpus = {min(4096, vms * VCPUS)}\n" + "\n".join(rows))
        (base / "agent.toml").write_text(
            f"""
            [agent]
            host = "bench"
            state_dir = "{base}"
            socket = "{base}/agent.sock"
            [history]
            days = {days}
            [sources.simulated]
            mode = "required"
            scenario = "{base}/scenario.toml"
            """
        )
        log.configure("error")
        daemon = Daemon(load(base / "agent.toml"))
        spent: dict[str, float] = {}

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(
                WARM_UP_S, lambda: spent.update(begin=time.process_time(), ticks=daemon.state.schedule.ticks)
            )
            loop.call_later(WARM_UP_S + seconds, daemon.stop)
            await daemon.run()

        asyncio.run(main())
        ticks = daemon.state.schedule.ticks - spent["ticks"]
        cpu_s = time.process_time() - spent["begin"]
        found: dict[str, Any] = {"core_percent": 100 * cpu_s / ticks, "rss_mb": rss_mib() * 2**20 / 1e6, "ticks": ticks}
        if days:
            found |= sizes(base / "history", vms)
        print(json.dumps(found))


def sizes(folder: Path, vms: int) -> dict[str, float]:
    """Return bytes per value that is known, of ticks and of windows."""
    from agent.history.reader import History
    from agent.history.replay import ticks_of
    from agent.history.segments import segments
    from agent.history.window_moments import windows_of
    from whitepanda.v1 import host_pb2

    found = {}
    for kind, moments_of in (("ticks", ticks_of), ("windows", windows_of)):
        rest_bytes = rest_frames = first_bytes = 0
        for segment in segments(folder / kind):
            lengths = frame_bytes(segment.path.read_bytes())
            first_bytes += lengths[0]
            rest_bytes += sum(lengths[1:])
            rest_frames += len(lengths) - 1
        moment = list(moments_of(segments(folder / kind)[-1]))[-1].make(None, "")
        known = sum(not metric.reason for vm in moment.vms.vms for metric in vm.metrics)
        found |= {
            f"{kind}_bytes_per_value": rest_bytes / rest_frames / known,
            f"{kind}_values_per_vm": known / vms,
            f"{kind}_bytes_of_first_frames": first_bytes,
            f"{kind}_bytes_per_frame": rest_bytes / rest_frames,
        }
    began = time.thread_time()
    answer = History(folder).moments(host_pb2.GetMomentsRequest(at_unix_ns=time.time_ns(), before=60))
    found["read_60_moments_ms"] = 1e3 * (time.thread_time() - began) * 61 / len(answer.moments)
    return found


def frame_bytes(data: bytes) -> list[int]:
    """Return the bytes of each frame of a file, its head included."""
    at, lengths = 8, []
    while at < len(data):
        length = 25 + int.from_bytes(data[at : at + 4], sys.byteorder)
        lengths.append(length)
        at += length
    return lengths


def spawn(vms: int, seconds: float, days: float) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "bench.agent_cost.history", "--child", str(days)]
    arguments += ["--vms", str(vms), "--seconds", str(seconds)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vms", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", type=float)
    options = parser.parse_args()
    if options.child is not None:
        child(options.vms, options.seconds, options.child)
        return
    both = {name: spawn(options.vms, options.seconds, days) for name, days in (("with", 7.0), ("without", 0.0))}
    results = {name: json.loads(one.communicate()[0].splitlines()[-1]) for name, one in both.items()}
    more = {f"{key}_more": results["with"][key] - results["without"][key] for key in ("core_percent", "rss_mb")}
    if options.json:
        print(json.dumps(results | more, indent=2))
        return
    for name, row in results.items():
        print(f"{name:8} history: {row['core_percent']:.2f} % of a core, {row['rss_mb']:.0f} MB, {row['ticks']} ticks")
    for key, bar in BARS.items():
        print(f"{'met ' if more[key] <= bar else 'MISSED'} {key}: {more[key]:.2f}, bar {bar:g}")
    kept = results["with"]
    for kind, per_day in (("ticks", 0), ("windows", 8640)):
        size, first = kept[f"{kind}_bytes_per_frame"], kept[f"{kind}_bytes_of_first_frames"]
        of = f"{kept[f'{kind}_bytes_per_value']:.2f} bytes per value, {kept[f'{kind}_values_per_vm']:.0f} values per VM"
        per = f", {size * per_day / 1e6:.0f} MB per day" if per_day else ""
        print(f"{kind}: {of}, {size / 1e3:.1f} kB per frame{per}; first frames {first / 1e3:.1f} kB")
    print(f"a minute of ticks is read in {kept['read_60_moments_ms']:.0f} ms of CPU")


if __name__ == "__main__":
    main()
