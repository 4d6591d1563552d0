"""What the analysis costs per tick for a host of 100 VMs, beside a plain loop, and how it grows with the VMs.

`whole_*` is all that the daemon does of it each tick: from the VMs' rates to estimates by the packaged model, decisions
and events. `detector_*` is the detector alone.

Three hosts: quiet, one where a VM disturbs all others (every one a victim with its reasons: the worst), and the quiet
one with ten times the VMs. The yardstick is a loop in plain Python that only keeps, per VM and signal, the moving
average that any baseline needs.

    python -m bench.agent_cost.analysis [--vms 100] [--ticks 60] [--json]
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from agent.analysis.detectors.detector import Detector, DetectorSettings
from agent.analysis.detectors.paper_detector import PaperDetector, PaperSettings
from agent.analysis.signals import INDEX, SIGNALS, SUMS, Tick, VmKey, set_others
from agent.antagonists.decide_victims import Decisions
from agent.config import AgentConfig, AgentSection, CloudWhiteSection
from agent.detection.cloud_white import CloudWhite
from agent.detection.degradation_models import load
from agent.sampling.metric_table import VmRates
from collector.base import Reason

BAR_MS = 3.0
LEARNING_TICKS = 40


def host(vms: int, ticks: int, *, disturbed: bool) -> list[Tick]:
    rng, looks = np.random.default_rng(1), np.random.default_rng(2)
    keys = tuple(VmKey(f"00000000-0000-4000-8000-{number:012d}", "e", 8) for number in range(vms))
    usual = np.exp(rng.normal(size=(vms, len(SIGNALS))))
    usual[:, [INDEX[name] for name in ("guest_ratio", "memory_stall_ratio", "total_stall_ratio")]] = 0.2
    result = []
    for at in range(LEARNING_TICKS + ticks):
        values = usual * np.exp(0.02 * rng.normal(size=usual.shape))
        if disturbed and at >= LEARNING_TICKS:
            values[0, INDEX["gips"]] *= 5
            values[1:, INDEX["ipc"]] /= 1.3
        set_others(values)
        result.append(Tick(float(at), keys, values, looks.binomial(8, 0.2, vms).astype(np.float64)))
    return result


def plain_loop() -> Callable[[Tick], None]:
    kept: dict[tuple[str, int], float] = {}

    def step(tick: Tick) -> None:
        for key, row in zip(tick.vms, tick.values.tolist(), strict=True):
            for column, value in enumerate(row):
                if not math.isnan(value):
                    last = kept.get((key.uuid, column), value)
                    kept[key.uuid, column] = last + 0.003 * (value - last)

    return step


@cache
def identity_of(key: VmKey) -> Any:
    """Return the one identity of a VM: the daemon keeps it until something of it changes."""
    return SimpleNamespace(uuid=key.uuid, epoch=key.epoch, vcpus=key.vcpus, name=key.uuid, state="running")


def as_vms(tick: Tick) -> list[Any]:
    """Make what the daemon has of VMs, with these signals as their rates."""
    vms = []
    assert tick.vcpus_running is not None  # `host` makes them
    for key, row, looked in zip(tick.vms, tick.values.tolist(), tick.vcpus_running.tolist(), strict=True):
        known = {name: row[column] for name, column in INDEX.items() if name in VmRates._fields}
        known["vcpus_running"] = int(looked)
        for name, parts in SUMS.items():
            known |= dict.fromkeys(parts, row[INDEX[name]] / 2)
        rates = VmRates(*(known.get(name, Reason.NOT_PRESENT) for name in VmRates._fields))
        identity = identity_of(key)
        vms.append(
            SimpleNamespace(identity=identity, job="job", latency_sensitive=True, workers=None, rates=rates, alert=True)
        )
    return vms


def whole_ms(ticks: list[Tick]) -> float:
    """Median CPU time of all that the daemon does of the analysis in a tick, after the learning."""
    section = CloudWhiteSection()
    analysis = CloudWhite(section, load(section.models))
    decisions = Decisions(AgentConfig(agent=AgentSection()), analysis, None)
    spent = []
    for at, tick in enumerate(ticks):
        vms, now_ns = as_vms(tick), round(tick.at_s * 1e9) + 1
        begun = time.process_time()
        analysis.tick(vms, Reason.NOT_PRESENT, now_ns, now_ns)
        decisions.tick(vms, now_ns, now_ns)
        decisions.events.take()
        if at >= LEARNING_TICKS + 5:
            spent.append(time.process_time() - begun)
    return statistics.median(spent) * 1e3


def cost_ms(step: Callable[[Tick], object], ticks: list[Tick]) -> float:
    """Median CPU time of a tick, after the learning."""
    spent = []
    for at, tick in enumerate(ticks):
        begun = time.process_time()
        step(tick)
        if at >= LEARNING_TICKS + 5:
            spent.append(time.process_time() - begun)
    return statistics.median(spent) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vms", type=int, default=100)
    parser.add_argument("--ticks", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    quiet, disturbed = (host(given.vms, given.ticks, disturbed=flag) for flag in (False, True))
    many = host(given.vms * 10, given.ticks // 2, disturbed=False)
    numbers = {
        "whole_quiet_ms": whole_ms(quiet),
        "whole_all_victims_ms": whole_ms(disturbed),
        "detector_quiet_ms": cost_ms(Detector(DetectorSettings()).step, quiet),
        "detector_all_victims_ms": cost_ms(Detector(DetectorSettings()).step, disturbed),
        "paper_detector_ms": cost_ms(PaperDetector(PaperSettings(baseline_ticks=30)).step, quiet),
        "plain_loop_ms": cost_ms(plain_loop(), quiet),
        "detector_ten_times_the_vms_ms": cost_ms(Detector(DetectorSettings()).step, many),
    }
    numbers["quiet_over_plain_loop"] = numbers["detector_quiet_ms"] / numbers["plain_loop_ms"]
    numbers["growth_for_ten_times_the_vms"] = numbers["detector_ten_times_the_vms_ms"] / numbers["detector_quiet_ms"]
    if given.json:
        print(json.dumps(numbers))
        return
    print(f"{given.vms} VMs, {len(SIGNALS)} signals, CPU time per tick (median of {given.ticks - 5})")
    for name, value in numbers.items():
        print(f"  {name:34s} {value:8.2f}")
    worst = numbers["whole_all_victims_ms"]
    print(f"  bar for the whole analysis, every VM a victim: {BAR_MS} ms {'met' if worst <= BAR_MS else 'MISSED'}")


if __name__ == "__main__":
    main()
