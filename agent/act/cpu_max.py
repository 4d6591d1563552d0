"""CPU limits of VMs without libvirt, by `cpu.max` of the VM's own control group (v2).

Proxmox and bare QEMUs keep no live quota elsewhere, so a state is the file's text: "QUOTA PERIOD" in microseconds,
QUOTA "max" if there is none. It limits the whole VM, its vCPUs and QEMU's other threads together. It ends with the
control group, so at a restart of the VM, and does not move with a migration.
"""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.act.records import ActError, Backend
from collector.base import Reason, VmIdentity
from collector.cgroup.tree import CgroupTree
from collector.files import GONE

_MIN_QUOTA_US = 1000  # the kernel takes no less


def cpu_max_of(vm: VmIdentity, tree: CgroupTree) -> "CpuMax":
    """Return the backend for a VM that libvirt does not run; ActError: it has no own control group with `cpu.max`."""
    try:
        is_v1 = any("cpu" in mount.controllers for mount in tree.mounts())
        groups = tree.find(vm.pid)
    except (OSError, ValueError) as error:
        raise ActError(f"the control group of VM {vm.uuid} (process {vm.pid}) is not known: {error}") from error
    if is_v1 or (groups.v2 is None and groups.reason is not Reason.SHARED):
        raise ActError(
            f"VM {vm.uuid} is not managed by libvirt, so only cpu.max (cgroup v2) could limit it, and this host's cpu "
            "controller is not in v2; boot the host with systemd.unified_cgroup_hierarchy=1"
        )
    if groups.v2 is None:
        raise ActError(
            f"VM {vm.uuid} has no control group of its own: its process {vm.pid} shares one with other processes, "
            "which would be limited too; start the VM in its own scope (`systemd-run --scope`)"
        )
    found = CpuMax(groups.v2, vm.vcpus)
    if found.read(vm.uuid) is None:
        raise ActError(
            f"{groups.v2} of VM {vm.uuid} has no cpu.max: the controller cpu is off there; "
            "a weight of its unit turns it on (`systemctl set-property --runtime UNIT CPUWeight=100`)"
        )
    return found


class CpuMax(Backend):
    """`cpu.max` of one control group, the folder `group`. Amounts are cores. `vcpus` of the VM; 0: not known."""

    def __init__(self, group: str, vcpus: int = 0) -> None:
        self.group = group
        self._vcpus = vcpus
        self._file = Path(group, "cpu.max")

    def read(self, vm: str) -> str | None:
        """Return quota and period; None: the group is gone, and its limit with it."""
        with self._errors_of(vm):
            try:
                return " ".join(self._file.read_text(encoding="ascii").split())
            except OSError as error:
                if error.errno in GONE:
                    return None
                raise

    def target(self, vm: str, amount: float) -> str:
        """Return the quota for this many cores, at the group's own period."""
        now = self.read(vm)
        if now is None:
            raise ActError(f"no VM {vm} runs here any more")
        with self._errors_of(vm):
            quota, period = now.split()
            has = int(quota) / int(period) if quota != "max" else float(self._vcpus)
            wanted = max(_MIN_QUOTA_US, round(amount * int(period)))
        if has and wanted / int(period) >= has:
            raise ActError(f"VM {vm} can use at most {has:g} cores already; give fewer (value {amount:g})")
        if not os.access(self._file, os.W_OK):
            raise ActError(f"{self._file} is not writable: the service must be root, without ProtectControlGroups=yes")
        return f"{wanted} {period}"

    def write(self, vm: str, state: str) -> None:
        """Set quota and period, and check that the kernel has taken them."""
        with self._errors_of(vm):
            # Not by Path.write_text: it would make a file after the group is gone.
            descriptor = os.open(self._file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            try:
                os.write(descriptor, f"{state}\n".encode())
            finally:
                os.close(descriptor)
        now = self.read(vm)
        if now != state:
            raise ActError(f"{self._file}: {state!r} was written, and it is {now!r}")

    def command(self, vm: str, state: str) -> str:  # noqa: ARG002 - the group is the VM's
        """Return the shell command."""
        return f"echo {shlex.quote(state)} >{shlex.quote(str(self._file))}"

    @contextmanager
    def _errors_of(self, vm: str) -> Iterator[None]:
        """Turn errors of the kernel into an ActError of one line."""
        try:
            yield
        except OSError as error:
            if error.errno in GONE:
                raise ActError(f"no VM {vm} runs here any more: {self._file} is gone") from error
            raise ActError(f"VM {vm}: {self._file}: {error.strerror}") from error
        except ValueError as error:
            raise ActError(f"VM {vm}: {self._file}: {error}; please report this") from error
