"""The one table of sources: a new source is its file and a row here.

The agent hands over its configuration's `sources` table by its shape alone (a section per source with `mode`
and the source's own settings), because the collector does not know the agent. A source's module is imported
only when it is on.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector.base import Source
from collector.inventory.inventory import Finder, Inventory


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A source's name, which is also its section's in the configuration, how to make it, and what it tells.

    `factory` takes the section and the inventory that the host's sources share.
    """

    name: str
    factory: Callable[[Any, Inventory], Source]
    help: str


def _libvirt(section: Any, inventory: Inventory) -> Source:
    from collector.libvirt.source import LibvirtSource

    return LibvirtSource(
        section.uri, inventory=inventory, deadline_s=section.deadline_s, disk_poll_s=section.disk_poll_s
    )


def _perf(section: Any, inventory: Inventory) -> Source:
    from collector.perf.source import PerfSource

    return PerfSource(
        inventory.vms,
        scope=section.scope,
        events=section.events,
        reserve_counters=section.reserve_counters,
        opens_per_tick=section.opens_per_tick,
    )


def _procfs(section: Any, inventory: Inventory) -> Source:
    from collector.procfs.source import ProcfsSource

    return ProcfsSource(inventory, root=section.root)


def _cgroup(section: Any, inventory: Inventory) -> Source:
    from collector.cgroup.source import CgroupSource

    return CgroupSource(inventory, root=section.root, numa_poll_s=section.numa_poll_s)


def _resctrl(section: Any, inventory: Inventory) -> Source:
    from collector.resctrl.source import ResctrlSource

    return ResctrlSource(
        inventory,
        root=section.root,
        max_groups=section.max_groups,
        reserve_rmids=section.reserve_rmids,
        hold_s=section.hold_s,
    )


def _pqos(section: Any, inventory: Inventory) -> Source:
    from collector.pqos.source import PqosSource

    return PqosSource(inventory, interface=section.interface, max_groups=section.max_groups)


def _qemu(section: Any, inventory: Inventory) -> Source:
    from collector.qemu.source import QemuSource

    return QemuSource(inventory, disk_poll_s=section.disk_poll_s, config_dir=section.proxmox_config_dir)


def _ovs(section: Any, inventory: Inventory) -> Source:
    from collector.ovs.source import OvsSource

    return OvsSource(inventory, database=section.database, run_dir=section.run_dir, deadline_s=section.deadline_s)


def _simulated(section: Any, _inventory: Inventory) -> Source:
    from collector.simulated.source import SimulatedSource

    return SimulatedSource(Path(section.scenario), Path(section.truth_file) if section.truth_file else None)


#: In their order of precedence where two tell the same. procfs comes before libvirt: it still knows which VMs there
#: are while libvirtd hangs.
SOURCES: tuple[SourceSpec, ...] = (
    SourceSpec("procfs", _procfs, "guest time and run-queue wait per vCPU thread, the host's CPU time"),
    SourceSpec("cgroup", _cgroup, "pressure, throttling, quota and memory of each VM's control group, NUMA placement"),
    SourceSpec("ovs", _ovs, "network counters of the VMs' ports on Open vSwitch"),
    SourceSpec("libvirt", _libvirt, "VMs and their state, disk and network counters"),
    SourceSpec("qemu", _qemu, "VMs without libvirt (Proxmox, bare QEMU), their disk and network counters"),
    SourceSpec("perf", _perf, "hardware counters: cycles, instructions, cache misses, stalls"),
    SourceSpec("resctrl", _resctrl, "cache occupancy and memory bandwidth (Intel RDT, AMD QoS)"),
    SourceSpec("pqos", _pqos, "the same from Intel's libpqos, for hosts without resctrl"),
    SourceSpec("simulated", _simulated, "a synthetic hypervisor"),
)


#: Less than the shortest tick: each tick has a list of its own.
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
    """Make every source whose mode is not `off`, unopened, in the table's order.

    Args:
        sections: has an attribute per source (`libvirt`, `perf`, ...), each with `mode` and the source's
            settings, such as `agent.config.Sources`.
        inventory: what the sources share; made from `sections` when None.
        specs: the table.

    Returns:
        Pairs of source and mode (`auto` or `required`).

    """
    shared = make_inventory(sections) if inventory is None else inventory
    rows = ((spec, getattr(sections, spec.name)) for spec in specs)
    return [(spec.factory(row, shared), row.mode) for spec, row in rows if row.mode != "off"]
