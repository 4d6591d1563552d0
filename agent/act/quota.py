"""vCPU quotas by libvirt's own `virsh`, the command that recommendations show.

Each call is a separate process, so a libvirt that hangs is ended with it and does not hang the service. A state is
"QUOTA/PERIOD" of each vCPU in microseconds, QUOTA -1 if there is none. Only the live VM is changed: a restart of it,
or of the host, undoes the limit too.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence

from agent.act.records import ActError, Backend
from agent.analysis.advice.recommendations import QUOTA_PERIOD_US, quota_us

_VALUE = re.compile(r"^(vcpu_quota|vcpu_period)\s*:\s*(-?\d+)\s*$", re.MULTILINE)
_VCPUS = re.compile(r"^CPU\(s\):\s*(\d+)\s*$", re.MULTILINE)
_ERROR = re.compile(r"^error:", re.MULTILINE)
_NO_QUOTA = 1 << 44  # libvirt's 18446744073709551 is no quota
# libvirt's messages for a VM that does not exist; it has the first also for a lost connection.
_GONE = ("failed to get domain", "domain is not running", "domain not found")


class Virsh:
    """Runs virsh against this host's libvirt at `uri`, each call at most `deadline_s`; `run` is for tests."""

    def __init__(
        self, uri: str, deadline_s: float, run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run
    ) -> None:
        self._uri, self._deadline_s, self._run = uri, deadline_s, run

    def words(self, *arguments: str) -> list[str]:
        """Return the command."""
        return ["virsh", "-q", "-c", self._uri, *arguments]

    def __call__(self, *arguments: str) -> str | None:
        """Return what virsh prints; None: the VM does not exist now, which `virsh list` confirms.

        ActError: it fails, hangs, or is not installed.
        """
        environment = {"LC_ALL": "C", "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")}
        options = {"capture_output": True, "text": True, "errors": "replace", "check": False, "env": environment}
        try:
            done = self._run(self.words(*arguments), timeout=self._deadline_s, stdin=subprocess.DEVNULL, **options)
        except subprocess.TimeoutExpired as error:
            late = f"no answer within {self._deadline_s:g} s"
            raise ActError(f"virsh {arguments[0]}: {late}; is libvirt's daemon hung?") from error
        except OSError as error:
            raise ActError(f"cannot run virsh: {error.strerror}; install libvirt-clients (Debian)") from error
        if done.returncode == 0:
            return done.stdout
        parts = (" ".join(part.split()) for part in _ERROR.split(done.stderr))
        problem = "; ".join(part for part in parts if part)[:300]
        if arguments[0] != "list" and any(words in problem.lower() for words in _GONE):
            uuids = self("list", "--uuid")
            if uuids is not None and arguments[1] not in uuids.split():
                return None
        is_away = "failed to connect" in problem.lower()
        remedy = f"; does libvirt run, and is {self._uri} (sources.libvirt.uri) its address?" if is_away else ""
        raise ActError(f"virsh {' '.join(arguments)}: {problem or f'exit status {done.returncode}'}{remedy}")


class Quota(Backend):
    """vCPU quotas. Amounts are cores."""

    #: A killed virsh may have sent its request, and libvirt waits 30 s for another job on the VM to end.
    settles_s = 40.0

    def __init__(self, virsh: Virsh) -> None:
        self._virsh = virsh

    def read(self, vm: str) -> str | None:
        """Return quota and period of each vCPU."""
        answer = self._virsh("schedinfo", vm, "--live")
        if answer is None:
            return None
        values = {key: int(number) for key, number in _VALUE.findall(answer)}
        if values.keys() != {"vcpu_quota", "vcpu_period"}:
            raise ActError(f"virsh schedinfo {vm}: no vcpu_quota in its answer; has libvirt the cgroup controller cpu?")
        # 0 and -1 (and libvirt's largest number) all mean none.
        quota = values["vcpu_quota"] if 0 < values["vcpu_quota"] < _NO_QUOTA else -1
        return f"{quota}/{values['vcpu_period'] or QUOTA_PERIOD_US}"

    def target(self, vm: str, amount: float) -> str:
        """Return the quota for this many cores in all, at the VM's own period."""
        answer, now = self._virsh("dominfo", vm), self.read(vm)
        if answer is None or now is None:
            raise ActError(f"no VM {vm} runs here; `virsh list --uuid` has those that do")
        found = _VCPUS.search(answer)
        if found is None or not int(found[1]):
            raise ActError(f"virsh dominfo {vm}: no number of vCPUs in its answer")
        quota, period = (int(number) for number in now.split("/"))
        wanted = quota_us(amount, int(found[1]), period)
        if wanted >= (quota if quota > 0 else period):
            cores = (quota if quota > 0 else period) * int(found[1]) / period
            raise ActError(f"VM {vm} can use at most {cores:g} cores already; give fewer (value {amount:g})")
        return f"{wanted}/{period}"

    def write(self, vm: str, state: str) -> None:
        """Set the quota; the period stays as it is."""
        if self._virsh(*self._set(vm, state)) is None:
            raise ActError(f"no VM {vm} runs here any more")

    def command(self, vm: str, state: str) -> str:
        """Return the virsh command."""
        return shlex.join(self._virsh.words(*self._set(vm, state)))

    def _set(self, vm: str, state: str) -> Sequence[str]:
        return "schedinfo", vm, "--live", f"vcpu_quota={state.partition('/')[0]}"
