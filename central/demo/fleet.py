"""The fleet of the demonstration, made from a seed: four hosts, their history, and the daemons' configuration.

Every host has five latency-sensitive VMs, which serve requests like the applications of Cloud White's study
(docs/simulated.md), and batch VMs of which most hurt no VM: `encode` (busy, but in its own registers), `train` (uses
more CPU than the antagonist) and smaller ones. One job truly hurts: it has run on three of the hosts for days, and in
the demonstration it comes to the fourth. There, a VM of another such job is nearly idle: known to hurt, and innocent
now.
"""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from collector.simulated.scenario import Scenario, parse
from whitepanda.common.tls import TlsFiles

#: CPU model of all simulated hosts: CPI is compared within one.
PLATFORM = "Simulated 64-core server @ 2.1 GHz"
TICK_S = 0.5
#: Windows and slots are of one length, in the simulated past too, so that a CPI is compared with its like.
SLOT_S = 2.0

_HOSTS = 4
_DAY_S = 86400.0
_HOST = {"platform": PLATFORM, "cpus": 64, "ghz": 2.1, "llc_mib": 27.5, "memory_gib_per_s": 28.0, "system_cores": 2.0}
#: Latency-sensitive: job, VMs per host, what it is like (`collector.simulated.profiles`), load of its 2 vCPUs.
_SERVICES = (
    ("web", 2, "masstree", 0.25),
    ("search", 1, "moses", 0.22),
    ("cache", 1, "img-dnn", 0.22),
    ("orders", 1, "specjbb", 0.28),
)
_SERVICE_VCPUS = 2
#: Jobs that hurt: what they are like, and cores.
_ANTAGONISTS = {
    "log-scan": ("cache-memory-disk-2", 14.0),
    "graph-build": ("cache-memory-3", 13.0),
    "dedup": ("cache-memory-2", 14.5),
}
_ANTAGONIST_VCPUS = 16
_IDLE_CORES = 0.05
_QUIET_CORES = 0.4  # of the known antagonist that is innocent now
_BURST_S = 2400.0
_BURSTS_PER_DAY = 2
_LOAD_STD = 0.05

Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DemoHost:
    """One host: its scenario as a TOML file's text, and its simulated past."""

    name: str
    live_toml: str
    past: Scenario


@dataclass(frozen=True, slots=True)
class DemoFleet:
    """All hosts; what is injected, and where. `services` are the latency-sensitive jobs."""

    seed: int
    hosts: tuple[DemoHost, ...]
    target: str
    antagonist_job: str
    antagonist_vm: str
    services: tuple[str, ...]


def make_fleet(seed: int, start_file: Path) -> DemoFleet:
    """Make the fleet of a seed; the antagonist on its host is active from when `start_file` exists."""
    chance = random.Random(f"whitepanda demo {seed}")  # noqa: S311 - a scenario, no secret
    names = [f"host-{number}" for number in range(1, _HOSTS + 1)]
    target = chance.choice(names)
    job, other = chance.sample(sorted(_ANTAGONISTS), 2)
    vm_name = f"{job}-{target}"
    hosts = []
    for name in names:
        neighbours = _services(chance, name) + _batch(chance, name)
        resident = other if name == target else job
        past = _antagonist(resident, name, _bursts(chance, resident))
        quiet = _QUIET_CORES if name == target else _IDLE_CORES
        live = [*neighbours, _antagonist(resident, name, {"ratio": quiet / _ANTAGONIST_VCPUS})]
        base: Table = {"seed": seed, "noise": {"load_std": _LOAD_STD}}
        now: Table = {**base, "host": {"name": name, **_HOST, "step_s": TICK_S}, "vms": live}
        if name == target:
            live.append(_antagonist(job, name, {}))
            injected = {"vm": vm_name, "cores": _ANTAGONISTS[job][1], "boots": True}
            now["antagonists"] = [{**injected, "start_file": str(start_file)}]
        # A window of the past is one step, so that days take no longer than a second.
        before: Table = {**base, "host": {"name": name, **_HOST, "step_s": SLOT_S}, "vms": [*neighbours, past]}
        history = parse(before, f"past of {name}")
        hosts.append(DemoHost(name, to_toml(now), history))
    return DemoFleet(seed, tuple(hosts), target, job, vm_name, tuple(service[0] for service in _SERVICES))


def _services(chance: random.Random, host: str) -> list[Table]:
    return [
        {
            "name": f"{job}-{host}" if count == 1 else f"{job}{number}-{host}",
            "job": job,
            **_facts("shop", _SERVICE_VCPUS),
            "latency_sensitive": True,
            "profile": profile,
            "load_ratio": {"ratio": load * chance.uniform(0.85, 1.15), "diurnal": 0.2},
        }
        for job, count, profile, load in _SERVICES
        for number in range(1, count + 1)
    ]


def _batch(chance: random.Random, host: str) -> list[Table]:
    def phases(low: float, high: float, every_s: float) -> Table:
        start = chance.uniform(0.1, 0.4) * every_s
        points = [[0.0, low], [start, high], [start + every_s * chance.uniform(0.2, 0.4), low]]
        return {"ratio": low, "points": points, "repeat_s": every_s}

    return [
        _vm(host, "encode", "no-interference", 8, {"ratio": chance.uniform(4.5, 6.0) / 8}),
        _vm(host, "train", "no-interference", 24, {"ratio": chance.uniform(18.0, 20.0) / 24, "diurnal": 0.1}),
        _vm(host, "reports", "network", 8, phases(0.1, 0.3, 7200.0)),
        _vm(host, "backup", "disk-1", 8, phases(0.03, 0.15, 21600.0)),
    ]


def _antagonist(job: str, host: str, load: Table) -> Table:
    return _vm(host, job, _ANTAGONISTS[job][0], _ANTAGONIST_VCPUS, load)


def _vm(host: str, job: str, profile: str, vcpus: int, load: Table) -> Table:
    project = "research" if job in _ANTAGONISTS else "media" if job == "encode" else "back-office"
    return {"name": f"{job}-{host}", "job": job, **_facts(project, vcpus), "profile": profile, "load_ratio": load}


def _facts(project: str, vcpus: int) -> Table:
    memory_gib = 2.0 * vcpus
    flavor = f"c{vcpus}-m{memory_gib:.0f}"
    return {"project": project, "flavor": flavor, "vcpus": vcpus, "memory_gib": memory_gib, "quota_cores": float(vcpus)}


def _bursts(chance: random.Random, job: str) -> Table:
    """Return some hours of each day in which the job works, not equally busy every time."""
    idle, busy = _IDLE_CORES / _ANTAGONIST_VCPUS, _ANTAGONISTS[job][1] / _ANTAGONIST_VCPUS
    points = [[0.0, idle]]
    part_s = _DAY_S / _BURSTS_PER_DAY
    for burst in range(_BURSTS_PER_DAY):
        start = burst * part_s + chance.uniform(0.05, 0.9) * (part_s - _BURST_S)
        points += [[start, busy * chance.uniform(0.6, 1.1)], [start + _BURST_S, idle]]
    return {"ratio": idle, "points": points, "repeat_s": _DAY_S}


def central_config(listen: str, state_dir: Path, tls: TlsFiles, importer: str, operator: str) -> str:
    """Return central's configuration file: as shipped, with short intervals."""
    return to_toml(
        {
            "central": {
                "listen": listen,
                "http_listen": "127.0.0.1:0",  # a free port, for the fleet page
                "state_dir": str(state_dir),
                "operators": [operator],
                "importers": [importer],
                "tls": asdict(tls),
            },
            "ingest": {"roll_interval_s": 1.0},
            "build": {"interval_s": 2.0, "slot_s": SLOT_S, "days": 5, "memory_limit_mib": 512},
        }
    )


def agent_config(fleet: DemoFleet, host: DemoHost, address: str, folder: Path, socket: Path, tls: TlsFiles) -> str:
    """Return an agent's configuration file; `folder` has its scenario.toml and gets its state (and truth)."""
    services = "|".join(fleet.services)
    off = {"mode": "off"}
    simulated = {"mode": "required", "scenario": str(folder / "scenario.toml")}
    if host.name == fleet.target:  # the others' truth is not used
        simulated["truth_file"] = str(folder / "truth.jsonl")
    return to_toml(
        {
            "agent": {
                "host": host.name,
                "platform": PLATFORM,
                "state_dir": str(folder / "state"),
                "socket": str(socket),
                "tick_s": TICK_S,
                "window_s": SLOT_S,
            },
            "sources": {"libvirt": off, "perf": off, "procfs": off, "simulated": simulated},
            "uplink": {"address": address, "tls": asdict(tls)},
            "jobs": [
                {"fact": "job", "pattern": f"^({services})$", "job": r"\1", "latency_sensitive": True},
                {"fact": "job", "pattern": "^(.+)$", "job": r"\1"},
            ],
        }
    )


def to_toml(table: Mapping[str, Any]) -> str:
    """Write a table of numbers, strings, lists and tables as TOML."""
    return "\n".join(_lines(table, "")) + "\n"


def _lines(table: Mapping[str, Any], prefix: str) -> Iterator[str]:
    sections = {key: value for key, value in table.items() if _has_tables(value)}
    for key, value in table.items():
        if key not in sections:
            yield f"{key} = {json.dumps(value)}"  # of numbers, strings and lists it is TOML too
    for key, value in sections.items():
        is_one = isinstance(value, dict)
        for item in [value] if is_one else value:
            yield f"\n[{prefix}{key}]" if is_one else f"\n[[{prefix}{key}]]"
            yield from _lines(item, f"{prefix}{key}.")


def _has_tables(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))
