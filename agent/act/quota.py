"""vCPU quotas by libvirt's own `virsh`: what the recommendation tells an operator to type is what is run.

A process of its own for each call, so a libvirt that hangs is ended with it and does not hang the service. A state is
"QUOTA/PERIOD" of each vCPU in microseconds, QUOTA -1 where there is none. Only the live VM is changed: a restart of it,
or of the host, undoes the limit too.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence

from agent.act.records import ActError
from agent.analysis.advice.recommendations import QUOTA_PERIOD_US, quota_us

_VALUE = re.compile(r"^(vcpu_quota|vcpu_period)\s*:\s*(-?\d+)\s*$", re.MULTILINE)
_VCPUS = re.compile(r"^CPU\(s\):\s*(\d+)\s*$", re.MULTILINE)
_ERROR = re.compile(r"^error:", re.MULTILINE)
# What libvirt says of a VM that is not there; of the first it says so too where the connection was lost.
_GONE = ("failed to get domain", "domain is not running", "domain not found")


class Virsh:
    """Runs virsh.

    Args:
        uri: of this host's libvirt.
        deadline_s: for one call.
        run: as `subprocess.run`; for tests.

    """

    def __init__(
        self, uri: str, deadline_s: float, run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run
    ) -> None:
        self._uri = uri
        self._deadline_s = deadline_s
        self._run = run

    def words(self, *arguments: str) -> list[str]:
        """Return the command."""
        return ["virsh", "-q", "-c", self._uri, *arguments]

    def __call__(self, *arguments: str) -> str | None:
        """Return what virsh prints; None: there is no such VM now, and `virsh list` says so too.

        Raises:
            ActError: it fails, hangs, or is not there.

        """
        environment = {"LC_ALL": "C", "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")}
        try:
            done = self._run(
                self.words(*arguments),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._deadline_s,
                check=False,
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        except subprocess.TimeoutExpired as error:
            raise ActError(
                f"virsh {arguments[0]}: no answer within {self._deadline_s:g} s; is libvirt's daemon hung?"
            ) from error
        except OSError as error:
            raise ActError(f"cannot run virsh: {error.strerror}; install libvirt-clients (Debian)") from error
        if done.returncode == 0:
            return done.stdout
        said = _one_line(done.stderr)
        if arguments[0] != "list" and any(words in said.lower() for words in _GONE):
            uuids = self("list", "--uuid")
            if uuids is not None and arguments[1] not in uuids.split():
                return None
        remedy = f"; does libvirt run, and is {self._uri} (sources.libvirt.uri) its address?" if _is_away(said) else ""
        raise ActError(f"virsh {' '.join(arguments)}: {said or f'exit status {done.returncode}'}{remedy}")


def _one_line(said: str) -> str:
    """Return what virsh says without the "error:" that its lines begin with, as ours will."""
    parts = (" ".join(part.split()) for part in _ERROR.split(said))
    return "; ".join(part for part in parts if part)[:300]


def _is_away(said: str) -> bool:
    return "failed to connect" in said.lower()


class Quota:
    """`agent.act.backends.Backend` of vCPU quotas. Amounts are cores."""

    #: A virsh that was killed may have asked already, and libvirt waits 30 s for another job on the VM to end.
    settles_s = 40.0

    def __init__(self, virsh: Virsh) -> None:
        self._virsh = virsh

    def read(self, vm: str) -> str | None:
        """Return quota and period of each vCPU."""
        said = self._virsh("schedinfo", vm, "--live")
        if said is None:
            return None
        values = {key: int(number) for key, number in _VALUE.findall(said)}
        if values.keys() != {"vcpu_quota", "vcpu_period"}:
            raise ActError(f"virsh schedinfo {vm}: no vcpu_quota in its answer; has libvirt the cgroup controller cpu?")
        # 0 and -1 (and libvirt's largest number) all mean none.
        quota = values["vcpu_quota"] if 0 < values["vcpu_quota"] < _NO_QUOTA else -1
        return f"{quota}/{values['vcpu_period'] or QUOTA_PERIOD_US}"

    def target(self, vm: str, amount: float) -> str:
        """Return the quota for so many cores in all, at the VM's own period."""
        said, now = self._virsh("dominfo", vm), self.read(vm)
        if said is None or now is None:
            raise ActError(f"no VM {vm} runs here; `virsh list --uuid` has those that do")
        found = _VCPUS.search(said)
        if found is None or not int(found[1]):
            raise ActError(f"virsh dominfo {vm}: no number of vCPUs in its answer")
        quota, period = (int(number) for number in now.split("/"))
        wanted = quota_us(amount, int(found[1]), period)
        if wanted >= (quota if quota > 0 else period):
            cores = (quota if quota > 0 else period) * int(found[1]) / period
            raise ActError(f"VM {vm} may use {cores:g} cores already; {amount:g} is no less")
        return f"{wanted}/{period}"

    def write(self, vm: str, state: str) -> None:
        """Set the quota; the period stays as it is."""
        if self._virsh(*self._set(vm, state)) is None:
            raise ActError(f"no VM {vm} runs here any more")

    def is_ours(self, now: str, after: str) -> bool:
        """One call sets it, so there is nothing between."""
        return now == after

    def command(self, vm: str, state: str) -> str:
        """Return virsh's words."""
        return shlex.join(self._virsh.words(*self._set(vm, state)))

    def _set(self, vm: str, state: str) -> Sequence[str]:
        return "schedinfo", vm, "--live", f"vcpu_quota={state.partition('/')[0]}"


_NO_QUOTA = 1 << 44  # libvirt's 18446744073709551 is no quota
