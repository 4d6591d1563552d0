"""Central's configuration: a TOML file into frozen structs. docs/configuration.md is made from this file."""

import os
import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from central.authorisation.revocation_list import Revoked
from whitepanda.common.config import address_problem, is_loopback, load_toml
from whitepanda.common.errors import TlsError
from whitepanda.common.tls import TlsFiles, problems, warnings

_REPLICA = re.compile(r"[A-Za-z0-9-]{1,64}")
_BUCKET = re.compile(r"s3://[^/]+(/.*)?")
_SPARK_MASTER = re.compile(r"local(-cluster)?(\[[^\]]+\])?|yarn|(spark|k8s|mesos)://.+")


class CentralSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The daemon itself."""

    listen: str = "127.0.0.1:7443"  # host:port; port 0 takes a free one and logs it
    http_listen: str = "127.0.0.1:7480"  # the fleet API as JSON; beyond loopback with mTLS; "" = none
    state_dir: str = "/var/lib/whitepanda-central"  # journal
    lake_dir: str = ""  # "" = state_dir/lake
    replica: str = "central-0"  # unlike that of others on the same lake; part of segment names
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # least level logged, to standard error
    tls: TlsFiles = TlsFiles()
    operators: tuple[str, ...] = ("operator",)  # certificate names that may ask the fleet API
    # those of the operators that may acknowledge, note and silence incidents
    responders: tuple[str, ...] = ("operator",)
    importers: tuple[str, ...] = ("importer",)  # certificate names that may submit rows of other machines
    revoked_serials: str = ""  # file of `whitepanda pki revoke`: certificates that no longer count; "" = none


class IngestSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits and pace of what agents send."""

    max_batch_rows: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000  # larger batches are refused whole
    # messages with more are refused, except importers' batches
    max_host_jobs: Annotated[int, Meta(ge=1, le=100_000)] = 4_000
    max_message_bytes: Annotated[int, Meta(ge=1 << 16, le=1 << 28)] = 4 << 20  # larger messages end the stream
    max_streams: Annotated[int, Meta(ge=1, le=1_000_000)] = 12_000  # further hosts are refused until others leave
    # hosts that do not read acknowledgements for this long are disconnected
    unread_s: Annotated[float, Meta(ge=1, le=86_400)] = 60.0
    commit_interval_ms: Annotated[int, Meta(ge=1, le=10_000)] = 20  # group commit: how long the journal gathers batches
    # or 128 MiB of them: nothing is read; at half, agents slow down
    max_pending_batches: Annotated[int, Meta(ge=1, le=1_000_000)] = 24_000
    # windows that start more than this in the future are refused
    max_future_s: Annotated[float, Meta(ge=1, le=10 * 366 * 86_400)] = 3600.0
    max_past_days: Annotated[float, Meta(ge=1, le=36_500)] = 31.0  # older windows are refused, except importers'
    max_cpi: Annotated[float, Meta(ge=1, le=1e6)] = 100.0  # larger values are refused as absurd
    max_cpu_usage_cores: Annotated[float, Meta(ge=1, le=1e6)] = 4096.0  # larger values are refused as absurd
    max_events: Annotated[int, Meta(ge=1, le=100_000_000)] = 100_000  # kept of hosts' reports; the oldest go first
    roll_interval_s: Annotated[float, Meta(ge=0.05, le=86_400)] = 60.0  # how often the journal rolls into a segment
    roll_rows: Annotated[int, Meta(ge=1, le=100_000_000)] = 500_000  # or when it holds this many rows
    # held to drain a full journal, at most a tenth of the disk; 0 = none
    journal_reserve_mib: Annotated[int, Meta(ge=0, le=65_536)] = 64


class HttpSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clients of central.http_listen."""

    max_connections: Annotated[int, Meta(ge=1, le=100_000)] = 256  # open together; idle ones give way to new ones
    max_connections_per_address: Annotated[int, Meta(ge=1, le=100_000)] = 64  # of one address, or one IPv6 /64 network
    request_timeout_s: Annotated[float, Meta(ge=0.1, le=3600)] = 10.0  # for a TLS handshake, and for a whole request
    answer_timeout_s: Annotated[float, Meta(ge=1, le=86_400)] = 60.0  # for the client to read an answer


class QuotaSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one host may send to one central (docs/security.md has the arithmetic). Importers have no quota."""

    # windows, events and reports; a batch counts as 10 at least
    max_rows_per_minute: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 600_000
    max_gib_per_day: Annotated[float, Meta(ge=0.001, le=1_000_000)] = 32.0  # of batches
    max_vms_per_hour: Annotated[int, Meta(ge=1, le=10_000_000)] = 5_000  # a VM counts once with each of its jobs
    # new spools and gaps in their numbers: central remembers each
    max_ranges_per_day: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 2_000
    max_report_mib_per_day: Annotated[float, Meta(ge=0.001, le=1_000_000)] = 16.0  # of contention; more are dropped
    max_events_per_host: Annotated[int, Meta(ge=1, le=100_000_000)] = 5_000  # of ingest.max_events; its oldest go first


class IncidentsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """History of the contention that hosts report."""

    url: str = ""  # postgresql://user:password@host/database, for replicas; "" = SQLite in state_dir
    quiet_gap_s: Annotated[float, Meta(ge=1, le=7 * 86_400)] = 900.0  # longer pauses end an incident; at least 2 slots
    retention_days: Annotated[float, Meta(ge=1, le=3660)] = 400.0  # incidents that were over before are forgotten


class WebhooksSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Receivers of incidents over HTTP, in the form of Alertmanager's webhooks (docs/monitoring.md)."""

    urls: tuple[str, ...] = ()  # where messages are posted: https, or http on this machine
    secret_file: str = ""  # what signs messages, in a file that only central's user may read; "" = unsigned
    ca: str = ""  # PEM file: CAs of the receivers' certificates; "" = the system's
    incident_url: str = ""  # where people see an incident, `{id}` is its number; "" = nowhere
    timeout_s: Annotated[float, Meta(ge=0.1, le=300)] = 10.0  # for a receiver's answer
    retry_for_s: Annotated[float, Meta(ge=0, le=30 * 86_400)] = 86400.0  # notices not taken in this time are given up
    max_waiting: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000  # notices for one receiver; the oldest go first


class LakeSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What central does for its lake by itself, once a day, by the replica that builds."""

    compact: bool = True  # merge the small segments of finished days
    raw_days: Annotated[int, Meta(ge=0, le=36_500)] = 0  # older samples are deleted once they are in slots; 0 = never
    slot_days: Annotated[int, Meta(ge=0, le=36_500)] = 0  # the same of slots; at least raw_days, build.days; 0 = never


class BuildSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Job statistics and coefficients."""

    interval_s: Annotated[float, Meta(ge=0.05, le=31 * 86_400)] = 3600.0  # between builds, if there are new segments
    # between roll-ups to slots where builds are rarer: history reads the windows since the last one
    roll_up_interval_s: Annotated[float, Meta(ge=1, le=86_400)] = 300.0
    slot_s: Annotated[float, Meta(ge=1, le=86_400)] = 300.0  # windows are merged into such slots; divides a day
    days: Annotated[int, Meta(ge=1, le=3660)] = 31  # how far back a build looks
    # windows that are more than a day late wait at most this long
    late_interval_s: Annotated[float, Meta(ge=0, le=31 * 86_400)] = 6 * 3600.0
    # task slots (3 h of one VM); jobs of fewer are shown, not sent to hosts
    min_samples: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 36
    ttl_s: Annotated[float, Meta(ge=60, le=3660 * 86_400)] = 7 * 86400.0  # how long an agent may use a version
    memory_limit_mib: Annotated[int, Meta(ge=64, le=1 << 24)] = 2048  # of the engine
    threads: Annotated[int, Meta(ge=1, le=1024)] = 2  # that the engine computes on; ingest shares the machine with it
    method: Literal["whitepanda", "panda"] = "whitepanda"  # coefficients' estimator; alike on all replicas
    engine: Literal["duckdb", "spark"] = "duckdb"  # what state and coefficients are computed on
    spark_master: str = "local[2]"  # of engine spark; its workers must see the state's folder
    lease_s: Annotated[float, Meta(ge=1, le=86_400)] = 120.0  # another replica takes over from a builder silent so long
    # of a machine day, by platform; of more the most common ones count
    max_machine_jobs: Annotated[int, Meta(ge=1, le=5000)] = 500


class PlacementSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Loading vectors of the live fleet, and how full a host may be; host facts come first where they are known."""

    cpu_cores: Annotated[float, Meta(ge=1, le=1e6)] = 32.0  # cores of a host without facts
    # vCPUs per logical CPU; a host with more is full. Set your scheduler's; 0 = never full
    cpu_overcommit: Annotated[float, Meta(ge=0, le=1e6)] = 4.0
    memory_overcommit: Annotated[float, Meta(ge=0, le=1e6)] = 1.0  # the same of the VMs' memory over the host's
    # cores whose waits its memory serves at once; 0 = as many as it has
    memory_units: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    disk_units: Annotated[float, Meta(ge=0, le=1e6)] = 0.0  # VMs whose waits its disks serve at once; 0 = its disks
    # memory bandwidth, to take rates instead of measured waits; 0 = waits
    memory_bytes_per_s: Annotated[float, Meta(ge=0, le=1e15)] = 0.0
    disk_bytes_per_s: Annotated[float, Meta(ge=0, le=1e15)] = 0.0  # the same of its disks, read and written
    network_bytes_per_s: Annotated[float, Meta(ge=0, le=1e15)] = 0.0  # of its network; 0 = its NICs
    window_s: Annotated[float, Meta(ge=60, le=86_400)] = 900.0  # how far back windows are read
    gone_s: Annotated[float, Meta(ge=60, le=86_400)] = 300.0  # a VM without windows for so long is on no host any more
    refresh_s: Annotated[float, Meta(ge=0, le=86_400)] = 60.0  # how old an answer may be


class RuntimeSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Predictions of runtimes by the fleet API."""

    model: str = ""  # file from `whitepanda runtime fit`, read again when it changes; "" = no predictions


class CentralConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of it."""

    central: CentralSection
    ingest: IngestSection = IngestSection()
    quotas: QuotaSection = QuotaSection()
    http: HttpSection = HttpSection()
    build: BuildSection = BuildSection()
    incidents: IncidentsSection = IncidentsSection()
    webhooks: WebhooksSection = WebhooksSection()
    lake: LakeSection = LakeSection()
    placement: PlacementSection = PlacementSection()
    runtime: RuntimeSection = RuntimeSection()

    def file_problems(self) -> list[str]:
        """Return why central would not start with the TLS files and the revoked serials that are named here."""
        tls, prefix = self.central.tls, "central.tls"
        doubts = warnings(tls, server=True, prefix=prefix)
        found = [each for each in problems(tls, server=True, prefix=prefix) if each not in doubts]
        try:
            Revoked(self.central.revoked_serials).load()
        except TlsError as error:
            found.append(str(error))
        return found


_OTHERS = {"agent": "this is an agent's configuration; start it with `whitepanda agent run`"}


def load(path: Path) -> CentralConfig:
    """Read and check central's configuration. Raises ConfigError: file, key, value and remedy of each problem."""
    return load_toml(path, CentralConfig, _problems, _OTHERS)


def _problems(config: CentralConfig, wrong: Container[str]) -> Iterator[str]:
    """Yield problems that the file alone shows, beside those of the keys in `wrong`."""
    central = config.central
    for key, address in (("listen", central.listen), ("http_listen", central.http_listen)):
        problem = address_problem(f"central.{key}", address, min_port=0)
        if problem and (address or key == "listen"):
            yield problem
    if "build.slot_s" not in wrong and 86400 % config.build.slot_s:
        yield f"build.slot_s must divide a day, 86400 s (value {config.build.slot_s})"
    slot_days, least = config.lake.slot_days, max(config.lake.raw_days or 36_501, config.build.days)
    if slot_days < least and slot_days and "lake.raw_days" not in wrong and "build.days" not in wrong:
        yield (
            "lake.slot_days must be 0, or at least lake.raw_days (which must be set) and build.days "
            f"(value {slot_days})"
        )
    if not _REPLICA.fullmatch(central.replica):
        yield f"central.replica must be 1 to 64 letters, digits and '-' (value {central.replica[:80]!r})"
    for number, name in enumerate(central.operators):
        if not name:
            yield f"central.operators[{number}] must be the name of a certificate (value '')"
    yield from _place_problems(central)
    kind, colon, _ = config.incidents.url.partition("://")
    if config.incidents.url and not (colon and kind.partition("+")[0] == "postgresql"):
        # The rest may hold a password
        begins = f"begins with {kind[:20]!r}" if colon else "is not a URL"
        yield f'incidents.url must be postgresql://user:password@host/database, or "" for SQLite (value {begins})'
    yield from _webhook_problems(config.webhooks)
    if config.build.engine == "spark" and not _SPARK_MASTER.fullmatch(config.build.spark_master):
        yield (
            "build.spark_master must be a master of Spark such as local[2], spark://host:7077, yarn or "
            f"k8s://https://host:443 (value {config.build.spark_master[:80]!r})"
        )


def _webhook_problems(webhooks: WebhooksSection) -> Iterator[str]:
    """Yield problems of URLs, without what may be a secret in them."""
    known = set()
    for number, url in enumerate(webhooks.urls):
        key = f"webhooks.urls[{number}]"
        scheme, host = _scheme_and_host(url)
        if scheme not in {"http", "https"} or not host:
            yield f"{key} must be https://host[:port]/path (value begins with {url.partition('://')[0][:20]!r})"
        elif scheme == "http" and not is_loopback(host):
            yield f"{key} must be https: messages name VMs and jobs; http only to this machine (host {host[:80]!r})"
        if url in known:
            yield f"{key} is given twice (host {host[:80]!r})"
        known.add(url)
    url = webhooks.incident_url
    if url and (_scheme_and_host(url)[0] not in {"http", "https"} or "{id}" not in url):
        yield (
            "webhooks.incident_url must be a URL with {id} where the incident's number belongs, such as "
            f"https://central.example.net:7480/#/incident/{{id}} (value {url[:80]!r})"
        )


def _scheme_and_host(url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is not a number
    except ValueError:
        return "", ""
    return parts.scheme, parts.hostname or ""


def _place_problems(central: CentralSection) -> Iterator[str]:
    """Yield problems of folders; missing ones are made at the start."""
    places = [("state_dir", central.state_dir)]
    if "://" not in central.lake_dir:
        places.append(("lake_dir", central.lake_dir))
    elif not _BUCKET.fullmatch(central.lake_dir):
        yield f"central.lake_dir must be a folder or s3://bucket/prefix (value {central.lake_dir[:80]!r})"
    if not central.state_dir:
        yield "central.state_dir must be a folder (value '')"
    for key, place in places:
        for part in (Path(place), *Path(place).parents):
            if os.path.lexists(part) and not os.path.isdir(part):  # noqa: PTH112 - it never raises
                yield f"central.{key} must be a folder, and {part} is none (value {place[:80]!r})"
