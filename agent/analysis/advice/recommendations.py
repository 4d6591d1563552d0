"""Recommendations and the facts behind them: plain values. `agent.analysis.advice.actions` ranks them."""

from dataclasses import dataclass, field
from typing import Literal

from collector.base import LIBVIRT_MANAGERS

Unit = Literal["", "cores", "percent", "ways"]
Action = Literal["cap_cpu", "limit_bandwidth", "limit_cache", "migrate_suspect", "migrate_victim", "nothing"]

#: libvirt's period of a vCPU's quota by default, in microseconds.
QUOTA_PERIOD_US = 100_000

_TOLERANCE = 1e-9  # of mnCPI: caps are computed so that they are just enough

#: libvirt's minimum.
MIN_QUOTA_US = 1000


@dataclass(frozen=True, slots=True)
class Victim:
    """A suffering VM. `degradation`: of latency, >= 1. None: not known.

    `manager` as in `collector.base.VmIdentity`; "": not known. `vmid`: its number in Proxmox.
    """

    vm: str
    name: str
    job: str
    cpi: float | None = None
    mean_cpi: float | None = None
    threshold_cpi: float | None = None
    degradation: float | None = None
    manager: str = "libvirt"
    vmid: str = ""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A VM or control group that may be blamed. None: not known. `manager` and `vmid` as in `Victim`."""

    vm: str  # UUID, or `host:GROUP` of a control group outside of VMs
    name: str
    job: str
    cpu_usage_cores: float
    vcpus: int | None = None
    coefficient: float | None = None  # A_k of its job, mnCPI per core
    standard_error: float | None = None  # of the coefficient
    score: float | None = None  # A_k * usage
    llc_bytes: float | None = None
    all_llc_bytes: float = 0.0  # of all VMs
    memory_bytes_per_s: float | None = None  # memory traffic
    all_memory_bytes_per_s: float = 0.0  # of all VMs
    inflicts: bool = False  # the host's own analysis found that it makes others suffer
    is_cleared: bool = False  # the host's own analysis found that it does not: it is steady, or suffers itself
    has_quota: bool = False  # its owner has set a CPU quota, whose value is not known here
    manager: str = "libvirt"
    vmid: str = ""
    has_own_group: bool = True  # it has its own control group, by which a VM without libvirt is limited

    @property
    def is_vm(self) -> bool:
        """Whether it is a VM, and not a control group."""
        return not self.vm.startswith("host:")

    @property
    def by_libvirt(self) -> bool:
        """Whether the host's libvirt runs it: its quota is per vCPU."""
        return self.manager in LIBVIRT_MANAGERS


@dataclass(frozen=True, slots=True)
class HostLimits:
    """What can be limited on this host, and what `whitepanda act` is allowed. 0 ways: no CAT; 0 percent: no MBA."""

    cache_ways: int = 0
    min_ways: int = 1
    min_bandwidth_percent: int = 0
    bandwidth_step_percent: int = 10
    min_cores: float = 0.1
    max_seconds: float = 900.0
    central: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """One host's contention. `mn_cpi` and its threshold are None if only the host itself found the victims.

    `is_cut`: nCPI of a victim was cut (`normalised_cpi.ROBUST_CLIP`), so the true `mn_cpi` may be higher.
    """

    victims: tuple[Victim, ...]
    suspects: tuple[Suspect, ...]
    mn_cpi: float | None = None
    mn_cpi_threshold: float | None = None
    lasted_s: float = 0.0
    is_cut: bool = False
    host: HostLimits = HostLimits()
    is_inflicted: bool = field(init=False)  # the host's own analysis says so of any suspect

    def __post_init__(self) -> None:
        """Compute it once, as each suspect is compared with the others."""
        object.__setattr__(self, "is_inflicted", any(suspect.inflicts for suspect in self.suspects))


@dataclass(frozen=True, slots=True)
class Command:
    """Words of a command, the program first."""

    purpose: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """What an action is expected to change; None is not known, and `unknown_because` says why.

    `is_at_least`: `before` and `after` may both be more.
    """

    signal: Literal["mn_cpi", "degradation"]
    before: float | None
    after: float | None = None
    low: float | None = None
    high: float | None = None
    threshold: float | None = None
    unknown_because: str = ""
    is_at_least: bool = False

    @property
    def helps(self) -> bool | None:
        """Whether it is expected to be enough; None: not known."""
        if self.after is None or self.threshold is None:
            return None
        is_enough = self.after <= self.threshold + _TOLERANCE
        return None if is_enough and self.is_at_least else is_enough


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One action. `vm`: "" for none; `amount` None: the action has none."""

    action: Action
    vm: str
    name: str
    job: str
    victim: str
    victim_name: str
    effect: Effect
    amount: float | None = None
    unit: Unit = ""
    evidence: tuple[str, ...] = ()
    commands: tuple[Command, ...] = ()


def quota_us(cores: float, vcpus: int, period_us: int = QUOTA_PERIOD_US) -> int:
    """Return libvirt's quota of each vCPU that limits a VM to `cores`; at least libvirt's minimum."""
    return max(MIN_QUOTA_US, round(cores / vcpus * period_us))
