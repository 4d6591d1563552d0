"""Cache ways and memory bandwidth of a VM by resctrl: its own control group, `whitepanda-act-UUID`.

A state is "" (the VM is in the root group) or the group's schemata in one line, such as "L3:0=3;1=3 MB:0=100;1=100",
without the kernel's padding. Only a VM in the root group is taken: one in another group, such as libvirt's
`<cachetune>`, is left there. Threads inherit their group, so QEMU's new ones follow; removing the group puts all of
them back. The agent's monitoring groups follow by themselves.
"""

import contextlib
import errno
import fcntl
import math
import os
import shlex
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from agent.act.records import ActError, Action, Backend
from collector.base import SourceError
from collector.resctrl.tree import NO_CONTROL_GROUPS

#: Prefix of whitepanda's control groups.
PREFIX = "whitepanda-act-"

_TRIES = 5  # QEMU may start threads while they are being moved
_LOCK_TRIES, _LOCK_PAUSE_S = 50, 0.1
_PERCENT = 100
_BASES = {"L3": 16, "MB": 10}

#: By resource and domain: {"L3": {"0": 0xfff}}.
_Schemata = dict[str, dict[str, int]]


class Resctrl(Backend):
    """One action by resctrl, which is mounted at `root`. Amounts are ways, or percent.

    `pid_of` returns a VM's QEMU process by UUID; None: it does not run here.
    """

    def __init__(
        self, action: Action, root: Path, pid_of: Callable[[str], int | None], proc_root: Path = Path("/proc")
    ) -> None:
        self._action = action
        self._root = root
        self._pid_of = pid_of
        self._proc = proc_root

    def read(self, vm: str) -> str | None:
        """Return the schemata of the VM's group, "" if it has none."""
        with self._errors_of(vm):
            group = self._group(vm)
            if group.is_dir():
                return " ".join(sorted(_lines(_schemata(group))))
            return None if self._pid_of(vm) is None else ""

    def target(self, vm: str, amount: float) -> str:
        """Return the schemata that limit a VM: the root group's, with the lowest ways or this percentage."""
        with self._errors_of(vm):
            pid = self._pid_of(vm)
            if pid is None:
                raise ActError(f"no VM {vm} runs here; `whitepanda vms` lists those that do")
            if not (self._root / "info").is_dir():
                remedy = f"needs a CPU with RDT or QoS, and `mount -t resctrl resctrl {self._root}`"
                raise ActError(f"{self._root}: no resctrl; {remedy}")
            if (group := self._group(vm)).is_dir():
                raise ActError(f"{group} remains from an action without a record; remove it with `rmdir {group}`")
            self._check_is_free(vm, self._threads(pid))
            schemata = _schemata(self._root)
            name = "MB" if self._action == "limit-bandwidth" else "L3"
            if name not in schemata:
                feature = "cache allocation (CAT)" if name == "L3" else "bandwidth limits (MBA)"
                raise ActError(f"{self._root}: this CPU has no {feature}; see {self._root}/info")
            limited = self._percent if name == "MB" else self._ways
            schemata[name] = limited(amount, schemata[name])
            return " ".join(sorted(_lines(schemata)))

    def write(self, vm: str, state: str) -> None:
        """Make the group, write its schemata, then move the VM's threads into it; "" removes it."""
        with self._errors_of(vm), self._locked():
            group = self._group(vm)
            if not state:
                with contextlib.suppress(FileNotFoundError):
                    group.rmdir()
                return
            pid = self._pid_of(vm)
            if pid is None:
                raise ActError(f"no VM {vm} runs here any more")
            self._check_is_free(vm, self._threads(pid))
            self._make(group)
            # The limit is there before any thread is in the group.
            fresh = _lines(_schemata(group))
            for line in state.split():
                if line not in fresh:
                    (group / "schemata").write_text(f"{line}\n")
            self._move(group, pid)

    def is_ours(self, now: str, after: str) -> bool:
        """Whether each line is as we set it or as the kernel makes it: a kill may leave a group half done."""
        made: set[str] = set()
        with contextlib.suppress(ActError, OSError):
            made = _lines(_schemata(self._root)) | _lines(self._fresh())
        return set(now.split()) <= made | set(after.split())

    def command(self, vm: str, state: str) -> str:
        """Return the shell commands."""
        group = self._group(vm)
        if not state:
            return f"rmdir {group}"
        lines = shlex.join(state.split())
        return f"mkdir {group}; printf '%s\\n' {lines} >{group}/schemata; all threads of the VM into {group}/tasks"

    def _percent(self, amount: float, root: dict[str, int]) -> dict[str, int]:
        """Return a percentage for each domain, rounded up to the step of this CPU as the kernel does."""
        most = max(root.values())
        if most > _PERCENT:
            raise ActError(
                f"{self._root}: memory bandwidth is not in percent here (the root group has {most}): "
                "an AMD CPU, or mounted with mba_MBps; cap its CPU instead"
            )
        step, least = self._number("MB/bandwidth_gran"), self._number("MB/min_bandwidth")
        percent = math.ceil(max(amount, least) / step) * step
        if percent >= most:
            raise ActError(f"percent must be below {most}, the limit of the root group (value {percent})")
        return {domain: min(percent, value) for domain, value in root.items()}

    def _ways(self, amount: float, root: dict[str, int]) -> dict[str, int]:
        """Return the lowest ways, for each domain."""
        ways, least = round(amount), self._number("L3/min_cbm_bits")
        most = min(mask.bit_count() for mask in root.values()) - 1
        if not least <= ways <= most:
            raise ActError(f"ways must be {least} to {most} on this host (value {ways})")
        mask = (1 << ways) - 1
        for domain, root_mask in root.items():
            if mask & ~root_mask:
                raise ActError(
                    f"the lowest {ways} ways of cache {domain} are not the root group's (it has {root_mask:x}): "
                    f"they are kept for other programs; see {self._root}/schemata"
                )
        return dict.fromkeys(root, mask)

    def _number(self, name: str, base: int = 10) -> int:
        return int((self._root / "info" / name).read_text(), base)

    def _fresh(self) -> _Schemata:
        """Return what the kernel gives to a new group: everything, whatever the root group has."""
        full = {"L3": lambda: self._number("L3/cbm_mask", 16), "MB": lambda: _PERCENT}
        return {name: dict.fromkeys(domains, full[name]()) for name, domains in _schemata(self._root).items()}

    # --- groups and threads ---

    def _group(self, vm: str) -> Path:
        return self._root / f"{PREFIX}{vm}"

    def _threads(self, pid: int) -> set[int]:
        return {int(entry.name) for entry in (self._proc / str(pid) / "task").iterdir()}

    def _check_is_free(self, vm: str, tids: set[int]) -> None:
        """Refuse a VM that another program has put into a control group."""
        for group in self._root.iterdir():
            if group.name in NO_CONTROL_GROUPS or group.name == f"{PREFIX}{vm}" or not group.is_dir():
                continue
            held = set(map(int, (group / "tasks").read_text().split())) & tids
            if held:
                where = f"the control group {group.name} of another program (thread {min(held)})"
                raise ActError(f"VM {vm} is in {where}; it is left alone")

    def _make(self, group: Path) -> None:
        # As in collector.resctrl.tree: the root has no write bit, and a root without capabilities needs one.
        mode = stat.S_IMODE(self._root.stat().st_mode)
        if not mode & stat.S_IWUSR:
            with contextlib.suppress(OSError):
                self._root.chmod(mode | stat.S_IWUSR)
        group.mkdir(exist_ok=True)

    def _move(self, group: Path, pid: int) -> None:
        for _ in range(_TRIES):
            inside = set(map(int, (group / "tasks").read_text().split()))
            missing = self._threads(pid) - inside
            if not missing:
                return
            for tid in missing:
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    (group / "tasks").write_text(f"{tid}\n")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the tree as the kernel's document asks; others hold it for moments."""
        fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for attempt in range(_LOCK_TRIES):
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    if attempt == _LOCK_TRIES - 1:
                        raise ActError(f"{self._root} is locked by another program; `lslocks` shows which") from error
                    time.sleep(_LOCK_PAUSE_S)
                else:
                    break
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _errors_of(self, vm: str) -> Iterator[None]:
        """Turn errors of the kernel into an ActError of one line."""
        try:
            yield
        except OSError as error:
            status = ""
            with contextlib.suppress(OSError):
                status = (self._root / "info/last_cmd_status").read_text().strip()
            remedy = "; all groups are taken (num_closids)" if error.errno == errno.ENOSPC else ""
            reason = f" ({status})" if status not in {"", "ok"} else ""
            raise ActError(f"resctrl, VM {vm}: {error.filename}: {error.strerror}{reason}{remedy}") from error
        except SourceError as error:  # which VMs run is not known now
            raise ActError(f"VM {vm}: {error}") from error
        except ValueError as error:
            raise ActError(f"resctrl, VM {vm}: {error}; please report this") from error


def _schemata(group: Path) -> _Schemata:
    """Read a group's schemata of cache and memory bandwidth; the kernel pads masks with zeros, numbers with blanks."""
    schemata = {}
    for line in (group / "schemata").read_text().splitlines():
        name, _, values = line.strip().partition(":")
        if name in _BASES:
            domains = (value.split("=") for value in values.split(";"))
            schemata[name] = {domain.strip(): int(value, _BASES[name]) for domain, value in domains}
    return schemata


def _lines(schemata: _Schemata) -> set[str]:
    return {
        f"{name}:" + ";".join(f"{d}={v:x}" if name == "L3" else f"{d}={v}" for d, v in domains.items())
        for name, domains in schemata.items()
    }
