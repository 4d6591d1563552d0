"""The facts of the host, from files of the kernel; of a simulated host, from its scenario."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from agent.config import AgentConfig
from collector.proc_parse import parse_cpu_list
from collector.simulated.scenario import HostSpec, Scenario, load
from whitepanda.common.texts import clean_name
from whitepanda.v1 import agent_pb2

_MAX_CARDS, _MAX_DISKS, _MAX_CACHES = 64, 256, 1024
_SECTOR_BYTES = 512  # of /sys/block/*/size, whatever the disk's own are
_MIB, _GIB = 1 << 20, 1 << 30
_SIMULATED_BITS_PER_S = 25 * 10**9
_SIMULATED_DISK_BYTES = 2 * 10**12


def host_facts(config: AgentConfig, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> agent_pb2.HostFacts:
    """Return what can be read now. Reads some hundred small files; raises ConfigError for a bad scenario."""
    simulated = config.sources.simulated
    if simulated.mode != "off":
        return _simulated(load(Path(simulated.scenario)), config.host.labels)
    return real_facts(config.host.labels, proc, sys)


def real_facts(labels: Mapping[str, str], proc: Path, sys: Path) -> agent_pb2.HostFacts:
    """Return the facts of the host whose files these are; what cannot be read is absent."""
    facts = agent_pb2.HostFacts(labels=labels)
    with contextlib.suppress(OSError, ValueError):
        facts.cpus = len(list(parse_cpu_list((sys / "devices/system/cpu/online").read_text())))
    if (size := _memory_bytes(proc)) is not None:
        facts.memory_bytes = size
    facts.caches.extend(_caches(sys))
    for card in _devices(sys / "class/net", _MAX_CARDS):
        speed = _number(card / "speed")  # in Mb/s; -1 or an error without a link
        rate = None if speed is None or speed <= 0 else speed * 10**6
        facts.network_cards.add(name=clean_name(card.name), bits_per_s=rate)
    for disk in _devices(sys / "block", _MAX_DISKS):
        sectors, turns = _number(disk / "size"), _number(disk / "queue/rotational")
        if sectors:
            rotational = None if turns is None else turns == 1
            facts.disks.add(name=clean_name(disk.name), size_bytes=sectors * _SECTOR_BYTES, rotational=rotational)
    return facts


def _simulated(scenario: Scenario, labels: Mapping[str, str]) -> agent_pb2.HostFacts:
    spec: HostSpec = scenario.host
    return agent_pb2.HostFacts(
        cpus=spec.cpus,
        memory_bytes=round(spec.memory_gib * _GIB),
        caches=[agent_pb2.CacheDomain(first_cpu=0, cpus=spec.cpus, size_bytes=round(spec.llc_mib * _MIB))],
        network_cards=[agent_pb2.NetworkCard(name="eth0", bits_per_s=_SIMULATED_BITS_PER_S)],
        disks=[agent_pb2.DiskFacts(name="nvme0n1", size_bytes=_SIMULATED_DISK_BYTES, rotational=False)],
        labels=labels,
    )


def _memory_bytes(proc: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    return None


def _caches(sys: Path) -> Iterator[agent_pb2.CacheDomain]:
    """Yield the last-level caches, each once."""
    seen = set[int]()
    cpus: Iterable[Path] = (sys / "devices/system/cpu").glob("cpu[0-9]*")
    for cpu in sorted(cpus, key=lambda path: int(path.name.removeprefix("cpu"))):
        if int(cpu.name.removeprefix("cpu")) in seen or len(seen) >= _MAX_CACHES * 1024:
            continue
        best: tuple[int, list[int], int] | None = None
        for index in (cpu / "cache").glob("index[0-9]*"):
            with contextlib.suppress(OSError, ValueError):
                level = int((index / "level").read_text())
                size = (index / "size").read_text().strip()
                shared = sorted(parse_cpu_list((index / "shared_cpu_list").read_text()))
                if best is None or level > best[0]:
                    best = level, shared, _bytes(size)
        if best is not None and best[1]:
            seen.update(best[1])
            yield agent_pb2.CacheDomain(first_cpu=best[1][0], cpus=len(best[1]), size_bytes=best[2])


def _bytes(text: str) -> int:
    """Return a size such as 36864K in bytes. Raises ValueError."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * unit


def _devices(folder: Path, at_most: int) -> list[Path]:
    """Return the devices that are hardware (or a hypervisor's), by name: taps, bridges and loop devices are not."""
    try:
        found = sorted(path for path in folder.iterdir() if (path / "device").exists())
    except OSError:
        return []
    return found[:at_most]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
