"""Local APIs with canned states, in a process of their own: `canned_agents.py FOLDER` answers at FOLDER/NAME.sock.

One asyncio loop per process is grpc.aio's rule, and the CLI under test is synchronous.
"""

import asyncio
import math
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "proto")]

from agent.analysis.verdict import Degradation, Evidence, Verdict  # noqa: E402 - after the path is set
from agent.antagonists.coefficients import CoefficientStore  # noqa: E402 - after the path
from agent.antagonists.decide_victims import Decisions  # noqa: E402 - after the path is set
from agent.antagonists.host_analysis import HostAnalysis  # noqa: E402 - after the path is set
from agent.api.server import LocalApi  # noqa: E402 - after the path is set
from agent.config import AgentConfig, AgentSection, AnalysisSection  # noqa: E402 - after the path is set
from agent.detection.decision_types import Reasoning, SignalView  # noqa: E402 - after the path is set
from agent.sampling.metric_table import VmRates  # noqa: E402 - after the path is set
from agent.sampling.windows import CpiWindow  # noqa: E402 - after the path is set
from collector.base import Reason  # noqa: E402 - after the path is set
from whitepanda.common.protocol import or_nan  # noqa: E402 - after the path is set
from whitepanda.v1 import agent_pb2, host_pb2  # noqa: E402 - after the path is set

S = 10**9
NOW = 1_800_000_000 * S
PLATFORM = "Xeon E5-2680"
MS = 10**6

NO_PMU_DETAIL = "no hardware counters; on a virtual machine enable its PMU"


def metric(name, number, source, reason=Reason.UNSPECIFIED):
    """A metric; without a number the reason."""
    age_ns = {"procfs": 350, "perf": 400, "libvirt": 900}[source] * MS
    unknown = number is None
    value = math.nan if unknown else number
    return host_pb2.Metric(name=name, value=value, reason=reason if unknown else 0, source=source, age_ns=age_ns)


def metrics(*, guest, gips, cpi, wait, disk, net, perf=None):
    """The metrics that the CLI shows; `perf` is the reason why counters are not known."""
    counted = [metric("gips", gips, "perf"), metric("cpi", cpi, "perf", Reason.IDLE)]
    if perf:
        counted = [host_pb2.Metric(name=one, value=math.nan, reason=perf, source="perf") for one in ("gips", "cpi")]
    return (
        metric("cpu_usage_cores", guest * 4, "procfs"),
        metric("guest_ratio", guest, "procfs"),
        metric("run_queue_wait_ratio", wait, "procfs", Reason.NOT_PRESENT),
        *counted,
        metric("disk_read_bytes_per_s", disk, "libvirt", Reason.STUCK),
        metric("disk_write_bytes_per_s", disk, "libvirt", Reason.STUCK),
        metric("network_receive_bytes_per_s", net, "libvirt", Reason.STUCK),
        metric("network_transmit_bytes_per_s", 0.0, "libvirt"),
    )


def changed(message, **fields):
    """A copy of a message with other fields."""
    made = type(message)(**fields)
    copy = type(message)()
    copy.CopyFrom(message)
    for name in fields:
        copy.ClearField(name)
    copy.MergeFrom(made)
    return copy


def canned_vm(name, job, found, *, ls=True, state="running", **identity):
    """A VM as `agent.sampling.vms` has it, as far as it is asked; `metrics` is what the local API is to answer."""
    known = {one.name: one.value for one in found if not math.isnan(one.value)}
    owner, quota = ("shop", 2.5) if ls else ("", None)
    found_on_host = {"uuid": f"uuid-{name}", "epoch": "e1", "vcpus": 4, "manager": "libvirt", "facts": {}} | identity
    return SimpleNamespace(
        identity=SimpleNamespace(name=name, state=state, **found_on_host),
        job=job,
        latency_sensitive=ls,
        alert=True,
        owner=owner,
        quota_cores=quota,
        vmid="",
        rates=VmRates(*(Reason.NO_PMU,) * len(VmRates._fields))._replace(**known),
        metrics=found,
    )


def source(name, state, detail="", **numbers):
    return host_pb2.SourceStatus(name=name, state=state, detail=detail, **numbers)


HOST = host_pb2.HostStatus(
    host="node1",
    agent_version="0.1.0",
    platform=PLATFORM,
    now_unix_ns=NOW,
    started_unix_ns=NOW - 3600 * S,
    ticks=3600,
    missed_ticks=2,
    sources=(
        source("perf", "available", "4 groups", age_ns=400 * MS, duration_ns=3 * MS, samples=3600),
        source("libvirt", "stuck", "no answer for 4 s", age_ns=9 * S, duration_ns=2 * S, samples=3000, failures=600),
    ),
    history={"state": "on", "bytes": 31 << 20, "max_bytes": 512 << 20, "first_unix_ns": NOW - 7200 * S},
    uplink={
        "state": "connected",
        "address": "central:7443",
        "spooled_batches": 1,
        "spooled_bytes": 4096,
        "acknowledged_batches": 359,
        "acknowledged_windows": 3590,
        "rejected_rows": 5,
        "rejected_batches": 1,
    },
    cpu_seconds=12.5,
    rss_bytes=60 << 20,
    window_ms=10_000,
    host_metrics=[host_pb2.Metric(name="host_cpu_idle_ratio", value=0.4, source="procfs", age_ns=MS)],
)

FULL = (
    canned_vm("batch-0001", "scan", metrics(guest=0.99, gips=2.5, cpi=2.0, wait=0.0, disk=0.0, net=0.0), ls=False),
    canned_vm(
        "instance-0000a1f3",
        "web",
        metrics(guest=0.785, gips=3.412, cpi=3.1, wait=0.052, disk=612_000.0, net=12_345_678.0),
    ),
    canned_vm("instance-0000a1f4", "web", metrics(guest=0.5, gips=12.3, cpi=1.3, wait=0.001, disk=0.0, net=950.0)),
    canned_vm("new-1", "brand-new", metrics(guest=0.1, gips=0.5, cpi=None, wait=None, disk=None, net=None), ls=False),
    canned_vm("paused-1", "web", metrics(guest=0.0, gips=0.0, cpi=None, wait=0.0, disk=0.0, net=0.0), state="paused"),
)


class Quiet:
    """Of a host where all VMs are as at their baselines: `CloudWhite`, as far as it is asked."""

    def behaviour(self, uuid):
        return self.verdict(uuid).behaviour

    def estimate(self, uuid):
        verdict = self.verdict(uuid)
        return verdict.degradation if verdict.behaviour == "victim" else None

    def verdict(self, _uuid):
        return Verdict("steady", "as at its baseline", 0)


def decided(vms, analysis, cloud_white):
    """What is held of VMs that the host's own analysis found quiet for 10 minutes, and as they are for 95 s."""
    decisions = Decisions(AgentConfig(agent=AgentSection()), cloud_white and Quiet(), analysis)
    decisions.tick(vms, 1000 * S, NOW - 695 * S)
    decisions.cloud_white = cloud_white
    decisions.tick(vms, 1600 * S, NOW - 95 * S)
    decisions.tick(vms, 1695 * S, NOW)
    return decisions


class State:
    """`agent.api.state.AgentState` that never changes."""

    advisor = None

    moments = None

    def __init__(self, host, vms, analysis, cloud_white=None):
        self._host, self._vms, self.analysis, self.cloud_white = host, vms, analysis, cloud_white
        self.names = SimpleNamespace(platform=host.platform)
        self.decisions = decided(vms, analysis, cloud_white)

    def host(self):
        found = self.analysis
        version, mn_cpi = (found.coefficient_version, or_nan(found.mn_cpi)) if found else (0, math.nan)
        return changed(self._host, coefficient_version=version, mn_cpi=mn_cpi)

    def vms(self):
        return self._vms

    def metrics_of(self, vm, names=None):
        return [one for one in vm.metrics if names is None or one.name in names]


WEB = agent_pb2.JobStatistics(job="web", platform=PLATFORM, samples=1000, mean_cpi=1.2, std_cpi=0.35)


def analysis(folder, *, coefficients=True, slot_s=10, statistics=None):
    store = CoefficientStore(Path(folder) / "coefficients.json", now_unix_ns=lambda: NOW)
    if coefficients:
        store.apply(
            agent_pb2.CoefficientUpdate(
                version=7,
                created_unix_ns=NOW - 120 * S,
                slot_ns=slot_s * S,
                full=True,
                statistics=[statistics or WEB],
                coefficients=[agent_pb2.Coefficient(job="scan", value=0.5)],
            )
        )
    found = HostAnalysis(AnalysisSection(trigger="paper"), PLATFORM, store)
    rows = (
        ("batch-0001", "scan", 2.0, False, 3.96),
        ("instance-0000a1f3", "web", 3.1, True, 3.14),
        ("instance-0000a1f4", "web", 1.3, True, 2.0),
        ("new-1", "brand-new", None, False, 0.4),
    )
    for end in (NOW - 20 * S, NOW - 10 * S, NOW):
        windows = [
            CpiWindow(f"uuid-{name}", "e1", name, job, ls, end - 10 * S, 10 * S, usage, cpi, Reason.IDLE)
            for name, job, cpi, ls, usage in rows
        ]
        found.observe(windows, end)
    return found


class _Told(Quiet):
    """As much of `CloudWhite` as the local API asks for."""

    def __init__(self, verdicts, estimate):
        self._verdicts, self._estimate = verdicts, estimate

    def verdict(self, uuid):
        return self._verdicts.get(uuid, Verdict("unknown", "its baseline is not ready: 3 of 30 ticks", 0))

    def since_ns(self, verdict):
        return 95 * S if verdict.since_ns else 0

    def explain(self, uuid):
        verdict = self.verdict(uuid)
        signals = (SignalView("gips", 3.412, 3.9, 4.1), SignalView("ipc", 0.61, 1.05, 1.05))
        shown = {"workers": 2, "workers_posterior": 0.9996, "workers_looks": 240}
        signals += tuple(SignalView(name, value, math.nan, math.nan) for name, value in shown.items())
        if verdict.behaviour != "inflicting":
            verdict = replace(verdict, degradation=verdict.degradation or self._estimate)
        return Reasoning("noise_scaled", verdict, signals)


def suffering(*, model=True):
    """One VM suffers from another."""
    estimate = Degradation(1.42, 1.3, 1.58, "", "default: gamma-log")
    if not model:
        estimate = Degradation(cannot_tell="no_model")
    evidence = (Evidence("ipc", 0.61, 1.02, 0.95),)
    culprits = ("uuid-batch-0001", "uuid-new-1")
    return _Told(
        {
            "uuid-instance-0000a1f3": Verdict(
                "victim", "ipc 0.61 is below 0.95", 5, evidence, culprits, 812, True, estimate
            ),
            "uuid-batch-0001": Verdict("inflicting", "memory traffic is 3.1 times its baseline", 5),
            "uuid-instance-0000a1f4": Verdict("steady", "as at its baseline", 5, (), (), 812, True),
            "uuid-paused-1": Verdict("steady", "as at its baseline", 5, (), (), 812, True),
        },
        estimate,
    )


def twins():
    """Two VMs have the name batch-0001."""
    first = FULL[0]
    again = canned_vm("batch-0001", "scan", first.metrics, ls=False, uuid="uuid-batcX-2", manager="proxmox")
    return (*FULL, again)


def looks_elsewhere():
    """Of the VM that suffers by the fleet's statistics the host itself finds nothing; the rest is too young."""
    return _Told({"uuid-instance-0000a1f3": Verdict("steady", "as at its baseline", 5, (), (), 812, True)}, None)


def without_pmu():
    sources = (source("perf", "unavailable", NO_PMU_DETAIL),)
    lacking = metrics(guest=0.5, gips=0, cpi=0, wait=0.01, disk=1e6, net=1e3, perf=Reason.NO_PMU)
    vms = (canned_vm("vm-1", "web", lacking), canned_vm("vm-2", "web", lacking))
    return changed(HOST, sources=sources), vms


def bare():
    """A QEMU without libvirt, QMP and visible network, where neither libvirt nor Open vSwitch runs."""
    sources = (
        source("ovs", "unavailable", "no /run/openvswitch/db.sock"),
        source("libvirt", "unavailable", "no libvirt socket"),
        source("qemu", "available", "1 VM"),
    )
    found = metrics(guest=0.5, gips=1.0, cpi=1.0, wait=0.01, disk=None, net=None)
    lacking = tuple(
        changed(m, value=math.nan, reason=Reason.NOT_VISIBLE, source="qemu")
        if m.source == "libvirt"
        # Another part, of a failing source, with the same reason: it explains neither disk nor network.
        else changed(m, value=math.nan, reason=Reason.NOT_VISIBLE, source="ovs")
        if m.name == "cpu_usage_cores"
        else m
        for m in found
    )
    return changed(HOST, sources=sources), (canned_vm("vm-1", "web", lacking),)


def states(folder):
    return {
        "full": State(HOST, FULL, analysis(f"{folder}/full")),
        "no_pmu": State(
            *without_pmu(), HostAnalysis(AnalysisSection(), PLATFORM, CoefficientStore(Path(folder) / "none"))
        ),
        "bare": State(*bare(), HostAnalysis(AnalysisSection(), PLATFORM, CoefficientStore(Path(folder) / "none"))),
        "alone": State(HOST, FULL, analysis(f"{folder}/alone", coefficients=False)),
        "short": State(HOST, FULL, analysis(f"{folder}/short", slot_s=300)),
        "cut_off": State(
            changed(
                HOST,
                ticks=12,
                sources=(source("perf", "unavailable", NO_PMU_DETAIL), source("libvirt", "off")),
                history={
                    "state": "stopped",
                    "detail": "the disk is full",
                    "bytes": 4096,
                    "max_bytes": 512 << 20,
                    "lost_frames": 7,
                },
                uplink={
                    "state": "connecting",
                    "address": "central:7443",
                    "spooled_batches": 1200,
                    "spooled_bytes": 4_200_000,
                    "dropped_batches": 3,
                    "last_error": "no",
                },
            ),
            (),
            None,
        ),
        "no_uplink": State(changed(HOST, uplink={"state": "off"}), (), None),
        "crippled": State(HOST, FULL, None),
        "empty": State(HOST, (), None),
        "twins": State(HOST, twins(), analysis(f"{folder}/twins")),
        "suffering": State(HOST, FULL, analysis(f"{folder}/suffering", coefficients=False), suffering()),
        "disagreeing": State(HOST, FULL, analysis(f"{folder}/disagreeing"), looks_elsewhere()),
        "no_model": State(HOST, FULL, None, suffering(model=False)),
    }


async def main(folder):
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with tempfile.TemporaryDirectory() as scratch:
        apis = [LocalApi(state, Path(folder) / f"{name}.sock") for name, state in states(scratch).items()]
        for api in apis:
            await api.start()
        print("ready", flush=True)
        await stop.wait()
        for api in apis:
            await api.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
