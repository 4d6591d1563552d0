"""Incidents as the fleet API has them, made of rows of their tables. Functions of a connection."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from central.incidents import people, tables
from whitepanda.common.protocol import or_nan
from whitepanda.v1 import agent_pb2, fleet_pb2


def incident_messages(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> list[fleet_pb2.Incident]:
    """Return incidents of rows of their table, in this order; one query fetches the VMs of all of them."""
    vms: dict[tuple[int, int], list[fleet_pb2.IncidentVm]] = defaultdict(list)
    table = tables.incident_vms
    found = sa.select(table).where(table.c.incident.in_([row.id for row in rows])) if rows else None
    for vm in connection.execute(found).all() if found is not None else ():
        slow_down = None
        if vm.slow_ratio is not None:
            slow_down = agent_pb2.Degradation(
                ratio=vm.slow_ratio, low=or_nan(vm.slow_low), high=or_nan(vm.slow_high), model=vm.slow_model
            )
        same = {
            name: getattr(vm, name)
            for name in ("vm", "name", "job", "project", "reports", "first_reports", "first_unix_ns")
        }
        vms[vm.incident, vm.role].append(fleet_pb2.IncidentVm(**same, peak=or_nan(vm.peak), slow_down=slow_down))
    slowest = _slowest_now(connection, [row.id for row in rows if row.victims_now])
    for number, last in slowest.items():
        known = next((one for one in vms[number, tables.ROLE_VICTIM] if one.vm == last.vm), fleet_pb2.IncidentVm())
        last.reports, last.first_unix_ns = known.reports, known.first_unix_ns
    victims = {row.id: sorted(vms[row.id, tables.ROLE_VICTIM], key=_slowest_first) for row in rows}
    suspects = {row.id: _suspects(row, vms[row.id, tables.ROLE_SUSPECT]) for row in rows}
    taken = people.acknowledged(connection, [row.id for row in rows])
    names = ("id", "host", "first_unix_ns", "last_unix_ns", "reports", "victims_now")
    return [
        fleet_pb2.Incident(
            **{name: getattr(row, name) for name in names},
            suspect_job=suspects[row.id][0].job if row.suspect_vm else "",
            peak_mn_cpi=or_nan(row.peak_mn_cpi),
            peak_threshold=or_nan(row.peak_threshold),
            victims=victims[row.id],
            suspects=suspects[row.id],
            found_by=tables.analyses(row.found_by),
            suspect=suspects[row.id][0] if row.suspect_vm else None,
            slowest_now=slowest.get(row.id),
            **_acknowledgement(taken.get(row.id)),
        )
        for row in rows
    ]


def _acknowledgement(row: sa.Row[Any] | None) -> dict[str, Any]:
    if row is None:
        return {}
    return {"acknowledged_by": row.who, "acknowledged_unix_ns": row.unix_ns, "acknowledgement": row.reason}


def _highest_first(vm: fleet_pb2.IncidentVm) -> tuple[bool, float, str, str]:
    is_unknown = math.isnan(vm.peak)
    return (is_unknown, 0.0 if is_unknown else -vm.peak, vm.name, vm.vm)


def _slowest_first(vm: fleet_pb2.IncidentVm) -> tuple[bool, float, bool, float, str, str]:
    """Return the rank of a victim: by its slow-down; nCPI, which is cut, decides only if that is not known."""
    ratio = vm.slow_down.ratio  # 0: not known
    return (not ratio > 0, -ratio if ratio > 0 else 0.0, *_highest_first(vm))


def _suspects(row: sa.Row[Any], vms: list[fleet_pb2.IncidentVm]) -> list[fleet_pb2.IncidentVm]:
    """Return the suspects, the first one first.

    The first suspect of an ongoing incident is its last report's. Once the incident is over, it is the VM that
    most reports name first, so that a late change does not rewrite the history.
    """

    def order(vm: fleet_pb2.IncidentVm) -> tuple[object, ...]:
        is_last = vm.vm == row.suspect_vm
        often = -vm.first_reports
        return (*((not is_last, often) if row.victims_now else (often, not is_last)), *_highest_first(vm))

    return sorted(vms, key=order)


def _slowest_now(connection: sa.Connection, numbers: Sequence[int]) -> dict[int, fleet_pb2.IncidentVm]:
    """Return the slowest victim in the last report of each of these incidents."""
    found: dict[int, list[fleet_pb2.IncidentVm]] = defaultdict(list)
    for number, trigger in _last_reports(connection, numbers):
        found[number] += (
            fleet_pb2.IncidentVm(vm=v.vm, name=v.name, job=v.job, peak=v.n_cpi, slow_down=_slow_down(v))
            for v in trigger.victims
        )
    return {number: min(vms, key=_slowest_first) for number, vms in found.items() if vms}


def suffering(connection: sa.Connection, open_ones: Sequence[fleet_pb2.Incident]) -> list[fleet_pb2.SufferingVm]:
    """Return the victims in the last report of each of these incidents, each with its own first suspect."""
    by_number = {incident.id: incident for incident in open_ones}
    found: dict[tuple[int, str], fleet_pb2.SufferingVm] = {}  # several reports may have the same time
    for number, trigger in _last_reports(connection, list(by_number)):
        incident = by_number[number]
        known = {vm.vm: vm for vm in incident.victims}
        suspects: dict[str, fleet_pb2.IncidentVm | agent_pb2.TriggerSuspect] = {vm.vm: vm for vm in incident.suspects}
        suspects.update((vm.vm, vm) for vm in trigger.suspects)
        for v in trigger.victims:
            suspect, before = suspects.get(v.suspect), known.get(v.vm)
            found[number, v.vm] = fleet_pb2.SufferingVm(
                vm=v.vm, name=v.name, job=v.job, project=before.project if before else "", host=incident.host,
                incident=number, since_unix_ns=before.first_unix_ns if before else incident.first_unix_ns,
                slow_down=_slow_down(v), suspect=v.suspect, suspect_name=suspect.name if suspect else "",
                suspect_job=suspect.job if suspect else "",
            )  # fmt: skip
    return list(found.values())


def _slow_down(victim: agent_pb2.TriggerVictim) -> agent_pb2.Degradation | None:
    return victim.slow_down if victim.HasField("slow_down") else None


def _last_reports(connection: sa.Connection, numbers: Sequence[int]) -> Iterator[tuple[int, agent_pb2.Trigger]]:
    """Yield the last report of each of these incidents; several, if they have the same time."""
    i, r = tables.incidents.c, tables.reports.c
    last = sa.select(r.incident, r.payload).join(tables.incidents, (i.id == r.incident) & (i.last_unix_ns == r.unix_ns))
    for number, payload in connection.execute(last.where(r.incident.in_(numbers))) if numbers else ():
        yield number, agent_pb2.Trigger.FromString(payload)
