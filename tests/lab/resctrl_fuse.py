#!/usr/bin/python3
"""A look-alike of the kernel's resctrl file system, for machines without the hardware.

Needs Debian's python3-fusepy and libfuse2. It does what resctrl(5) of the kernel's documentation and its source say:
groups made by mkdir fill themselves, tasks are moved one by one by writing their number, RMIDs and CLOSIDs are
scarce, and only root or a task's owner moves it. Counters grow with the CPU time of the tasks, on the domain where
they last ran. What it does not do: a new thread begins in the default group (the kernel's inherits), and it is slow,
so nothing about time can be learned here.

Tests turn knobs by extended attributes, which readers of the tree do not see:
    user.limbo_s    on the root: how long a freed RMID stays unusable (mkdir then says EBUSY instead of ENOSPC)
    user.answer     on a file in mon_data: what reading it gives instead of the number ("" = the number again)
"""

import argparse
import errno
import os
import stat
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path, PurePosixPath

EVENTS = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
MON_FILES = ("cpus", "cpus_list", "tasks")
CTRL_FILES = (*MON_FILES, "schemata", "mode", "size")
LOCAL_SHARE = 0.8  # of the traffic; the rest goes to other nodes
OCCUPANCY_SHARE = 0.1  # of the traffic stays in the cache
CACHE_MASK = 0xFFF
MIN_PERCENT = PERCENT_STEP = 10  # of memory bandwidth
OCCUPANCY_STEP = 65536  # the hardware counts in such units


def fail(code: int) -> OSError:
    return OSError(code, os.strerror(code))


@dataclass
class Task:
    """A thread in a group: CPU time up to which it was accounted."""

    start_ticks: int
    cpu_ns: int


@dataclass(eq=False)
class Group:
    """A control group (parent None) or a monitoring group of one."""

    path: str
    inode: int
    parent: "Group | None" = None
    cpus: int = 0
    schemata: dict[str, dict[int, int]] = field(default_factory=dict)
    mode: str = "shareable"
    tasks: dict[int, Task] = field(default_factory=dict)
    bytes_by_domain: dict[str, float] = field(default_factory=dict)
    occupancy_by_domain: dict[str, float] = field(default_factory=dict)
    answers: dict[tuple[str, str], str] = field(default_factory=dict)
    folder_mode: int = 0o755
    modes: dict[str, int] = field(default_factory=dict)  # of what was changed by chmod
    alive: bool = True


@dataclass
class Handle:
    """An open file: bound to its group, not to the name, as in the kernel."""

    path: str
    group: Group | None
    text: bytes = b""


def task_now(tid: int) -> tuple[int, int, int] | None:
    """Return start time (ticks), CPU time (ns) and last CPU of a live thread."""
    try:
        fields = Path(f"/proc/{tid}/stat").read_text().rpartition(")")[2].split()
        cpu_ns = Path(f"/proc/{tid}/schedstat").read_text().split()[0]
        return int(fields[19]), int(cpu_ns), int(fields[36])
    except (OSError, ValueError, IndexError):
        return None


def owners(tid: int) -> set[int]:
    """Return the real and the saved user of a thread: those whom the kernel lets move it, besides root."""
    lines = Path(f"/proc/{tid}/status").read_text().splitlines()
    real, _, saved, _ = next(line for line in lines if line.startswith("Uid:")).split()[1:]
    return {int(real), int(saved)}


def cpu_list(mask: int) -> str:
    cpus = [cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1]
    runs: list[list[int]] = []
    for cpu in cpus:
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def schemata_text(schemata: dict[str, dict[int, int]]) -> str:
    """Return schemata as the kernel prints them: masks padded with zeros, percentages with blanks."""
    width = len(f"{CACHE_MASK:x}")
    text = ""
    for name, domains in schemata.items():
        form = f"0{width}x" if name == "L3" else "3d"
        text += f"{name:>6}:" + ";".join(f"{domain}={value:{form}}" for domain, value in domains.items()) + "\n"
    return text


class Resctrl:
    """The tree and its rules, without FUSE."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.domains: list[str] = options.domains.split(",")
        self.cpus = os.cpu_count() or 1
        self.inodes = count(10)
        self.status = "ok"
        self.limbo_s: float = options.limbo_s
        self.limbo: list[float] = []  # when each freed RMID may be used again
        self.groups: dict[str, Group] = {}
        self.root = self.add_group("", None)
        self.root.cpus = (1 << self.cpus) - 1
        self.root.folder_mode = 0o555  # so root without CAP_DAC_OVERRIDE can make no groups, as in the kernel
        self.info = self.make_info()

    def make_info(self) -> dict[str, str]:
        closids = str(self.options.closids)
        return {
            "/info/L3/cbm_mask": f"{CACHE_MASK:x}",
            "/info/L3/num_closids": closids,
            "/info/L3/min_cbm_bits": "1",
            "/info/L3/shareable_bits": "0",
            "/info/L3/bit_usage": ";".join(f"{int(d)}=XXXXXXXXXXXX" for d in self.domains),
            "/info/MB/num_closids": closids,
            "/info/MB/min_bandwidth": str(MIN_PERCENT),
            "/info/MB/bandwidth_gran": str(PERCENT_STEP),
            "/info/MB/delay_linear": "1",
            "/info/L3_MON/mon_features": "\n".join(EVENTS),
            "/info/L3_MON/num_rmids": str(self.options.rmids),
            "/info/L3_MON/max_threshold_occupancy": str(OCCUPANCY_STEP),
        }

    # -- groups --------------------------------------------------------------------------------------------------

    def add_group(self, path: str, parent: Group | None) -> Group:
        group = self.groups[path] = Group(path, next(self.inodes), parent)
        for domain in self.domains:
            group.bytes_by_domain[domain] = group.occupancy_by_domain[domain] = 0.0
        ids = [int(domain) for domain in self.domains]
        group.schemata = {"MB": dict.fromkeys(ids, 100), "L3": dict.fromkeys(ids, CACHE_MASK)}
        return group

    def children(self, group: Group) -> list[Group]:
        return [other for other in self.groups.values() if other.parent is group]

    def mkdir(self, path: str, mode: int) -> None:
        self.status = "ok"
        folder, name = os.path.split(path)
        parent = self.groups.get(folder.removesuffix("/mon_groups")) if folder.endswith("/mon_groups") else None
        if "\n" in name:
            raise fail(errno.EINVAL)
        if parent is None and folder != "/":
            raise fail(errno.EPERM)
        if self.listing(path) is not None or self.file_exists(path):
            raise fail(errno.EEXIST)
        if parent is not None and parent.parent is not None:
            raise fail(errno.EPERM)
        if parent is None and sum(g.parent is None for g in self.groups.values()) >= self.options.closids:
            self.status = "Out of CLOSIDs"
            raise fail(errno.ENOSPC)
        now = time.monotonic()
        self.limbo = [until for until in self.limbo if until > now]
        if len(self.groups) + len(self.limbo) >= self.options.rmids:
            self.status = "Out of RMIDs"
            raise fail(errno.EBUSY if self.limbo else errno.ENOSPC)
        self.add_group(path, parent).folder_mode = mode & 0o777

    def rmdir(self, path: str) -> None:
        self.status = "ok"
        group = self.groups.get(path)
        if group is None or group is self.root:
            raise fail(errno.EPERM if self.listing(path) is not None else errno.ENOENT)
        target = group.parent or self.root
        for gone in [*self.children(group), group]:
            self.account(gone)
            if target is not self.root:
                target.tasks.update(gone.tasks)
            if gone.parent is None:
                target.cpus |= gone.cpus
            gone.alive = False
            del self.groups[gone.path]
            if self.limbo_s:
                self.limbo.append(time.monotonic() + self.limbo_s)

    # -- tasks ---------------------------------------------------------------------------------------------------

    def group_of(self, tid: int) -> Group:
        return next((group for group in self.groups.values() if tid in group.tasks), self.root)

    def move(self, tid: int, group: Group, uid: int) -> None:
        found = task_now(tid)
        if found is None:
            self.status = f"No task {tid}"
            raise fail(errno.ESRCH)
        if uid != 0 and uid not in owners(tid):
            self.status = f"No permission to move task {tid}"
            raise fail(errno.EPERM)
        old = self.group_of(tid)
        self.account(old)
        if group.parent is not None and (old.parent or old) is not group.parent:
            self.status = "Can't move task to different control group"
            raise fail(errno.EINVAL)
        if old is group and tid in group.tasks:
            return
        old.tasks.pop(tid, None)
        if group is not self.root:
            group.tasks[tid] = Task(*found[:2])

    def write_tasks(self, text: str, group: Group, uid: int, writer: int) -> None:
        """Move the tasks of a comma-separated list. The first that fails ends it; those before it are moved."""
        self.status = "ok"
        for word in text.strip().split(","):
            try:
                tid = int(word)
            except ValueError:
                self.status = f"Task list parsing error pid {word}"
                raise fail(errno.EINVAL) from None
            if tid < 0:
                self.status = f"Invalid pid {tid}"
                raise fail(errno.EINVAL)
            self.move(tid or writer, group, uid)

    def account(self, group: Group) -> None:
        """Add what the group's tasks did since the last time; forget those that ended."""
        for tid, task in list(group.tasks.items()):
            found = task_now(tid)
            if found is None or found[0] != task.start_ticks:
                del group.tasks[tid]
                continue
            _, cpu_ns, cpu = found
            moved = max(0, cpu_ns - task.cpu_ns) * self.options.bytes_per_cpu_ns
            task.cpu_ns = cpu_ns
            domain = self.domains[min(cpu, self.cpus - 1) * len(self.domains) // self.cpus]
            group.bytes_by_domain[domain] += moved
            group.occupancy_by_domain[domain] = min(
                self.options.l3_bytes, group.occupancy_by_domain[domain] + moved * OCCUPANCY_SHARE
            )

    def tasks_text(self, group: Group) -> str:
        """Return the tasks of a group; a control group's are those of its monitoring groups too."""
        family = [group, *self.children(group)]
        for member in family:
            self.account(member)
        if group is not self.root:
            return "".join(f"{tid}\n" for member in family for tid in sorted(member.tasks))
        controlled = {tid for g in self.groups.values() if (g.parent or g) is not self.root for tid in g.tasks}
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                found += [int(task.name) for task in (process / "task").iterdir()]
            except OSError:
                continue  # ended meanwhile
        return "".join(f"{tid}\n" for tid in found if tid not in controlled)

    # -- files ---------------------------------------------------------------------------------------------------

    def split(self, path: str) -> tuple[Group, str]:
        """Return the group that a path is in, and the rest of the path."""
        for parent in (PurePosixPath(path), *PurePosixPath(path).parents):
            group = self.groups.get(str(parent).rstrip("/"))
            if group is not None:
                return group, path[len(group.path) :].strip("/")
        return self.root, path.strip("/")

    def listing(self, path: str) -> list[str] | None:
        """Return a folder's names; None: there is no such folder."""
        below = {name[len(path) + 1 :].split("/")[0] for name in self.info if name.startswith(f"{path}/")}
        if path.startswith("/info") and below:
            return sorted(below) + (["last_cmd_status"] if path == "/info" else [])
        group, rest = self.split(path)
        if rest == "":
            names = [*(MON_FILES if group.parent else CTRL_FILES), "mon_data"]
            if group.parent is None:
                names.append("mon_groups")
            if group is self.root:
                names += ["info", *(g.path[1:] for g in self.groups.values() if g.path and g.parent is None)]
            return names
        if rest == "mon_data":
            return [f"mon_L3_{domain}" for domain in self.domains]
        if rest.removeprefix("mon_data/mon_L3_") in self.domains:
            return list(EVENTS)
        if rest == "mon_groups" and group.parent is None:
            return [PurePosixPath(child.path).name for child in self.children(group)]
        return None

    def file_exists(self, path: str) -> bool:
        folder, name = os.path.split(path)
        return self.listing(path) is None and name in (self.listing(folder.rstrip("/")) or ())

    def content(self, path: str) -> str:
        if path in self.info:
            return self.info[path] + "\n"
        if path == "/info/last_cmd_status":
            return self.status + "\n"
        group, rest = self.split(path)
        if rest == "tasks":
            return self.tasks_text(group)
        if rest.startswith("mon_data/"):
            _, folder, event = rest.split("/")
            return self.counter(group, folder.removeprefix("mon_L3_"), event) + "\n"
        return {
            "cpus": f"{group.cpus:x}\n",
            "cpus_list": cpu_list(group.cpus) + "\n",
            "schemata": schemata_text(group.schemata),
            "mode": group.mode + "\n",
            "size": "    L3:" + ";".join(f"{int(d)}={self.options.l3_bytes}" for d in self.domains) + "\n",
        }[rest]

    def counter(self, group: Group, domain: str, event: str) -> str:
        if answer := group.answers.get((domain, event)):
            return answer
        family = [group, *self.children(group)]
        for member in family:
            self.account(member)
        if event == "llc_occupancy":
            total = min(sum(member.occupancy_by_domain[domain] for member in family), self.options.l3_bytes)
            return str(int(total) // OCCUPANCY_STEP * OCCUPANCY_STEP)
        total = sum(member.bytes_by_domain[domain] for member in family)
        return str(int(total if event == "mbm_total_bytes" else total * LOCAL_SHARE))

    def write(self, path: str, text: str, uid: int, writer: int) -> None:
        group, rest = self.split(path)
        if rest == "tasks":
            self.write_tasks(text, group, uid, writer)
        elif rest == "cpus":
            self.set_cpus(group, int(text.strip().replace(",", "") or "0", 16) & self.root_mask())
        elif rest == "schemata":
            self.write_schemata(text, group)
        elif rest == "mode":
            group.mode = text.strip()
        else:
            raise fail(errno.EPERM)

    def write_schemata(self, text: str, group: Group) -> None:
        """Set lines of the schemata: percentages are rounded up, masks have no gaps."""
        self.status = "ok"
        for line in text.splitlines():
            name, _, values = line.strip().partition(":")
            if name not in group.schemata:
                self.status = f"Unknown or unsupported resource name '{name}'"
                raise fail(errno.EINVAL)
            for part in values.split(";"):
                domain, _, word = part.partition("=")
                value = int(word, 16 if name == "L3" else 10)
                ones = value // (value & -value) if value else 0
                if name == "L3" and (not ones or value & ~CACHE_MASK or ones & (ones + 1)):
                    self.status = f"Mask {value:x} has no bits, too many or gaps"
                    raise fail(errno.EINVAL)
                if name == "MB" and not MIN_PERCENT <= value <= 100:
                    self.status = f"MB value {value} out of range [{MIN_PERCENT},100]"
                    raise fail(errno.EINVAL)
                if name == "MB":
                    value = -(-value // PERCENT_STEP) * PERCENT_STEP
                group.schemata[name][int(domain)] = value

    def root_mask(self) -> int:
        return (1 << self.cpus) - 1

    def set_cpus(self, group: Group, mask: int) -> None:
        """Give CPUs to a group; its peers lose them, and the default group has what is left."""
        dropped = group.cpus & ~mask
        group.cpus = mask
        for other in self.groups.values():
            if other is not group and (other.parent is None) == (group.parent is None):
                other.cpus &= ~mask
        if group.parent is None and group is not self.root:
            self.root.cpus |= dropped

    def set_knob(self, path: str, name: str, value: str) -> None:
        group, rest = self.split(path)
        if name == "user.limbo_s" and group is self.root and not rest:
            self.limbo_s = float(value)
        elif name == "user.answer" and rest.startswith("mon_data/") and self.file_exists(path):
            _, folder, event = rest.split("/")
            group.answers[folder.removeprefix("mon_L3_"), event] = value
        else:
            raise fail(errno.EOPNOTSUPP)


class Operations:
    """What FUSE calls: paths of the file system, errors as OSError."""

    use_ns = True
    flag_nullpath_ok = True  # an open file of a removed group has no path any more

    def __init__(self, tree: Resctrl, context) -> None:
        self.tree = tree
        self.context = context
        self.handles: dict[int, Handle] = {}
        self.numbers = count(1)

    def __call__(self, operation: str, *arguments):
        return getattr(self, operation)(*arguments)

    def init(self, path: str) -> None: ...

    def destroy(self, path: str) -> None: ...

    def getattr(self, path: str, _handle=None) -> dict[str, int]:
        path = path.rstrip("/")
        attributes = {"st_uid": 0, "st_gid": 0, "st_atime": 0, "st_mtime": 0, "st_ctime": 0, "st_size": 0}
        group, rest = self.tree.split(path)
        inode = group.inode if not rest else hash((group.inode, rest)) & 0x7FFFFFFF | 1 << 31
        if self.tree.listing(path) is not None:
            mode = stat.S_IFDIR | group.modes.get(rest, group.folder_mode)
            return attributes | {"st_mode": mode, "st_nlink": 2, "st_ino": inode}
        if self.tree.file_exists(path):
            read_only = rest.startswith(("mon_data/", "info/")) or rest == "size"
            mode = stat.S_IFREG | group.modes.get(rest, 0o444 if read_only else 0o644)
            return attributes | {"st_mode": mode, "st_nlink": 1, "st_ino": inode}
        raise fail(errno.ENOENT)

    def readdir(self, path: str, _handle) -> list[str]:
        return [".", "..", *(self.tree.listing(path.rstrip("/")) or ())]

    def mkdir(self, path: str, mode: int) -> None:
        self.tree.mkdir(path, mode)

    def chmod(self, path: str, mode: int) -> None:
        group, rest = self.tree.split(path.rstrip("/"))
        group.modes[rest] = mode & 0o777

    def rmdir(self, path: str) -> None:
        self.tree.rmdir(path)

    def open(self, path: str, _flags: int) -> int:
        number = next(self.numbers)
        group = None if path.startswith("/info") else self.tree.split(path)[0]
        self.handles[number] = Handle(path, group)
        return number

    def release(self, _path: str | None, number: int) -> None:
        del self.handles[number]

    def read(self, _path: str | None, size: int, offset: int, number: int) -> bytes:
        handle = self.alive(number)
        if offset == 0:
            handle.text = self.tree.content(handle.path).encode()
        return handle.text[offset : offset + size]

    def write(self, _path: str | None, data: bytes, _offset: int, number: int) -> int:
        handle = self.alive(number)
        uid, _, pid = self.context()
        self.tree.write(handle.path, data.decode(), uid, pid)
        return len(data)

    def alive(self, number: int) -> Handle:
        handle = self.handles[number]
        if handle.group is not None and not handle.group.alive:
            raise fail(errno.ENODEV)
        return handle

    def truncate(self, path: str, _length: int, _handle=None) -> None: ...

    def setxattr(self, path: str, name: str, value: bytes, _options: int, _position: int = 0) -> None:
        self.tree.set_knob(path.rstrip("/"), name, value.decode())

    def statfs(self, _path: str) -> dict[str, int]:
        return {"f_bsize": 4096, "f_blocks": 0, "f_namemax": 255}


def main() -> None:
    parser = argparse.ArgumentParser(description="Mount the look-alike and serve it until it is unmounted.")
    parser.add_argument("mountpoint")
    parser.add_argument("--rmids", type=int, default=128, help="one of them is the default group's")
    parser.add_argument("--closids", type=int, default=8)
    parser.add_argument("--domains", default="00,01", help="of the L3 cache, such as 00,02")
    parser.add_argument("--limbo-s", type=float, default=0.0)
    parser.add_argument("--l3-bytes", type=int, default=32 << 20)
    parser.add_argument("--bytes-per-cpu-ns", type=float, default=0.5)
    options = parser.parse_args()

    from fusepy import FUSE, fuse_get_context  # noqa: PLC0415 - the rules can be tested without it

    FUSE(
        Operations(Resctrl(options), fuse_get_context),
        options.mountpoint,
        foreground=True,
        nothreads=True,
        direct_io=True,
        use_ino=True,
        attr_timeout=0,
        entry_timeout=0,
        negative_timeout=0,
        allow_other=True,
        default_permissions=True,
        hard_remove=True,
        fsname="resctrl",
        subtype="resctrl",
    )


if __name__ == "__main__":
    main()
