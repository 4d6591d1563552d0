"""Hosts: the list, one host's summary, which send nothing, and which are held back."""

from collections.abc import Collection, Mapping

from central.api.context import Context
from central.api.requests import read_page
from central.api.vms import of_project
from central.ingest.handshake import HEARTBEAT_MS
from central.journal.tables import HostRecord
from whitepanda.v1 import agent_pb2, fleet_pb2

#: A host without VMs sends heartbeats only.
_LATE_NS = HEARTBEAT_MS * 10**6 + 60 * 10**9
# Fields of HostSummary: those of the journal's record, and those that an open stream knows better.
_RECORDED = (
    "host", "platform", "agent_version", "protocol_version", "last_seen_unix_ns", "accepted_rows", "clock_offset_ns",
)  # fmt: skip
_LATEST = ("spooled_batches", "dropped_batches", "coefficient_version")


async def list_hosts(context: Context, request: fleet_pb2.ListHostsRequest) -> fleet_pb2.ListHostsResponse:
    """Every host that ever connected, by name; of a project those that run its VMs now."""
    page = read_page(request, "hosts", ("",), request.project)
    (after,) = page.place
    hosts, over_quota = context.journal.hosts, context.parts.over_quota()
    names = set(hosts)
    if request.project:
        names &= {each.host for each in await of_project(context, request.project)}
    shown, token = page.cut(sorted(name for name in names if name > after), lambda name: (name,))
    found = [_summary(context, hosts[name], over_quota) for name in shown]
    return fleet_pb2.ListHostsResponse(hosts=found, next_page_token=token)


def summary(context: Context, host: str) -> fleet_pb2.HostSummary | None:
    """Return what is known of a host; None if it never connected."""
    record = context.journal.hosts.get(host)
    return None if record is None else _summary(context, record, context.parts.over_quota())


def _summary(
    context: Context, record: HostRecord, over_quota: Mapping[str, Mapping[str, int]]
) -> fleet_pb2.HostSummary:
    stream = context.registry.get(record.host)
    latest = stream or record
    is_importer = record.host in context.importers
    return fleet_pb2.HostSummary(
        **{name: getattr(record, name) for name in _RECORDED},
        **{name: getattr(latest, name) for name in _LATEST},
        connected=stream is not None,
        jobs=sorted(latest.jobs),
        importer=is_importer,
        over_quota=by_reason(over_quota.get(record.host, {})),
        min_batch_interval_ms=stream.min_batch_interval_ms if stream and not is_importer else 0,
    )


def paced(context: Context) -> dict[str, int]:
    """Return the interval between batches, ms, by host that is asked for one."""
    return {
        stream.host: stream.min_batch_interval_ms
        for stream in context.registry.connected()
        if stream.min_batch_interval_ms and stream.host not in context.importers
    }


def held_back(context: Context) -> list[fleet_pb2.HeldBackHost]:
    """Return hosts over their quota or asked for fewer batches, the most refused first."""
    refused, intervals = context.parts.over_quota(), paced(context)

    def order(host: str) -> tuple[int, int, str]:
        return -sum(refused.get(host, {}).values()), -intervals.get(host, 0), host

    return [
        fleet_pb2.HeldBackHost(
            host=host, over_quota=by_reason(refused.get(host, {})), min_batch_interval_ms=intervals.get(host, 0)
        )
        for host in sorted(refused.keys() | intervals.keys(), key=order)
    ]


def silence(context: Context, now_unix_ns: int, hosts: Collection[str] | None = None) -> fleet_pb2.DataHealth:
    """Return the hosts that send nothing, the longest silent first, their counts, and all hosts' batches.

    `hosts`: only these, by default all.
    """
    found = fleet_pb2.DataHealth()
    for record in context.journal.hosts.values():
        if hosts is not None and record.host not in hosts:
            continue
        stream = context.registry.get(record.host)
        latest = stream or record
        found.spooled_batches += latest.spooled_batches
        found.dropped_batches += latest.dropped_batches
        if record.host in context.importers:
            continue  # it comes with a trace and leaves
        if stream is not None and now_unix_ns - record.last_seen_unix_ns < _LATE_NS:
            continue
        found.late_hosts += stream is not None
        found.gone_hosts += stream is None
        found.silent.add(
            host=record.host,
            connected=stream is not None,
            last_seen_unix_ns=record.last_seen_unix_ns,
            spooled_batches=latest.spooled_batches,
            dropped_batches=latest.dropped_batches,
        )
    found.silent.sort(key=lambda host: (host.last_seen_unix_ns, host.host))
    return found


def by_reason(counts: Mapping[str, int]) -> list[agent_pb2.RejectedRows]:
    """Return counts as the API has them, by reason."""
    return [agent_pb2.RejectedRows(reason=reason, count=count) for reason, count in sorted(counts.items())]
