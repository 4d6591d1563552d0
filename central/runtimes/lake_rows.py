"""Observations of runtimes from the slots of central's lake.

One row per busy VM and slot: its job is the workload, the CPU platform the platform, the jobs of the other busy VMs on
the machine in that slot the interferers, and the CPU time that it took for 1e9 instructions, in us, the runtime. That
grows with what others take of caches, memory and frequency; waiting for a CPU, disks and network is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from central.lake.duckdb_connection import reading
from central.lake.segments import Lake
from central.roll_ups.store import SlotStore
from central.runtimes.tables import MAX_INTERFERERS
from whitepanda.common.errors import InputError

if TYPE_CHECKING:
    import ibis.expr.types as ir


_MEMORY_MIB = 1024
_INSTRUCTIONS = 1e9
_PARTS = 1 << 20  # the hash's values, of which a share is taken

#: VMs that use less are not counted as interferers.
BUSY_CORES = 0.05


@dataclass(frozen=True, slots=True)
class LakeRows:
    """Observations from the lake."""

    observations: pa.Table  # workload, platform, interferers (lists), runtime_us
    workloads: pa.Table  # names of all, also of those that only disturbed
    platforms: pa.Table  # names of all
    days: int  # of slots, that were read
    share: float  # of the machines' slots that were taken; 1 unless there were too many rows
    crowded: int  # machines' slots left out because more VMs were busy than a table of observations may name
    not_counted: int  # VMs' slots without instructions in every window; these VMs still disturb others


def read_lake(lake: Lake, *, slot_s: float, days: int, max_rows: int) -> LakeRows:
    """Make observations of the newest `days` of slots of `slot_s` (build.slot_s).

    About `max_rows` at most: of more, whole machines' slots are taken by a hash of their names. Raises InputError if
    there are no slots, or none with instructions, LakeError if the lake is damaged or newer than this program.
    """
    store = SlotStore(lake, round(slot_s * 1e9))
    manifests = list(store.manifests().values())[-days:]
    if not manifests:
        raise InputError(
            f"lake {lake.name}: no slots of {slot_s:g} s; central makes them when it builds (build.slot_s)"
        )
    with reading(lake.name, _MEMORY_MIB) as connection:
        busy = store.read(connection, manifests)
        busy = busy.filter(busy.usage >= BUSY_CORES)
        total = int(connection.to_pyarrow(busy.count()).as_py())
        share = min(1.0, max_rows / total) if total else 1.0
        part = (busy.machine + "/" + busy.slot_start_ns.cast("string")).hash() % _PARTS
        rows = connection.to_pyarrow(_columns(busy.filter(part.abs() < share * _PARTS))).to_pylist()
    found = _observed(rows)
    if not found["workload"]:
        raise InputError(
            f"lake {lake.name}: no VM used {BUSY_CORES:g} cores with its instructions counted on the last "
            f"{len(manifests)} days of slots; agents need perf counters for that"
        )
    counts = found.pop("crowded"), found.pop("not_counted")
    table = pa.table({**found, "interferers": pa.array(found["interferers"], pa.list_(pa.string()))})
    workloads = pa.table({"workload": sorted({row["job"] for row in rows})})
    platforms = pa.table({"platform": sorted(set(found["platform"]))})
    return LakeRows(table, workloads, platforms, len(manifests), share, *counts)


def _columns(busy: ir.Table) -> ir.Table:
    """Return the needed columns, a row per VM; the runtime is null if a window lacks its counters."""
    is_counted = (busy.cpi_time_ns == busy.cpu_usage_cores_time_ns) & (busy.instructions > 0)
    time_us = busy.cpu_usage_cores_ns / 1e3 / (busy.instructions.cast("float64") / _INSTRUCTIONS)
    return busy.select(
        "machine", "slot_start_ns", "vm", "job", "platform", runtime_us=is_counted.ifelse(time_us, None)
    ).order_by("machine", "slot_start_ns", "vm")


def _observed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a row per VM, with the others of its machine's slot."""
    found: dict[str, Any] = {name: [] for name in ("workload", "platform", "interferers", "runtime_us")}
    found |= {"crowded": 0, "not_counted": 0}
    for _, group in groupby(rows, key=lambda row: (row["machine"], row["slot_start_ns"])):
        here = list(group)
        if len(here) > MAX_INTERFERERS + 1:
            found["crowded"] += 1
            continue
        jobs = [row["job"] for row in here]
        for place, row in enumerate(here):
            if row["runtime_us"] is None:
                found["not_counted"] += 1
                continue
            found["workload"].append(row["job"])
            found["platform"].append(row["platform"])
            found["interferers"].append(sorted(jobs[:place] + jobs[place + 1 :]))
            found["runtime_us"].append(row["runtime_us"])
    return found
