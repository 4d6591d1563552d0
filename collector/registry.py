"""The one table of sources: a new source is its file and a row here.

The agent passes its configuration's `sources` table by its shape alone (a section per source with `mode` and the
source's own settings), because the collector does not know the agent. A source's module is imported only when it is on.
"""

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from collector.base import Source
from collector.inventory.inventory import Finder, Inventory

#: Makes a source from its section and the inventory that the host's sources share.
Factory = Callable[[Any, Inventory], Source]


class SourceSpec(NamedTuple):
    """A source's name, which is also its section's in the configuration, its factory, and what it measures."""

    name: str
    factory: Factory
    help: str


def _source(path: str, *settings: str) -> Factory:
    """Return a factory for the class at `path` ("module:Class"), which takes the inventory and settings by name."""

    def make(section: Any, inventory: Inventory) -> Source:
        module, _, name = path.partition(":")
        make_source: Callable[..., Source] = getattr(importlib.import_module(module), name)
        return make_source(inventory=inventory, **{setting: getattr(section, setting) for setting in settings})

    return make


def _perf(section: Any, inventory: Inventory) -> Source:
    from collector.perf.source import PerfSource

    settings = ("scope", "events", "reserve_counters", "opens_per_tick")
    return PerfSource(inventory.vms, **{setting: getattr(section, setting) for setting in settings})


def _simulated(section: Any, _inventory: Inventory) -> Source:
    from collector.simulated.source import SimulatedSource

    return SimulatedSource(Path(section.scenario), Path(section.truth_file) if section.truth_file else None)


_PROCFS = _source("collector.procfs.source:ProcfsSource", "root")
_CGROUP = _source("collector.cgroup.source:CgroupSource", "root", "numa_poll_s")
_OVS = _source("collector.ovs.source:OvsSource", "database", "run_dir", "deadline_s")
_LIBVIRT = _source("collector.libvirt.source:LibvirtSource", "uri", "deadline_s", "disk_poll_s")
_QEMU = _source("collector.qemu.source:QemuSource", "disk_poll_s", "proxmox_config_dir")
_RESCTRL = _source("collector.resctrl.source:ResctrlSource", "root", "max_groups", "reserve_rmids", "hold_s")
_PQOS = _source("collector.pqos.source:PqosSource", "interface", "max_groups")

#: In their order of precedence where two provide the same. procfs comes before libvirt: it still knows the VMs while
#: libvirtd hangs.
SOURCES: tuple[SourceSpec, ...] = (
    SourceSpec("procfs", _PROCFS, "guest time and run-queue wait per vCPU thread, the host's CPU time"),
    SourceSpec("cgroup", _CGROUP, "pressure, throttling, quota and memory of each VM's control group, NUMA placement"),
    SourceSpec("ovs", _OVS, "network counters of the VMs' ports on Open vSwitch"),
    SourceSpec("libvirt", _LIBVIRT, "VMs and their state, disk and network counters"),
    SourceSpec("qemu", _QEMU, "VMs without libvirt (Proxmox, bare QEMU), their disk and network counters"),
    SourceSpec("perf", _perf, "hardware counters: cycles, instructions, cache misses, stalls"),
    SourceSpec("resctrl", _RESCTRL, "cache occupancy and memory bandwidth (Intel RDT, AMD QoS)"),
    SourceSpec("pqos", _PQOS, "cache occupancy and memory bandwidth by Intel's libpqos, for hosts without resctrl"),
    SourceSpec("simulated", _simulated, "a synthetic hypervisor"),
)

# Less than the shortest tick: each tick has a list of its own.
_FRESH_S = 0.04


def make_inventory(sections: Any) -> Inventory:
    """Make the inventory that the host's sources share, from `sections` as for `build_sources`."""
    finders: list[Finder] = []
    if sections.qemu.mode != "off":
        from collector.qemu.discovery import QemuFinder

        finders.append(QemuFinder(sections.procfs.root, sections.qemu.proxmox_run_dir, users=sections.qemu.users))
    return Inventory(sections.libvirt.state_dir, sections.procfs.root, finders, fresh_s=_FRESH_S)


def build_sources(
    sections: Any, inventory: Inventory | None = None, *, specs: Iterable[SourceSpec] = SOURCES
) -> list[tuple[Source, str]]:
    """Return every source whose mode is not `off`, unopened, with its mode, in the table's order.

    `sections` has an attribute per source (`libvirt`, `perf`, ...), such as `agent.config.Sources`.
    """
    shared = make_inventory(sections) if inventory is None else inventory
    rows = ((spec, getattr(sections, spec.name)) for spec in specs)
    return [(spec.factory(row, shared), row.mode) for spec, row in rows if row.mode != "off"]
