"""Central's own /metrics for Prometheus: the answer of `GetFleetStatus`."""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily as Counter
from prometheus_client.metrics_core import GaugeMetricFamily as Gauge
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from whitepanda.v1 import fleet_pb2

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "whitepanda_central_"

_Make = Callable[[str, str, fleet_pb2.FleetStatus], Metric]
#: Returns the samples of a metric: label values and the value; no sample if it is not known.
_Samples = Callable[[fleet_pb2.FleetStatus], Iterable[tuple[tuple[str, ...], float]]]


def _family(kind: type[Counter | Gauge], samples: _Samples, *labels: str) -> _Make:
    def make(name: str, text: str, status: fleet_pb2.FleetStatus) -> Metric:
        family = kind(name, text, labels=labels)
        for values, value in samples(status):
            family.add_metric(values, value)
        return family

    return make


def _plain(kind: type[Counter | Gauge], field: str) -> _Make:
    return _family(kind, lambda status: [((), getattr(status, field))])


def _by_reason(field: str) -> _Make:
    return _family(Counter, lambda status: [((one.reason,), one.count) for one in getattr(status, field)], "reason")


def _failed(field: str) -> _Make:
    """1 if the field says why, else 0."""
    return _family(Gauge, lambda status: [((), float(bool(getattr(status, field))))])


def _time(field: str) -> _Make:
    return _family(Gauge, lambda status: [((), at / 1e9)] if (at := getattr(status, field)) else [])


def _receivers(kind: type[Counter | Gauge], field: str) -> _Make:
    return _family(kind, lambda status: [((one.receiver,), getattr(one, field)) for one in status.webhooks], "receiver")


def _open_incidents(status: fleet_pb2.FleetStatus) -> list[tuple[tuple[str, ...], float]]:
    if not status.HasField("open_incidents"):
        return []
    silenced, acknowledged = status.silenced_incidents, status.acknowledged_incidents
    counts = {"new": status.open_incidents - silenced - acknowledged, "acknowledged": acknowledged}
    return [((state,), count) for state, count in {**counts, "silenced": silenced}.items()]


def _quiet_vms(status: fleet_pb2.FleetStatus) -> list[tuple[tuple[str, ...], float]]:
    return [((vm,), 1.0) for vm in sorted({*status.quiet_victims, *status.silenced_vms})]


def _oldest_waiting(status: fleet_pb2.FleetStatus) -> Iterator[tuple[tuple[str, ...], float]]:
    for one in status.webhooks:
        if one.oldest_waiting_unix_ns:
            yield (one.receiver,), one.oldest_waiting_unix_ns / 1e9


def _dropped(status: fleet_pb2.FleetStatus) -> Iterator[tuple[tuple[str, ...], float]]:
    return (((each.receiver, one.reason), one.count) for each in status.webhooks for one in each.dropped)


def _acknowledgements(name: str, text: str, status: fleet_pb2.FleetStatus) -> Metric:
    times = status.acknowledgements
    bounds = [*(f"{bound:g}" for bound in times.bound_s), "+Inf"]
    buckets = list(zip(bounds, accumulate(times.batches), strict=False)) or [("+Inf", 0)]
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=times.sum_s)


# fmt: off
#: Name in /metrics (without prefix), what it is, how it is made of a FleetStatus.
_METRICS: tuple[tuple[str, str, _Make], ...] = (
    ("accepted_batches", "distinct batches ever accepted", _plain(Counter, "accepted_batches")),
    ("accepted_rows", "VM windows taken, ever", _plain(Counter, "accepted_rows")),
    ("duplicate_batches", "batches already received", _plain(Counter, "duplicate_batches")),
    ("accepted_events", "host events ever accepted", _plain(Counter, "accepted_events")),
    ("rejected_rows", "VM windows refused", _by_reason("rejected")),
    ("rejected_values", "single values of accepted VM windows taken as not known", _by_reason("rejected_values")),
    ("rejected_batches", "batches refused whole", _by_reason("rejected_batches")),
    ("rejected_events", "events and reports of contention refused", _by_reason("rejected_events")),
    ("refused_streams", "streams and TLS handshakes refused since central's start", _by_reason("refused_streams")),
    ("connected_hosts", "open streams", _plain(Gauge, "connected_hosts")),
    ("known_hosts", "hosts that ever connected", _plain(Gauge, "known_hosts")),
    ("journal_batches", "batches that wait for the next roll", _plain(Gauge, "journal_batches")),
    ("lake_segments", "segments in the lake", _plain(Gauge, "lake_segments")),
    ("lake_rows", "rows in the lake", _plain(Gauge, "lake_rows")),
    ("coefficient_version", "version in force, 0 for none", _plain(Gauge, "coefficient_version")),
    ("rows_left_out", "rows of days too old for that version", _plain(Gauge, "rows_left_out")),
    ("revoked_certificates", "serials of central.revoked_serials that are in force",
     _plain(Gauge, "revoked_certificates")),
    ("hosts_over_quota", "hosts that had something refused or dropped by [quotas] within 5 minutes",
     _plain(Gauge, "over_quota")),
    ("hosts_paced", "hosts that central asks to wait between batches", _plain(Gauge, "paced_hosts")),
    ("damaged_files", "files of the lake that the last build or compaction found damaged",
     _plain(Gauge, "damaged_files")),
    ("machines_left_out", "machines left out of that version because rows of a day made a build fail",
     _family(Gauge, lambda status: [((), len(status.machines_left_out))])),
    ("build_failed", "1 if the last build failed, else 0", _failed("last_build_error")),
    ("commit_failed", "1 while the journal cannot commit and nothing is acknowledged, else 0",
     _failed("last_commit_error")),
    ("roll_failed", "1 while the journal cannot be rolled into the lake, else 0", _failed("last_roll_error")),
    ("revocation_failed", "1 while the list of revoked serials cannot be used, else 0",
     _failed("last_revocation_error")),
    ("incidents_failed", "1 while incident history takes no reports, else 0", _failed("last_incidents_error")),
    ("acknowledgement_seconds", "from a batch's arrival until it was on disk, since central's start",
     _acknowledgements),
    ("webhook_delivered_notices", "notices that a receiver took, since central's start",
     _receivers(Counter, "delivered")),
    ("webhook_failed_attempts", "posts that a receiver did not take, since central's start",
     _receivers(Counter, "failed_attempts")),
    ("webhook_waiting_notices", "notices that wait for a receiver", _receivers(Gauge, "waiting")),
    ("webhook_oldest_waiting_timestamp_seconds",
     "time of a receiver's oldest waiting notice, since 1970; absent if none waits",
     _family(Gauge, _oldest_waiting, "receiver")),
    ("webhook_dropped_notices", "notices given up, by reason, since central's start",
     _family(Counter, _dropped, "receiver", "reason")),
    ("open_incidents", "hosts with suffering VMs, by what people did about it; absent while incident history is down",
     _family(Gauge, _open_incidents, "state")),
    ("quiet_vm", "1 for silenced VMs (at most 5000) and victims of silenced or acknowledged incidents (at most 1000)",
     _family(Gauge, _quiet_vms, "vm")),
    ("silenced_host", "1 for each host that a silence matches as a whole; at most 200",
     _family(Gauge, lambda status: [((host,), 1.0) for host in status.silenced_hosts], "host")),
    ("coefficients_created_timestamp_seconds", "when the version in force was made, since 1970; none without a version",
     _time("coefficient_created_unix_ns")),
    ("certificate_expiry_timestamp_seconds", "when central's own certificate expires, since 1970",
     _time("certificate_expiry_unix_ns")),
    ("start_time_seconds", "when central started, since 1970",
     _family(Gauge, lambda status: [((), status.started_unix_ns / 1e9)])),
    ("info", "1, with central's version", _family(Gauge, lambda status: [((status.central_version,), 1.0)], "version")),
)
# fmt: on


class _Families(Collector):
    def __init__(self, status: fleet_pb2.FleetStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        return (make(_PREFIX + name, text, self._status) for name, text, make in _METRICS)


def render(status: fleet_pb2.FleetStatus) -> bytes:
    """Return the text of /metrics, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Families(status))
    return generate_latest(registry)
