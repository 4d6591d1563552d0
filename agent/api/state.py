"""What the agent knows now, read-only: the contract between the daemon and its local API.

All views are plain values without I/O. Everything here is read on the daemon's one asyncio loop, so nothing
is locked; a view is a snapshot and does not change after it was returned.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agent.sampling.views import MetricView, SourceView, VmView
from agent.uplink.view import UplinkView

if TYPE_CHECKING:
    from agent.antagonists.advisor import Advisor
    from agent.antagonists.decisions import Decisions
    from agent.antagonists.host_analysis import HostAnalysis
    from agent.detection.cloud_white import CloudWhite


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
