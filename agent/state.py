"""What the agent knows now, read-only: the contract between the daemon and its local API.

All views are plain values without I/O. Everything here is read on the daemon's one asyncio loop, so nothing
is locked; a view is a snapshot and does not change after it was returned.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from collector.base import Reason

if TYPE_CHECKING:
    from agent.advice import Advisor
    from agent.cloud_white import CloudWhite
    from agent.decisions import Decisions
    from agent.host_analysis import HostAnalysis

__all__ = ["AgentState", "HostView", "MetricView", "SourceState", "SourceView", "UplinkView", "VmView"]

SourceState = Literal["off", "available", "unavailable", "failed", "stuck"]
UplinkState = Literal["off", "connecting", "connected"]


@dataclass(frozen=True, slots=True)
class MetricView:
    """One value, or why there is none. `name` is as in docs/metrics.md; `age_ns` is the sample's."""

    name: str
    value: float | None
    reason: Reason = Reason.UNSPECIFIED
    source: str = ""
    age_ns: int = 0


@dataclass(frozen=True, slots=True)
class SourceView:
    """One source. `detail`: why it is not available, and the remedy. Age 0 where it never sampled."""

    name: str
    state: SourceState
    detail: str = ""
    age_ns: int = 0
    duration_ns: int = 0
    samples: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class UplinkView:
    """The stream to central and the spool behind it; counts are since the start but for what is spooled."""

    state: UplinkState = "off"
    address: str = ""
    spooled_batches: int = 0
    spooled_bytes: int = 0
    acknowledged_batches: int = 0
    acknowledged_windows: int = 0
    dropped_batches: int = 0
    rejected_rows: int = 0
    last_error: str = ""
    refused_updates: int = 0
    refused_update_rows: int = 0
    last_refusal: str = ""


@dataclass(frozen=True, slots=True)
class VmView:
    """One VM that is on the host now, with its rates over the last tick.

    `owner` "" is not known; `quota_cores` is its CPU quota, of one without the number of its vCPUs; None is not known.
    `manager` is as in `collector.base.VmIdentity`; `vmid` is the VM's number in Proxmox, else "".
    """

    uuid: str
    name: str
    job: str
    latency_sensitive: bool
    epoch: str
    state: str
    vcpus: int
    metrics: tuple[MetricView, ...]
    owner: str = ""
    quota_cores: float | None = None
    manager: str = "libvirt"
    vmid: str = ""


@dataclass(frozen=True, slots=True)
class HostView:
    """The agent and its host."""

    host: str
    agent_version: str
    platform: str
    now_unix_ns: int
    started_unix_ns: int
    ticks: int
    missed_ticks: int
    sources: tuple[SourceView, ...]
    uplink: UplinkView
    cpu_seconds: float
    rss_bytes: int
    window_ms: int
    metrics: tuple[MetricView, ...]
    certificates: tuple[tuple[str, float], ...] = ()  # setting of each of its own, and its end since 1970


class AgentState(Protocol):
    """What the local API reads. The daemon has the one implementation; tests make their own."""

    @property
    def analysis(self) -> HostAnalysis | None:
        """Antagonists on this host; None where that part could not be started."""

    @property
    def cloud_white(self) -> CloudWhite | None:
        """Who suffers and who inflicts it; None where it is off or could not be started."""

    @property
    def decisions(self) -> Decisions | None:
        """What is held of each VM and of the host, from both; None before the start."""

    @property
    def advisor(self) -> Advisor | None:
        """What could be done about contention; None where the analysis could not be started."""

    def host(self) -> HostView:
        """Return the host's status now."""

    def vms(self, metrics: Collection[str] | None = None) -> tuple[VmView, ...]:
        """Return all VMs now, by name, with the metrics of these names; None: with all."""

    def vm(self, uuid: str) -> VmView | None:
        """Return one VM now with all its metrics; None where it is not here."""
