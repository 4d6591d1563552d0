"""Central's own /metrics for Prometheus: the answer of `GetFleetStatus`."""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from whitepanda.v1 import agent_pb2, fleet_pb2

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "whitepanda_central_"

# fmt: off
#: Name in /metrics (without prefix), field of FleetStatus, what it is.
COUNTERS = (
    ("accepted_batches", "accepted_batches", "batches taken, ever, each once"),
    ("accepted_rows", "accepted_rows", "VM windows taken, ever"),
    ("duplicate_batches", "duplicate_batches", "batches that were there already"),
    ("accepted_events", "accepted_events", "events of hosts taken, ever"),
)
#: The same, by reason.
REASONS = (
    ("rejected_rows", "rejected", "VM windows refused"),
    ("rejected_batches", "rejected_batches", "batches refused whole"),
    ("rejected_events", "rejected_events", "events and reports of contention refused"),
    ("refused_streams", "refused_streams", "streams and TLS handshakes refused since central's start"),
)
GAUGES = (
    ("connected_hosts", "connected_hosts", "open streams"),
    ("known_hosts", "known_hosts", "hosts that ever connected"),
    ("journal_batches", "journal_batches", "batches that wait for the next roll"),
    ("lake_segments", "lake_segments", "segments in the lake"),
    ("lake_rows", "lake_rows", "rows in the lake"),
    ("coefficient_version", "coefficient_version", "version in force, 0 for none"),
    ("rows_left_out", "rows_left_out", "rows of days too old to count in that version"),
    ("revoked_certificates", "revoked_certificates", "serials of central.revoked_serials that are in force"),
    ("hosts_over_quota", "over_quota", "hosts that had something refused or dropped by [quotas] within 5 minutes"),
    ("hosts_paced", "paced_hosts", "hosts that central asks to wait between batches"),
    ("damaged_files", "damaged_files", "files of the lake that the last build or compaction found damaged"),
)
MACHINES_LEFT_OUT = (
    "machines_left_out", "machines whose rows of some day made a build fail, so are not in that version",
)
#: 1 where the field says why, else 0.
FAILURES = (
    ("build_failed", "last_build_error", "1 where the last build failed, else 0"),
    ("commit_failed", "last_commit_error", "1 while the journal cannot commit and nothing is acknowledged, else 0"),
    ("roll_failed", "last_roll_error", "1 while the journal cannot be rolled into the lake, else 0"),
    ("revocation_failed", "last_revocation_error", "1 while the list of revoked serials cannot be used, else 0"),
    ("incidents_failed", "last_incidents_error", "1 while incident history takes no reports, else 0"),
)
# fmt: on
ACKNOWLEDGEMENT = "acknowledgement_seconds"
#: Of each receiver of webhooks: name, field of WebhookReceiver, what it is. The first two are counters.
WEBHOOKS = (
    ("webhook_delivered_notices", "delivered", "notices that a receiver took, since central's start"),
    ("webhook_failed_attempts", "failed_attempts", "posts that a receiver did not take, since central's start"),
    ("webhook_waiting_notices", "waiting", "notices that wait for a receiver"),
)
WEBHOOK_DROPPED = "webhook_dropped_notices"
WEBHOOK_OLDEST = "webhook_oldest_waiting_timestamp_seconds"
OPEN_INCIDENTS = "open_incidents"
CERTIFICATE_EXPIRY = "certificate_expiry_timestamp_seconds"
COEFFICIENTS_CREATED = "coefficients_created_timestamp_seconds"


class _Families(Collector):
    def __init__(self, status: fleet_pb2.FleetStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status
        for name, field, text in COUNTERS:
            yield CounterMetricFamily(_PREFIX + name, text, getattr(status, field))
        for name, field, text in REASONS:
            yield _by_reason(name, text, getattr(status, field))
        for name, field, text in GAUGES:
            yield GaugeMetricFamily(_PREFIX + name, text, getattr(status, field))
        left_out = len(status.machines_left_out)
        yield GaugeMetricFamily(_PREFIX + MACHINES_LEFT_OUT[0], MACHINES_LEFT_OUT[1], left_out)
        for name, field, text in FAILURES:
            yield GaugeMetricFamily(_PREFIX + name, text, float(bool(getattr(status, field))))
        yield _times(status.acknowledgements)
        yield from _webhooks(status.webhooks)
        text = "hosts with VMs that suffer now; none while incident history is away"
        yield _known(OPEN_INCIDENTS, text, status.open_incidents if status.HasField("open_incidents") else None)
        text = "when the version in force was made, since 1970; none without a version"
        yield _known(COEFFICIENTS_CREATED, text, status.coefficient_created_unix_ns / 1e9 or None)
        text = "when central's own certificate expires, since 1970"
        yield _known(CERTIFICATE_EXPIRY, text, status.certificate_expiry_unix_ns / 1e9 or None)
        text = "when central started, since 1970"
        yield GaugeMetricFamily(_PREFIX + "start_time_seconds", text, status.started_unix_ns / 1e9)
        about = GaugeMetricFamily(_PREFIX + "info", "1, with central's version", labels=["version"])
        about.add_metric([status.central_version], 1.0)
        yield about


def _by_reason(name: str, text: str, counts: Iterable[agent_pb2.RejectedRows]) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, text, labels=["reason"])
    for each in counts:
        family.add_metric([each.reason], each.count)
    return family


def _known(name: str, text: str, value: float | None) -> Metric:
    """Return a gauge, without a sample where its value is not known."""
    family = GaugeMetricFamily(_PREFIX + name, text)
    if value is not None:
        family.add_metric([], value)
    return family


def _webhooks(receivers: Iterable[fleet_pb2.WebhookReceiver]) -> Iterator[Metric]:
    listed = list(receivers)
    for name, field, text in WEBHOOKS:
        kind = GaugeMetricFamily if field == "waiting" else CounterMetricFamily
        family = kind(_PREFIX + name, text, labels=["receiver"])
        for each in listed:
            family.add_metric([each.receiver], getattr(each, field))
        yield family
    oldest = GaugeMetricFamily(
        _PREFIX + WEBHOOK_OLDEST,
        "since when a receiver's oldest notice waits, since 1970; none where none does",
        labels=["receiver"],
    )
    dropped = CounterMetricFamily(
        _PREFIX + WEBHOOK_DROPPED, "notices given up, by reason, since central's start", labels=["receiver", "reason"]
    )
    for each in listed:
        if each.oldest_waiting_unix_ns:
            oldest.add_metric([each.receiver], each.oldest_waiting_unix_ns / 1e9)
        for one in each.dropped:
            dropped.add_metric([each.receiver, one.reason], one.count)
    yield oldest
    yield dropped


def _times(times: fleet_pb2.AcknowledgementTimes) -> Metric:
    bounds = [*(f"{bound:g}" for bound in times.bound_s), "+Inf"]
    buckets = list(zip(bounds, accumulate(times.batches), strict=False))
    text = "from a batch's arrival until it was on disk, since central's start"
    buckets = buckets or [("+Inf", 0)]
    return HistogramMetricFamily(_PREFIX + ACKNOWLEDGEMENT, text, buckets=buckets, sum_value=times.sum_s)


def render(status: fleet_pb2.FleetStatus) -> bytes:
    """Return the text of /metrics, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Families(status))
    return generate_latest(registry)
