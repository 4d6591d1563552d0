"""Live D-Factor against slow-downs of simulated hosts whose contention works otherwise: docs/studies/placement.md.

    python -m bench.dfactor.live [--seeds 5] [--hosts 200] [--out FOLDER]

VMs of random applications run on simulated hosts (`collector.simulated.contention`: shared cache, a memory queue, CPUs
that are waited for, queues of the disk and the network's link). What agents would measure goes through
`make_snapshot`, as in central; its dilation of each VM among the others on its host is held against the VM's true one.
As in D-Factor, a VM's time has a share in which it idles, and which nobody stretches; the rest grows like the time of a
unit of work (`of its work`, also shown) over the same alone on that host. Scenarios restrict what is contended for. In
the control agents measure VMs alone, and the truth is D-Factor itself: its error is that of noise and of VMs that
differ from their job's mean. Then a new VM of a known job is placed on one of the hosts by each rule, and its true
dilation there is compared with the best host's.

Prints the tables as Markdown; --out writes live.md. Exits with 1 if the control's error is above its bar.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from central.config import PlacementSection
from central.models.groups import Floats
from central.placement.capacity import HostSize, Sizes
from central.placement.live import Snapshot, make_snapshot
from central.placement.pairs import best_constant
from collector.simulated.contention import Parameters, Rates, contend, parameters
from collector.simulated.profiles import APPLICATIONS, HOST, NOISE, STRESSORS, Application

CONTROL_BAR = 0.02
_S_NS = 10**9
_VMS = 8  # on each host at most
_DRAWS = 1000
_WINDOWS = 90  # of 10 s in placement.window_s, of which a VM's means are

_CPU = replace(STRESSORS["no-interference"][0], name="cpu", disk_mb_per_s=0.0)
_SERVICES = tuple(APPLICATIONS.values())
_CACHE = tuple(app for name, (app, _) in STRESSORS.items() if name.startswith("cache-memory-") and "disk" not in name)
_DISK = tuple(app for name, (app, _) in STRESSORS.items() if name.startswith("disk-"))
#: At usual loads a tenth of the disk's stressors.
_DISK_MIXED = tuple(replace(app, disk_mb_per_s=app.disk_mb_per_s / 10) for app in _DISK)
_NETWORK = tuple(
    replace(STRESSORS["network"][0], l2_mpki=0.5, network_mb_per_s=mb_per_s) for mb_per_s in (1650.0, 3300.0, 4950.0)
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Which applications run, how busy they are, and which CPUs VMs may use."""

    applications: tuple[Application, ...]
    load: tuple[float, float]  # uniform; of a vCPU
    vm_cpus: int = HOST.vm_cpus
    is_control: bool = False
    link_mb_per_s: float = 0.0  # 0: the network delays nobody


#: By what is contended for.
SCENARIOS = {
    "control": Scenario((*_SERVICES, *_CACHE, *_DISK_MIXED, _CPU), (0.05, 0.5), is_control=True),
    "cpu": Scenario((_CPU,), (0.1, 0.5), vm_cpus=12),
    "cache and memory": Scenario((*_SERVICES, *_CACHE), (0.1, 0.5), vm_cpus=48),
    "disk": Scenario(tuple(replace(app, l2_mpki=0.5) for app in _DISK), (0.01, 0.05), vm_cpus=48),
    "network": Scenario(_NETWORK, (0.02, 0.1), vm_cpus=48, link_mb_per_s=2500.0),  # 20 Gb/s
    "all of them": Scenario((*_SERVICES, *_CACHE, *_DISK_MIXED, _CPU), (0.05, 0.5)),
}


@dataclass(frozen=True, slots=True)
class Hosts:
    """Simulated hosts, a row each; columns are places for VMs. A load of 0: no VM."""

    scenario: Scenario
    machine: Any
    table: Parameters  # of the applications, each with 4 vCPUs
    running: Any  # index into the table, (hosts, places)
    load: Floats

    def rates(self, running: Any, load: Floats) -> Rates:
        """Return what VMs get that run together, the last axis."""
        return contend(self.machine, self.table.at(running), load)

    def alone(self) -> Rates:
        """Return what each VM would get alone on its host."""
        apart = self.rates(self.running[..., None], self.load[..., None])
        return Rates._make(column[..., 0] for column in apart)


def make_hosts(scenario: Scenario, hosts: int, rng: np.random.Generator) -> Hosts:
    """Draw hosts with 2 to 8 VMs each. Each application is a job with a usual load, from which its VMs vary by 10 %."""
    machine = replace(HOST, vm_cpus=scenario.vm_cpus, cpus=scenario.vm_cpus + 8, link_mb_per_s=scenario.link_mb_per_s)
    # Each application at four usual loads is four jobs.
    jobs = [app for app in scenario.applications for _ in range(4)]
    usual = rng.uniform(*scenario.load, len(jobs))
    running = rng.integers(0, len(jobs), (hosts, _VMS))
    load = np.minimum(usual[running] * rng.lognormal(0.0, 0.1, running.shape), 1.0)
    load[np.arange(_VMS) >= rng.integers(2, _VMS + 1, hosts)[:, None]] = 0.0
    return Hosts(scenario, machine, parameters(machine, [(app, 4) for app in jobs]), running, load)


def shares(rates: Rates, p: Parameters) -> tuple[Floats, Floats, Floats]:
    """Return what an agent measures: cores, share of cycles that wait for memory, share of time with a disk wait.

    The network's bytes are in `rates`.
    """
    under_way = rates.disk_ops_per_s * rates.disk_op_s
    stalled = rates.memory_stall_per_s / np.maximum(rates.cycles_per_s, 1.0)
    return rates.usage_cores, stalled, -np.expm1(-under_way) + 0.0 * p.vcpus


def unit_time(rates: Rates, p: Parameters) -> Floats:
    """Return the time of a unit of work: a request or, of a closed loop, a second on a vCPU; with disk and network."""
    ops = p.disk_bytes_per_s / p.disk_op_bytes / p.vcpus  # of a loop, in a second on a vCPU
    request = rates.service_s + p.disk_ops_per_request * rates.disk_op_s
    request = request + p.network_bytes_per_request * rates.network_byte_s
    loop = rates.cpi / p.alone_cpi * rates.stretch + ops * rates.disk_op_s
    loop = loop + p.network_bytes_per_s / p.vcpus * rates.network_byte_s
    found: Floats = np.where(p.serves, request, loop)
    return found


def noisy(value: Floats, std: float, rng: np.random.Generator) -> Floats:
    """Return the mean over a VM's windows of a measured value."""
    found: Floats = value * rng.normal(1.0, std / np.sqrt(_WINDOWS), value.shape)
    return found


def snapshot(hosts: Hosts, rates: Rates, rng: np.random.Generator) -> tuple[Snapshot, Any]:
    """Return what central makes of the hosts, and the (host, place) of each VM."""
    p = hosts.table.at(hosts.running)
    cores, stalled, waited = shares(rates, p)
    place = np.argwhere(hosts.load > 0)
    at = (place[:, 0], place[:, 1])
    count = len(place)
    names = [f"host-{host:04d}" for host in range(len(hosts.load))]
    rows = {
        "machine": [names[host] for host in place[:, 0]],
        "vm": [f"vm-{k}" for k in range(count)],
        "job": [f"job-{k:03d}" for k in hosts.running[at]],
        "last": [900 * _S_NS] * count,
        "windows": [_WINDOWS] * count,
        "cpu_usage_cores": noisy(cores[at], NOISE.load_std, rng).tolist(),
        "stall": noisy(stalled[at], NOISE.counter_std, rng).tolist(),
        "wait": noisy(waited[at], NOISE.load_std, rng).tolist(),
    }
    rows |= {name: [None] * count for name in ("memory", "disk", "network")}
    link = hosts.machine.link_mb_per_s * 1e6 or None
    if link:
        rows["network"] = noisy(rates.network_bytes_per_s[at], NOISE.load_std, rng).tolist()
    size = HostSize(cpus=hosts.machine.vm_cpus, disks=1, network_bytes_per_s=link)
    sizes = Sizes(dict.fromkeys(names, size))
    return make_snapshot(PlacementSection(), 0, 900 * _S_NS, rows, (), sizes), place


def predicted(now: Snapshot, place: Any, hosts: Hosts) -> Floats:
    """Return live D-Factor's dilation of each VM by its job's vector, among the others on its host."""
    found = np.ones(len(place))
    for k, (host, column) in enumerate(place):
        loading = np.nan_to_num(now.jobs[f"job-{hosts.running[host, column]:03d}"].loading)
        share = loading / max(1.0, loading.sum())
        others = np.maximum(now.hosts.totals[host] - loading, 0.0)
        found[k] = 1.0 + (share * others / now.hosts.units_of(host)).sum()
    return found


def truth(hosts: Hosts, rates: Rates, place: Any) -> tuple[Floats, Floats]:
    """Return each VM's dilation among the others, and the slow-down of its work."""
    p = hosts.table.at(hosts.running)
    at = (place[:, 0], place[:, 1])
    alone = hosts.alone()
    cores, stalled, waited = shares(alone, p)
    link = hosts.machine.link_mb_per_s * 1e6
    sent = alone.network_bytes_per_s / link if link else np.zeros_like(waited)
    vectors = np.stack([cores * (1 - stalled), cores * stalled, waited, sent], axis=-1) * (hosts.load > 0)[..., None]
    busy = np.minimum(1.0, vectors.sum(axis=-1))
    if not hosts.scenario.is_control:
        work = unit_time(rates, p)[at] / unit_time(alone, p)[at]
        return 1.0 + busy[at] * (work - 1.0), work
    units = np.array([hosts.machine.vm_cpus, hosts.machine.vm_cpus, 1.0, 1.0])
    own = vectors / np.maximum(1.0, vectors.sum(axis=-1, keepdims=True))
    others = vectors.sum(axis=1, keepdims=True) - vectors
    dilation = (1.0 + (own * others / units).sum(axis=-1))[at]
    return dilation, 1.0 + (dilation - 1.0) / busy[at]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one seed gives of one scenario, by host: errors of methods, slow-downs; and of placements."""

    errors: dict[str, list[Floats]]
    slowdown: Floats
    regret: dict[str, Floats]  # true slow-down at the chosen host over the best host's, less 1
    order: float  # Spearman's correlation of predicted and true


METHODS = ("live D-Factor", "vectors measured alone", "best constant", "no slow-down", "of its work")
RULES = ("live D-Factor", "least cores", "random")


def measure(scenario: Scenario, hosts: int, seed: int) -> Measured:
    """Measure one fleet."""
    rng = np.random.default_rng(seed)
    made = make_hosts(scenario, hosts, rng)
    rates, alone = made.rates(made.running, made.load), made.alone()
    now, place = snapshot(made, alone if scenario.is_control else rates, rng)
    quiet, _ = snapshot(made, alone, rng)
    true, work = truth(made, rates, place)
    guess, undisturbed = predicted(now, place, made), predicted(quiet, place, made)
    # The best constant of the other half of the hosts.
    half = place[:, 0] % 2 == 1
    constant = np.where(half, best_constant(true[~half]), best_constant(true[half]))
    by_host = np.flatnonzero(np.diff(place[:, 0]) > 0) + 1
    compared = ((guess, true), (undisturbed, true), (constant, true), (np.ones(len(true)), true), (guess, work))
    errors = {
        name: np.split(np.abs(value - real) / real, by_host)
        for name, (value, real) in zip(METHODS, compared, strict=True)
    }
    order = float(spearmanr(guess, true).statistic)
    return Measured(errors, true, _regrets(made, now, rng), order)


def _regrets(made: Hosts, now: Snapshot, rng: np.random.Generator) -> dict[str, Floats]:
    """Place a VM of each job, on hosts with a free place."""
    jobs = np.unique(made.running[made.load > 0])
    free = np.flatnonzero((made.load > 0).sum(axis=1) < _VMS)
    found: dict[str, list[float]] = {rule: [] for rule in RULES}
    for job in jobs.tolist():
        loading = now.jobs[f"job-{job:03d}"].loading
        load = float(made.load[made.running == job].max())
        running, loads = made.running[free].copy(), made.load[free].copy()
        running[:, -1], loads[:, -1] = job, load
        with_it = Hosts(made.scenario, made.machine, made.table, running, loads)
        vm = np.array([(k, _VMS - 1) for k in range(len(free))])
        true, _ = truth(with_it, with_it.rates(running, loads), vm)
        added = now.rank(loading, len(made.load)).added[free]
        cost = {"live D-Factor": added, "least cores": now.hosts.totals[free, :2].sum(axis=1)}
        cost["random"] = rng.random(len(free))
        for rule in RULES:
            found[rule].append(float(true[cost[rule].argmin()] / true.min() - 1.0))
    return {rule: np.array(values) for rule, values in found.items()}


def interval(parts: Sequence[Floats], statistic: Callable[[Floats], float], digits: int = 1) -> str:
    """Write a statistic in %, and its 95 % interval by drawing hosts (or jobs) again: what is on one host is alike."""
    rng = np.random.default_rng(7)
    drawn = [
        statistic(np.concatenate([parts[k] for k in rng.integers(0, len(parts), len(parts))])) for _ in range(_DRAWS)
    ]
    low, high = 100 * np.percentile(drawn, (2.5, 97.5))
    return f"{100 * statistic(np.concatenate(parts)):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def tables(seeds: int, hosts: int) -> tuple[list[str], dict[str, float]]:
    """Return both tables, and the mean error of live D-Factor by scenario."""
    first = [
        f"| contended for | VMs | true dilation, median (95th percentile) | {' | '.join(METHODS)} | order |",
        f"|---|---|---|{'---|' * len(METHODS)}---|",
    ]
    second = [f"| contended for | {' | '.join(RULES)} |", f"|---|{'---|' * len(RULES)}"]
    mean = dict[str, float]()
    for name, scenario in SCENARIOS.items():
        found = [measure(scenario, hosts, 100 * seed + 17) for seed in range(seeds)]
        errors = {method: [part for one in found for part in one.errors[method]] for method in METHODS}
        slow = np.concatenate([one.slowdown for one in found])
        mean[name] = float(np.concatenate(errors["live D-Factor"]).mean())
        cells = [interval(errors[method], np.mean) for method in METHODS]
        middle = f"{np.median(slow):.2f} ({np.percentile(slow, 95):.2f})"
        order = f"{np.mean([one.order for one in found]):.2f}"
        first.append(f"| {name} | {len(slow):,} | {middle} | {' | '.join(cells)} | {order} |")
        if not scenario.is_control:
            parts = {rule: [np.array([value]) for one in found for value in one.regret[rule]] for rule in RULES}
            second.append(f"| {name} | {' | '.join(interval(parts[rule], np.mean) for rule in RULES)} |")
    return [*first, "", *second], mean


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    lines, mean = tables(options.seeds, options.hosts)
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "live.md").write_text(text, encoding="utf-8")
    return 0 if mean["control"] <= CONTROL_BAR else 1


if __name__ == "__main__":
    sys.exit(main())
