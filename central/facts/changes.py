"""What changed on a host: VMs that started, went, moved or were limited; its clock. Functions of a connection."""

from collections import defaultdict
from typing import Any

import sqlalchemy as sa

from central.facts.tables import facts
from whitepanda.v1 import agent_pb2, fleet_pb2

_FIRST_NS = 30 * 10**9  # after a host's first facts, in which its VMs are new to central and not started
_MOVE_NS = 3600 * 10**9  # between the reports of the two hosts of a migration
#: Field, words, unit and its size.
_LIMITS: tuple[tuple[Any, str, str, int], ...] = (
    ("cpu_quota_cores", "CPU quota", "cores", 1),
    ("vcpus", "vCPUs", "", 1),
    ("memory_bytes", "memory", "MiB", 1 << 20),
)

_c = facts.c


def changes(
    connection: sa.Connection, host: str, since_unix_ns: int, until_unix_ns: int, *, limit: int
) -> list[fleet_pb2.IncidentChange]:
    """Return the last `limit` changes of a host and its VMs in a time, the oldest first."""
    first = connection.scalar(sa.select(sa.func.min(_c.from_unix_ns)).where(_c.host == host))
    if first is None:
        return []
    before = sa.func.lag(_c.payload).over(partition_by=_c.vm, order_by=_c.from_unix_ns)
    versions = (
        sa.select(_c.vm, _c.from_unix_ns, _c.payload, before.label("before"))
        .where(_c.host == host, _c.from_unix_ns <= until_unix_ns)
        .subquery()
    )
    v = versions.c
    shown = sa.select(versions).where(v.from_unix_ns >= max(since_unix_ns, first + _FIRST_NS))
    rows = connection.execute(shown.order_by(v.from_unix_ns.desc(), v.vm).limit(limit)).all()
    elsewhere = _elsewhere(connection, host, sorted({row.vm for row in rows}))
    found = []
    for row in reversed(rows):
        if not row.vm:
            found += _of_host(host, row)
            continue
        now = agent_pb2.VmFacts.FromString(row.payload)
        last = None if row.before is None else agent_pb2.VmFacts.FromString(row.before)
        same = {"vm": row.vm, "name": now.name, "unix_ns": row.from_unix_ns}
        for kind, text in _of_vm(last, now, row.from_unix_ns, elsewhere[row.vm]):
            found.append(fleet_pb2.IncidentChange(kind=kind, text=f"VM {now.name or row.vm} {text}", **same))
    return found[-limit:]


def _of_host(host: str, row: Any) -> list[fleet_pb2.IncidentChange]:
    """Return that its clock was set, if the version before had not said so."""
    now = agent_pb2.HostFacts.FromString(row.payload)
    last = agent_pb2.HostFacts() if row.before is None else agent_pb2.HostFacts.FromString(row.before)
    if now.clock_set_unix_ns in (0, last.clock_set_unix_ns):
        return []
    kind, text = fleet_pb2.CHANGE_KIND_CLOCK_SET, f"the clock of host {host} was set by {now.clock_step_s:+.4g} s"
    return [fleet_pb2.IncidentChange(kind=kind, text=text, unix_ns=row.from_unix_ns)]


def _elsewhere(connection: sa.Connection, host: str, vms: list[str]) -> dict[str, list[Any]]:
    """Return what other hosts said of these VMs, the oldest first."""
    found: dict[str, list[Any]] = defaultdict(list)
    others = sa.select(_c.vm, _c.host, _c.from_unix_ns, _c.gone).where(_c.vm.in_(vms), _c.host != host)
    for row in connection.execute(others.order_by(_c.from_unix_ns)) if vms else ():
        found[row.vm].append(row)
    return found


def _of_vm(
    last: agent_pb2.VmFacts | None, now: agent_pb2.VmFacts, unix_ns: int, elsewhere: list[Any]
) -> "list[tuple[fleet_pb2.ChangeKind, str]]":
    if (moved := _move(last, now, unix_ns, elsewhere)) is not None:
        return [moved]
    found = []
    if last is not None and (limits := _limits(last, now)):
        found.append((fleet_pb2.CHANGE_KIND_LIMIT_SET, ", ".join(limits)))
    before = set(last.limits) if last is not None else set[str]()
    ended, begun = fleet_pb2.CHANGE_KIND_REMEDY_ENDED, fleet_pb2.CHANGE_KIND_REMEDY_BEGUN
    found += [(ended, f"is not limited by whitepanda act any more: {one}") for one in sorted(before - set(now.limits))]
    found += [(begun, f"is limited by whitepanda act: {one}") for one in sorted(set(now.limits) - before)]
    return found


def _move(
    last: agent_pb2.VmFacts | None, now: agent_pb2.VmFacts, unix_ns: int, elsewhere: list[Any]
) -> "tuple[fleet_pb2.ChangeKind, str] | None":
    """Return that a VM went, came or started; None: it was there, and is."""
    if now.gone:
        near = [row.host for row in elsewhere if not row.gone and abs(row.from_unix_ns - unix_ns) < _MOVE_NS]
        if near:
            return fleet_pb2.CHANGE_KIND_VM_MIGRATED, f"went to host {near[-1]}"
        return fleet_pb2.CHANGE_KIND_VM_GONE, "is gone"
    if last is None or last.gone:
        known = [row for row in elsewhere if row.from_unix_ns <= unix_ns + (_MOVE_NS if row.gone else 0)]
        was_there = any(not row.gone for row in known)
        # There still, or gone when it came here.
        if was_there and (not known[-1].gone or abs(known[-1].from_unix_ns - unix_ns) < _MOVE_NS):
            return fleet_pb2.CHANGE_KIND_VM_MIGRATED, f"came from host {known[-1].host}"
        return fleet_pb2.CHANGE_KIND_VM_STARTED, "started"
    if last.epoch != now.epoch:
        return fleet_pb2.CHANGE_KIND_VM_STARTED, "was started again"
    return None


def _limits(last: agent_pb2.VmFacts, now: agent_pb2.VmFacts) -> list[str]:
    """Return what its owner's limits were, and are, if these are others."""
    limits = []
    for field, words, unit, size in _LIMITS:
        before, after = (f"{getattr(one, field) / size:g}" if one.HasField(field) else "none" for one in (last, now))
        if before != after:
            limits.append(f"{words} {before} -> {after} {unit}".rstrip())
    return limits
