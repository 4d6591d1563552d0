"""What a tick leaves to be shown: a metric, a source, a VM. Plain values."""

from dataclasses import dataclass
from typing import Literal

from collector.base import Reason

SourceState = Literal["off", "available", "unavailable", "failed", "stuck"]


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
