"""What decides whether and how much perf may count on a host: permissions, watchdog, SMT, a mediated virtual PMU."""

import contextlib
import errno
import functools
import gzip
import os
import re
import zlib
from pathlib import Path
from typing import Literal

from collector.base import Reason
from collector.perf.binding import PerfError
from collector.perf.cpu import DEVICES, core_pmus
from collector.proc_parse import parse_capabilities

CAP_SYS_ADMIN = 21
CAP_PERFMON = 38
# The highest level at which the kernel's own work may be counted without a capability.
_PARANOID_ALLOWS_ALL_THREADS = 1
# The kernel's detector of hard lockups: "buddy" (6.5 and later) works by timers; of both, hardlockup_detector= chooses.
_DETECTOR = re.compile(r"^CONFIG_HARDLOCKUP_DETECTOR_(PERF|BUDDY)=y$", re.MULTILINE)

REMEDIES = {
    Reason.NO_PMU: (
        "this CPU shows no hardware counters; on a virtual machine enable its virtual PMU "
        "(libvirt: <features><pmu state='on'/></features>)"
    ),
    Reason.NO_PERMISSION: (
        "give the agent CAP_PERFMON, and see that no seccomp filter or security module forbids perf_event_open"
    ),
    Reason.FD_LIMIT: "raise the agent's LimitNOFILE; each event takes one, per vCPU (or per CPU and VM)",
    Reason.VPMU_CONFLICT: "another owner holds the PMU; the guests' virtual PMUs have precedence",
}


class PerfHost:
    """Reads /proc and /sys, whose roots are injected. Nothing here raises: what cannot be read is unknown."""

    def __init__(self, proc_root: str = "/proc", sys_root: str = "/sys", boot_root: str = "/boot") -> None:
        self._proc = Path(proc_root)
        self._sys = Path(sys_root)
        self._boot = Path(boot_root)

    def paranoid(self) -> int | None:
        """Return kernel.perf_event_paranoid; None where it cannot be read, as in a sandbox without /proc/sys."""
        try:
            return int((self._proc / "sys/kernel/perf_event_paranoid").read_text())
        except (OSError, ValueError):
            return None

    def watchdog(self) -> Literal["", "may hold", "holds"]:
        """Whether the NMI watchdog holds a counter of every CPU; "" where it is off or needs none.

        "may hold": it is on, and this kernel's configuration cannot be read or leaves it open.
        """
        if _read(self._proc / "sys/kernel/nmi_watchdog") != "1":
            return ""
        if self._detectors == {"BUDDY"}:
            return ""
        return "holds" if self._detectors == {"PERF"} else "may hold"

    @functools.cached_property
    def _detectors(self) -> frozenset[str]:
        """The detectors of hard lockups that this kernel has; none where its configuration cannot be read."""
        try:
            text = gzip.decompress((self._proc / "config.gz").read_bytes()).decode(errors="replace")
        except (OSError, EOFError, zlib.error):
            text = _read(self._boot / f"config-{os.uname().release}")
        return frozenset(_DETECTOR.findall(text))

    def smt(self) -> bool:
        """Whether hardware threads share cores. Unknown counts as yes: fewer counters are sure to be there."""
        return _read(self._sys / "devices/system/cpu/smt/active") != "0"

    def mediated_vpmu(self) -> str:
        """Return the kvm parameter that is on, such as "kvm_intel.enable_mediated_pmu", or "".

        With a mediated PMU the kernel refuses guests their PMU (EBUSY) while the host counts guests.
        """
        for module in ("kvm_intel", "kvm_amd", "kvm"):
            if _read(self._sys / "module" / module / "parameters/enable_mediated_pmu") in ("Y", "1"):
                return f"{module}.enable_mediated_pmu"
        return ""

    def has_capability(self) -> bool:
        """Whether this process has CAP_PERFMON or CAP_SYS_ADMIN (unknown counts as no)."""
        effective = parse_capabilities(_read(self._proc / "self/status")) or 0
        return bool(effective & (1 << CAP_PERFMON | 1 << CAP_SYS_ADMIN))

    def refine(self, error: PerfError) -> Reason:
        """Return an error's reason: NO_PMU or PARANOID where these explain a refusal."""
        if error.reason is not Reason.NO_PERMISSION:
            return error.reason
        no_pmu = (self._sys / DEVICES).is_dir() and not core_pmus(str(self._sys))
        return Reason.NO_PMU if no_pmu else self._refusal()

    def _refusal(self) -> Reason:
        paranoid = self.paranoid()
        by_level = paranoid is not None and paranoid > _PARANOID_ALLOWS_ALL_THREADS and not self.has_capability()
        return Reason.PARANOID if by_level else Reason.NO_PERMISSION

    def remedy(self, reason: Reason, number: int) -> str:
        """Return what helps against a failure of perf_event_open, in one line."""
        if number == errno.ENOSYS:
            return "the kernel is built without CONFIG_PERF_EVENTS, or a seccomp filter forbids perf_event_open"
        if reason is Reason.NO_PMU and number in {errno.EACCES, errno.EPERM}:
            # With a PMU it would still be refused.
            return f"{REMEDIES[reason]}; then {self.remedy(self._refusal(), number)}"
        if reason is Reason.PARANOID:
            return (
                f"kernel.perf_event_paranoid is {self.paranoid()}; give the agent CAP_PERFMON "
                f"or set it to {_PARANOID_ALLOWS_ALL_THREADS}"
            )
        return REMEDIES.get(reason, "see perf_event_open(2) for this error")


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
