"""Hosts: the list, one host's summary, which send nothing, and which are held back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from central.api.requests import Token, read_page
from central.ingest.handshake import HEARTBEAT_MS
from central.ingest.sessions import StreamRegistry
from central.journal.tables import HostRecord
from central.journal.writer import Journal
from whitepanda.v1 import agent_pb2, fleet_pb2

#: A host without VMs sends heartbeats only.
_LATE_NS = HEARTBEAT_MS * 10**6 + 60 * 10**9


class HostsToken(Token, frozen=True, array_like=True, tag="hosts"):
    """Place in the list of hosts: after a name."""

    after: str = ""


@dataclass(eq=False)
class Hosts:
    """Answers on all hosts that ever connected."""

    journal: Journal
    registry: StreamRegistry
    importers: frozenset[str]  # they send traces and are never late or gone
    over_quota: Callable[[], Mapping[str, Mapping[str, int]]]  # what was refused, by host and budget

    async def list_hosts(self, request: fleet_pb2.ListHostsRequest) -> fleet_pb2.ListHostsResponse:
        """Every host that ever connected, by name."""
        page = read_page(request, HostsToken)
        names = sorted(name for name in self.journal.hosts if name > page.token.after)
        shown, token = page.cut(names, lambda name: {"after": name})
        over_quota = self.over_quota()
        return fleet_pb2.ListHostsResponse(
            hosts=[self._summary(self.journal.hosts[name], over_quota) for name in shown], next_page_token=token
        )

    def summary(self, host: str) -> fleet_pb2.HostSummary | None:
        """Return what is known of a host; None if it never connected."""
        record = self.journal.hosts.get(host)
        return None if record is None else self._summary(record, self.over_quota())

    def _summary(self, record: HostRecord, over_quota: Mapping[str, Mapping[str, int]]) -> fleet_pb2.HostSummary:
        stream = self.registry.get(record.host)
        latest = stream or record
        is_importer = record.host in self.importers
        return fleet_pb2.HostSummary(
            host=record.host,
            platform=record.platform,
            agent_version=record.agent_version,
            protocol_version=record.protocol_version,
            connected=stream is not None,
            last_seen_unix_ns=record.last_seen_unix_ns,
            accepted_rows=record.accepted_rows,
            spooled_batches=latest.spooled_batches,
            dropped_batches=latest.dropped_batches,
            coefficient_version=latest.coefficient_version,
            jobs=sorted(latest.jobs),
            clock_offset_ns=record.clock_offset_ns,
            importer=is_importer,
            over_quota=by_reason(over_quota.get(record.host, {})),
            min_batch_interval_ms=stream.min_batch_interval_ms if stream and not is_importer else 0,
        )

    def counts(self) -> tuple[int, int]:
        """Return how many hosts ever connected, and how many are connected; without importers."""
        connected = (stream.host for stream in self.registry.connected())
        return (
            sum(host not in self.importers for host in self.journal.hosts),
            sum(host not in self.importers for host in connected),
        )

    def paced(self) -> dict[str, int]:
        """Return the interval between batches, ms, by host that is asked for one."""
        return {
            stream.host: stream.min_batch_interval_ms
            for stream in self.registry.connected()
            if stream.min_batch_interval_ms and stream.host not in self.importers
        }

    def held_back(self) -> list[fleet_pb2.HeldBackHost]:
        """Return hosts over their quota or asked for fewer batches, the most refused first."""
        over_quota, paced = self.over_quota(), self.paced()

        def order(host: str) -> tuple[int, int, str]:
            return -sum(over_quota.get(host, {}).values()), -paced.get(host, 0), host

        return [
            fleet_pb2.HeldBackHost(
                host=host, over_quota=by_reason(over_quota.get(host, {})), min_batch_interval_ms=paced.get(host, 0)
            )
            for host in sorted(over_quota.keys() | paced.keys(), key=order)
        ]

    def silence(self, now_unix_ns: int) -> fleet_pb2.DataHealth:
        """Return the hosts that send nothing, the longest silent first, their counts, and all hosts' batches."""
        found = fleet_pb2.DataHealth()
        for record in self.journal.hosts.values():
            stream = self.registry.get(record.host)
            latest = stream or record
            found.spooled_batches += latest.spooled_batches
            found.dropped_batches += latest.dropped_batches
            if record.host in self.importers:
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
