"""A central with a made-up fleet of any size behind its real HTTP server, for the page's tests, benchmark and pictures.

What there is goes straight into lake, versions, incident history and journal, so that a thousand hosts take a second.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from agent.analysis.advice.actions import recommend
from agent.analysis.advice.recommendations import HostLimits, Situation, Suspect, Victim
from agent.uplink.messages import recommendation_message
from central.api.fleet import Fleet
from central.authorisation.roles import Access
from central.build.builder import Builder
from central.coefficients.versions import COEFFICIENTS, JOB_STATISTICS, Manifest, VersionStore
from central.config import BuildSection
from central.incidents.store import IncidentStore
from central.ingest.sessions import HostStream, StreamRegistry
from central.journal.tables import HostRecord
from central.journal.writer import Journal
from central.lake.schema import SAMPLES
from central.lake.segments import Lake, segment_stem
from central.validation.facts import FactRow
from central.validation.triggers import TriggerRow
from central.web.server import HttpApi
from whitepanda.common.tls import TlsFiles
from whitepanda.v1 import agent_pb2

S = 10**9
PLATFORMS = ("Xeon Gold 6430", "EPYC 9354")
#: Name, usual CPI, usual cores, whether it is latency-sensitive, its coefficient.
KINDS = (
    ("web", 1.1, 0.9, True, 0.02),
    ("orders-db", 1.6, 1.4, True, 0.06),
    ("cache", 0.9, 0.6, True, 0.03),
    ("batch-scan", 2.1, 2.6, False, 0.61),
    ("video-encode", 0.7, 3.2, False, 0.24),
    ("ci-runner", 1.3, 1.1, False, 0.11),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is: `windows` of `window_s` per VM that end now; `slots` in contention on some hosts.

    Every `contended`-th host has some.
    """

    hosts: int = 1
    vms_per_host: int = 6
    windows: int = 20
    window_s: int = 60
    versions: int = 6
    contended: int = 4
    slots: int = 4
    jobs: int = 6


def host_name(k: int) -> str:
    return f"node{k + 1:04d}"


def job_name(k: int) -> str:
    kind, more = KINDS[k % len(KINDS)][0], k // len(KINDS)
    return f"{kind}-{more}" if more else kind


def _project_of(vm: int) -> str:
    return ("shop", "search", "")[vm % 3]


class PageCentral:
    """Use it as an asynchronous context; `url` is the page's."""

    def __init__(self, folder: Path, size: Size, now_unix_ns: int | None = None) -> None:
        self.size = size
        self.now = now_unix_ns or time.time_ns()
        self.lake = Lake(folder / "lake")
        self.journal = Journal(folder, replica="central-0", commit_interval_s=0.001)
        self.store = IncidentStore("", folder)
        self.registry = StreamRegistry()
        for vm in range(size.hosts * size.vms_per_host):
            name = f"{job_name(self._job_of(vm))}-{vm}"
            self.registry.vm_names.note([(host_name(vm // size.vms_per_host), vm_id(vm), name)])
        if size.hosts:
            self.write_windows()
            self._write_versions()
            self._write_hosts()
            self.report_contention(range(0, size.hosts, size.contended), size.slots)
        builder = Builder(BuildSection(), self.lake)
        self.fleet = Fleet(self.journal, self.registry, self.lake, builder, self.store)
        self.note_facts(range(size.vms_per_host if size.hosts else 0))
        self.api = HttpApi(self.fleet, "127.0.0.1:0", TlsFiles(), Access(("operator",)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.api.port}/"

    async def __aenter__(self) -> Self:
        self.journal.start()
        await self.api.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.api.stop()
        await self.journal.close()
        self.store.close()

    def note_facts(self, vms: Iterable[int]) -> None:
        """Have hosts report what these VMs, and the hosts themselves, are; a third of VMs has no project."""
        rows = {}
        for vm in vms:
            host, job = host_name(vm // self.size.vms_per_host), job_name(self._job_of(vm))
            facts = agent_pb2.VmFacts(
                unix_ns=self.now - 7200 * S, vm=vm_id(vm), epoch="1", name=f"{job}-{vm}", job=job, manager="nova",
                project=_project_of(vm), flavor="m1.large", image="debian-13", vcpus=4,
                memory_bytes=4 << 30,
            )  # fmt: skip
            rows[host, vm_id(vm)] = FactRow(host, vm_id(vm), facts.unix_ns, facts.SerializeToString(deterministic=True))
            known = agent_pb2.HostFacts(
                unix_ns=self.now - 7200 * S, cpus=64, memory_bytes=256 << 30, manager="nova", labels={"rack": "r7"}
            )
            rows[host, ""] = FactRow(host, "", known.unix_ns, known.SerializeToString(deterministic=True))
        self.fleet.facts.take(list(rows.values()))
        self.fleet.listed_of = None

    def report_contention(self, hosts: range, slots: int = 4, ends_ago_s: float = 60.0) -> None:
        """Have hosts report slots in contention, the last one so long ago."""
        rows = []
        for host in hosts:
            for k in range(slots):
                at = self.now - int((ends_ago_s + 60 * (slots - 1 - k)) * S)
                report = self._report(host, at, k)
                name = host_name(host)
                rows.append(TriggerRow(name, "spool", at // S, 0, name, at, report.SerializeToString()))
        projects = {vm_id(vm): _project_of(vm) for vm in range(self.size.vms_per_host)}  # as `note_facts` has them
        self.store.take(rows, gap_ns=900 * S, oldest_unix_ns=0, project_of=lambda _host, vm: projects.get(vm, ""))

    def _report(self, host: int, at: int, k: int) -> agent_pb2.Trigger:
        strength = 2.6 + 0.4 * math.sin(host) + 0.1 * k
        vms = range(host * self.size.vms_per_host, (host + 1) * self.size.vms_per_host)
        reported = agent_pb2.Trigger(
            unix_ns=at, slot_ns=60 * S, since_unix_ns=at, mn_cpi=strength, mn_cpi_threshold=2.0,
            coefficient_version=self.size.versions, found_by=[agent_pb2.ANALYSIS_FLEET],
        )  # fmt: skip
        if host % 8 == 0:
            reported.found_by.insert(0, agent_pb2.ANALYSIS_HOST)
        for vm in vms:
            job = self._job_of(vm)
            _, cpi, cores, is_sensitive, coefficient = KINDS[job % len(KINDS)]
            known = {"vm": vm_id(vm), "epoch": "1", "name": f"{job_name(job)}-{vm}", "job": job_name(job)}
            if is_sensitive and len(reported.victims) < 32:
                ratio = 1.3 + 0.1 * strength - 0.05 * len(reported.victims)
                reported.victims.add(
                    **known, cpi=cpi * 1.6, n_cpi=strength, threshold_cpi=cpi * 1.2, cpu_usage_cores=cores,
                    slow_down=agent_pb2.Degradation(ratio=ratio, low=ratio - 0.2, high=ratio + 0.25),
                    found_by=reported.found_by,
                )  # fmt: skip
            elif not is_sensitive and len(reported.suspects) < 16:
                usage = cores * (1 + 0.1 * math.sin(k) - 0.02 * len(reported.suspects))
                reported.suspects.add(
                    **known, coefficient=coefficient, cpu_usage_cores=usage, score=coefficient * usage
                )
        if reported.suspects:
            for victim in reported.victims:
                victim.suspect = reported.suspects[0].vm
            reported.recommendations.extend(map(recommendation_message, recommend(_situation(reported))))
            if host == 0:  # what a shell would read as something else
                words = ["virsh", "schedinfo", f"{reported.suspects[0].name}'s", "--live", "vcpu_quota=65000"]
                reported.recommendations[0].commands.add(purpose="by its name", words=words)
        return reported

    def _job_of(self, vm: int) -> int:
        return vm % self.size.jobs

    def write_windows(self, ago_s: int = 0) -> None:
        """Write every VM's windows, the last of which ends so long ago; only the newest of all are slow."""
        size = self.size
        vms = np.arange(size.hosts * size.vms_per_host)
        job = vms % size.jobs
        kind = job % len(KINDS)
        host = vms // size.vms_per_host
        cpi, cores = (np.array([each[k] for each in KINDS])[kind] for k in (1, 2))
        is_sensitive = np.array([each[3] for each in KINDS])[kind]
        suffers = is_sensitive & (host % size.contended == 0)
        names = {
            "host": _texts([host_name(k) for k in range(size.hosts)], host),
            "vm": pa.array([vm_id(k) for k in vms.tolist()]),
            "job": _texts([job_name(k) for k in range(size.jobs)], job),
            "platform": _texts(list(PLATFORMS), host % 2),
            "spool_id": _texts(["spool"], 0 * vms),
            "epoch": _texts(["1"], 0 * vms),
            "latency_sensitive": pa.array(is_sensitive),
        }
        rng = np.random.default_rng(7)
        level = np.exp(0.08 * rng.standard_normal(len(vms)))
        for k in range(size.windows):
            start = self.now - ((size.windows - k) * size.window_s + ago_s) * S
            number = ago_s + k + 1
            late = start > self.now - 300 * S
            noise = np.exp(0.04 * rng.standard_normal(len(vms)))
            usage = cores * (1 + 0.25 * np.sin(k / 9 + vms)) * noise
            slow_down = noise * (1 + 0.6 * suffers * late)
            now_cpi = cpi * level * noise * (1 + 0.6 * suffers * late) * (1 + 0.1 * (host % 2))
            columns = {
                **names,
                "machine": names["host"],
                "sequence": pa.array(np.full(len(vms), number), pa.uint64()),
                "start_unix_ns": pa.array(np.full(len(vms), start)),
                "duration_ns": pa.array(np.full(len(vms), size.window_s * S)),
                "cpi": pa.array(now_cpi),
                "cpu_usage_cores": pa.array(usage),
                "cycles": pa.array((usage * 2e9 * size.window_s).astype(np.int64)),
                "instructions": pa.array((usage * 2e9 * size.window_s / now_cpi).astype(np.int64)),
                "memory_stall_ratio": pa.array(np.clip(0.2 * noise, 0, 1)),
                "slow_down_ratio": pa.array(slow_down, mask=~is_sensitive),
                "slow_down_low_ratio": pa.array(0.9 * slow_down, mask=~is_sensitive),
                "slow_down_high_ratio": pa.array(1.2 * slow_down, mask=~is_sensitive),
                "llc_occupancy_bytes": pa.array(cores * 6e6 * noise * (1 - 0.4 * suffers * late)),
                "memory_bandwidth_bytes_per_s": pa.array(usage * 1.4e9 * (1 + 0.8 * ~is_sensitive * late)),
                "memory_charged_bytes": pa.array(np.full(len(vms), 4.0 * 2**30)),
                "pressure_cpu_some_ratio": pa.array(np.clip(0.02 * noise + 0.1 * suffers * late, 0, 1)),
                "pressure_io_some_ratio": pa.array(np.clip(0.02 * noise, 0, 1)),
            }
            arrays = [columns.get(f.name, pa.nulls(len(vms), f.type)).cast(f.type, safe=False) for f in SAMPLES]
            table = pa.Table.from_arrays(arrays, schema=SAMPLES)
            self.lake.write_segment(table, segment_stem("central-0", "0badcafe", number))

    def _write_versions(self) -> None:
        jobs = range(self.size.jobs)
        store = VersionStore(self.lake.objects)
        for version in range(self.size.versions):
            created = self.now - (self.size.versions - version) * 3600 * S
            statistics = [
                (job_name(j), platform, 2000 + 300 * version, cpi * (1 + 0.1 * p), 0.12 * cpi, None, None)
                for j in jobs
                for p, platform in enumerate(PLATFORMS)
                for cpi in (KINDS[j % len(KINDS)][1],)
            ]
            coefficients = [
                (job_name(j), 500 * (version + 1), 1.0, value * (1 + 0.1 * math.sin(version + j)), error)
                for j in jobs
                for value in (KINDS[j % len(KINDS)][4],)
                for error in (0.2 * value / math.sqrt(version + 1),)
            ]
            manifest = Manifest(
                version=0, created_unix_ns=created, slot_s=300.0, days=("2026-01-01",), segments=1,
                segments_digest="", rows=1, job_statistics=0, coefficients=0, code_version="1",
                method="whitepanda",
            )  # fmt: skip
            store.write(manifest, _rows(JOB_STATISTICS, statistics), _rows(COEFFICIENTS, coefficients))

    def _write_hosts(self) -> None:
        for k in range(self.size.hosts):
            name, silent = host_name(k), k % 50 == 49
            seen = self.now - (7200 * S if silent else 5 * S)
            jobs = {
                job_name(self._job_of(v)) for v in range(k * self.size.vms_per_host, (k + 1) * self.size.vms_per_host)
            }
            self.journal.note_host(
                HostRecord(name, PLATFORMS[k % 2], "0.1.0", 2, "boot", seen, 0, 40 * silent, 0, self.size.versions,
                           0, tuple(sorted(jobs)))
            )  # fmt: skip
            if not silent:
                self.registry.add(
                    HostStream(name, PLATFORMS[k % 2], jobs=frozenset(jobs),
                               coefficient_version=self.size.versions)
                )  # fmt: skip


def vm_id(k: int) -> str:
    return f"00000000-0000-4000-8000-{k:012d}"


def _texts(names: list[str], at: np.ndarray) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(at.astype(np.int32)), pa.array(names))


def _rows(schema: pa.Schema, rows: list[tuple]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _situation(reported: agent_pb2.Trigger) -> Situation:
    """What the agent of such a host would know as it thinks of what could be done."""
    return Situation(
        tuple(Victim(v.vm, v.name, v.job, cpi=v.cpi, threshold_cpi=v.threshold_cpi) for v in reported.victims),
        tuple(
            Suspect(s.vm, s.name, s.job, s.cpu_usage_cores, 4, s.coefficient, 0.05 * s.coefficient, s.score)
            for s in reported.suspects
        ),
        reported.mn_cpi,
        reported.mn_cpi_threshold,
        host=HostLimits(central="central.example.net:7443"),
    )
