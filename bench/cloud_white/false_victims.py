"""How often a VM is called a victim that is none, per host and day, and how many real victims are called affected only.

The agent's own way from rates to decisions over simulated hosts, without a clock: days on which nothing happens (nobody
is a victim), and the paper's scenarios, in which one VM is disturbed for 50 s. The truth is the simulator's.

    python -m bench.cloud_white.false_victims [--days 3] [--hours 24] [--seed 101] [--json]
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from agent.antagonists.decide_victims import Decisions
from agent.config import AgentConfig, AgentSection, CloudWhiteSection
from agent.detection.cloud_white import CloudWhite
from agent.detection.degradation_models import load
from agent.sampling.metric_table import HostRates, VmRates
from bench.cloud_white.scenarios import quiet_day, singles
from bench.cloud_white.simulation import Study, StudyTick, simulate
from collector.base import Reason
from collector.simulated.profiles import STRESSORS

#: A VM is really slowed down from this true ratio of latencies on.
_HURT = 1.25
_NONE = 1.05


def vms_of(study: Study) -> list[Any]:
    """Make what the daemon has of a study's VMs, but for their rates."""
    return [
        SimpleNamespace(
            identity=SimpleNamespace(uuid=study.uuid_of(vm), epoch="e", vcpus=vm.vcpus, name=vm.name, state="running"),
            job=vm.name,
            latency_sensitive=True,
            workers=None,
            alert=True,
            rates=None,
        )
        for vm in study.vms
    ]


def decided(study: Study, *, requests: bool) -> Iterator[tuple[StudyTick, list[str], list[str]]]:
    """Yield each tick with the decisions, and with what the host's own analysis alone says, in the VMs' order."""
    section = CloudWhiteSection()
    cloud_white = CloudWhite(section, load(section.models))
    decisions = Decisions(AgentConfig(agent=AgentSection()), cloud_white, None)
    vms = vms_of(study)
    for tick in simulate(study, requests=requests):
        for vm, known in zip(vms, tick.vms, strict=True):
            vm.rates = VmRates(*(known.get(name, Reason.NOT_PRESENT) for name in VmRates._fields))
        host = HostRates(*(tick.host.get(name, Reason.NOT_PRESENT) for name in HostRates._fields))
        now_ns = round(tick.at_s * 1e9) + 1
        cloud_white.tick(vms, host, now_ns, now_ns)
        decisions.tick(vms, now_ns, now_ns)
        decisions.events.take()
        uuids = [vm.identity.uuid for vm in vms]
        yield (tick, [decisions.vm(uuid).verdict for uuid in uuids], [cloud_white.behaviour(uuid) for uuid in uuids])


def quiet(days: int, hours: float, seed: int) -> dict[str, float]:
    """Return how often, per host and day, a VM begins to be called a victim on a day on which nobody is one."""
    found: Counter[str] = Counter({f"{name}: victim begins": 0 for name in ("decision", "evidence alone")})
    for day in range(days):
        before: tuple[list[str], list[str]] = ([], [])
        for _, verdicts, alone in decided(quiet_day(hours=hours, seed=seed + day), requests=False):
            for name, now, last in (("decision", verdicts, before[0]), ("evidence alone", alone, before[1])):
                for row, word in enumerate(now):
                    if word in ("victim", "affected"):
                        found[f"{name}: {word} begins"] += word != (last[row] if last else "")
            found["affected VM seconds"] += verdicts.count("affected")
            found["victim VM seconds"] += verdicts.count("victim")
            before = (verdicts, alone)
    scale = days * hours / 24
    return {name: count / scale for name, count in sorted(found.items())}


def stressed(seed: int) -> dict[str, float]:
    """Return what victims of the paper's scenarios are called while they are slowed down, and who else is a victim."""
    found: Counter[str] = Counter()
    stressors = tuple(name for name in STRESSORS if name != "no-interference")
    for study in singles(loads=(0.2, 0.4), stressors=stressors, repetitions=1, seed=seed):
        called: Counter[str] = Counter()
        real = 0
        for tick, verdicts, _ in decided(study, requests=True):
            true = tick.truths[0].expected_degradation
            is_hurt = math.isfinite(true) and true >= _HURT
            real += is_hurt
            called[verdicts[0]] += is_hurt
            found["ticks of others as victims"] += verdicts[1:].count("victim")
            found["ticks as victim, true below 1.05"] += verdicts[0] == "victim" and true < _NONE
        if real >= 20:  # of 50 s: else it is not disturbed
            found["runs with a real victim"] += 1
            found["real ticks"] += real
            found["runs found"] += called["victim"] > 0
            for word, count in called.items():
                found[f"real ticks called {word}"] += count
    return dict(sorted(found.items()))


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=3)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seed", type=int, default=101)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    reported = {"quiet, per host of 20 VMs and day": quiet(given.days, given.hours, given.seed)} if given.days else {}
    reported["disturbed"] = stressed(given.seed)
    if given.json:
        print(json.dumps(reported))
        return
    for part, numbers in reported.items():
        print(part)
        for name, number in numbers.items():
            print(f"  {name}: {number:g}")


if __name__ == "__main__":
    main()
