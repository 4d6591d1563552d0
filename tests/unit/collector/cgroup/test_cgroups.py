import contextlib
import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collector.base import CgroupCounters, NumaPlacement, Reason, SourceError, Stamp
from collector.cgroup import source as cgroups
from collector.cgroup.source import CgroupSource, Quota, quota_of, vcpu_groups_of
from collector.cgroup.tree import CgroupTree, VmGroups, parse_cgroups, parse_mounts
from collector.files import KeptFile
from collector.inventory.inventory import Inventory
from tests.support.reading_times import ReadingTimes
from tests.support.waiting import wait_until

PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
SCOPE = "machine.slice/machine-qemu\\x2d1\\x2da.scope"


class Groups:
    """Hierarchies of a fixture: pure v2, or hybrid (controllers in v1, pressures in v2)."""

    def __init__(self, host, *, hybrid: bool) -> None:
        self.host, self.hybrid = host, hybrid
        self.root = host.proc.parent / "cgroup"
        (host.proc / "self").mkdir()
        if hybrid:
            self.v2, self.cpu, self.memory = (self.root / "unified", self.root / "cpu,cpuacct", self.root / "memory")
            mounts = [(self.cpu, "cgroup", "rw,cpu,cpuacct"), (self.memory, "cgroup", "rw,memory")]
        else:
            self.v2 = self.cpu = self.memory = self.root
            mounts = []
        mounts.append((self.v2, "cgroup2", "rw,nsdelegate"))
        lines = [f"{n} 1 0:{n} / {p} rw - {kind} {kind} {opts}\n" for n, (p, kind, opts) in enumerate(mounts)]
        (host.proc / "self/mountinfo").write_text("".join(lines))

    def add(self, pid: int, group: str, inner: str = "/libvirt/emulator", procs: str | None = None) -> None:
        """Put a process in a group; `group` is the VM's own."""
        for mount in {self.v2, self.cpu, self.memory}:
            (mount / group).mkdir(parents=True, exist_ok=True)
            (mount / group / "cgroup.procs").write_text(procs if procs is not None else f"{pid}\n")
        v1 = f"4:cpu,cpuacct:/{group}{inner}\n3:memory:/{group}\n2:name=systemd:/\n" if self.hybrid else ""
        (self.host.proc / str(pid) / "cgroup").write_text(f"{v1}0::/{group}{inner}\n")
        self.pressures(group, 11, 22, 33)
        self.throttled(group, 44)
        if self.hybrid:
            (self.memory / group / "memory.usage_in_bytes").write_text("1000\n")
            (self.v2 / group / "cpu.stat").write_text("usage_usec 5\nuser_usec 4\nsystem_usec 1\n")
        else:
            (self.memory / group / "memory.current").write_text("1000\n")
        self.quota(group, None)

    def pressures(self, group: str, cpu: int, memory: int, io: int) -> None:
        for name, some in (("cpu", cpu), ("memory", memory), ("io", io)):
            (self.v2 / group / f"{name}.pressure").write_text(PRESSURE.format(some, some - 10))

    def throttled(self, group: str, us: int) -> None:
        line = f"throttled_time {us * 1000}" if self.hybrid else f"throttled_usec {us}"
        (self.cpu / group).mkdir(parents=True, exist_ok=True)
        (self.cpu / group / "cpu.stat").write_text(f"nr_periods 9\nnr_throttled 3\n{line}\n")

    def quota(self, group: str, us: int | None) -> None:
        (self.cpu / group).mkdir(parents=True, exist_ok=True)
        if self.hybrid:
            (self.cpu / group / "cpu.cfs_quota_us").write_text(f"{-1 if us is None else us}\n")
            (self.cpu / group / "cpu.cfs_period_us").write_text("100000\n")
        else:
            (self.cpu / group / "cpu.max").write_text(f"{'max' if us is None else us} 100000\n")


@pytest.fixture(params=[False, True], ids=["v2", "hybrid"])
def tree(host, request):
    return Groups(host, hybrid=request.param)


@pytest.fixture
def make(host, tmp_path):
    made = []

    def make(**arguments):
        arguments = {
            "root": str(tmp_path / "cgroup"),
            "sys_root": str(tmp_path / "sys"),
            "numa_poll_s": 10.0,
        } | arguments
        source = CgroupSource(Inventory(str(host.state), str(host.proc)), **arguments)
        made.append(source)
        source.open()
        return source

    yield make
    for source in made:
        source.close()


@pytest.fixture
def clock(monkeypatch):
    """The source's monotonic clock, in a list."""
    now = [10**12]
    monkeypatch.setattr(cgroups, "monotonic_ns", lambda: now[0])
    monkeypatch.setattr(cgroups, "clocks_now", lambda: Stamp(now[0], now[0]))
    return now


def vm_of(source, host, name="a"):
    return source.sample().vms[host.uuid_of(name)]


def open_files(root):
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += link.readlink().is_relative_to(root)
    return found


def status(host, pid, *, resident_kb=2048, huge_kb=0):
    (host.proc / str(pid) / "status").write_text(
        f"Name:\tqemu\nVmRSS:\t  {resident_kb} kB\nHugetlbPages:\t {huge_kb} kB\n"
    )


def test_all_of_a_groups_counters(host, tree, make):
    host.vm("a", 10, [11])
    tree.add(10, SCOPE)
    tree.quota(SCOPE, 150_000)
    source = make()
    counters = vm_of(source, host).cgroup
    assert counters == CgroupCounters(1, 11_000, 22_000, 12_000, 33_000, 23_000, 44_000, 1.5, 1000)
    tree.pressures(SCOPE, 111, 122, 133)
    tree.throttled(SCOPE, 144)
    assert vm_of(source, host).cgroup == CgroupCounters(
        1, 111_000, 122_000, 112_000, 133_000, 123_000, 144_000, 1.5, 1000
    )
    assert open_files(tree.root) == 5
    source.close()
    source.close()
    assert open_files(tree.root) == 0


def test_without_a_quota_the_throttled_time_stands_and_is_not_read(host, tree, make):
    host.vm("a", 10, [11])
    tree.add(10, SCOPE)
    source = make()
    assert vm_of(source, host).cgroup.throttled_ns == 44_000
    tree.throttled(SCOPE, 144)  # the kernel never does that
    assert vm_of(source, host).cgroup.throttled_ns == 44_000
    assert open_files(tree.root) == 4


@pytest.mark.parametrize(
    ("group", "inner"),
    [
        (SCOPE, "/libvirt/emulator"),
        (SCOPE, "/emulator"),
        (SCOPE, ""),
        ("machine/qemu-1-a.libvirt-qemu", "/emulator"),
        ("machine/production.partition/qemu-1-a.libvirt-qemu", "/vcpu3"),
        ("qemu.slice/100.scope", ""),
    ],
)
def test_groups_that_are_a_vms_by_their_name_may_hold_its_helpers(host, tree, make, group, inner):
    host.vm("a", 10, [11])
    tree.add(10, group, inner, procs="10\n999\n")
    assert vm_of(make(), host).cgroup.memory_bytes == 1000


@pytest.mark.parametrize(
    ("group", "procs", "shared"),
    [
        ("user.slice/session-3.scope", "10\n", False),
        ("user.slice/session-3.scope", "9\n10\n", True),
        ("system.slice/foo.service", "10\n999\n", True),
        ("system.slice/foo.service", "999\n", True),
    ],
)
def test_any_other_group_is_the_vms_if_nobody_else_is_in_it(host, tree, make, group, procs, shared):
    host.vm("a", 10, [11])
    status(host, 10)
    tree.add(10, group, "", procs=procs)
    vm = vm_of(make(), host)
    if shared:
        assert (vm.cgroup, dict(vm.absent)) == (None, {"cgroup": Reason.SHARED})
    else:
        assert vm.cgroup.cpu_some_ns == 11_000


def test_a_process_below_a_group_shares_it_too(host, tree, make):
    host.vm("a", 10, [11])
    status(host, 10)
    tree.add(10, "foo.service", "")
    for mount in {tree.v2, tree.cpu, tree.memory}:
        (mount / "foo.service/inner").mkdir()
        (mount / "foo.service/inner/cgroup.procs").write_text("77\n")
    assert vm_of(make(), host).absent["cgroup"] is Reason.SHARED


def test_the_hosts_root_group_is_shared(host, tree, make):
    host.vm("a", 10, [11])
    status(host, 10)
    tree.add(10, "x")
    (host.proc / "10/cgroup").write_text("4:cpu,cpuacct:/\n3:memory:/\n0::/\n")
    assert vm_of(make(), host).absent["cgroup"] is Reason.SHARED


def test_a_shared_hierarchy_costs_only_its_own_values(host, make):
    """Hybrid: the process was never moved in v2, so there are no pressures of its own."""
    tree = Groups(host, hybrid=True)
    host.vm("a", 10, [11])
    tree.add(10, SCOPE)
    (host.proc / "10/cgroup").write_text(f"4:cpu,cpuacct:/{SCOPE}/emulator\n3:memory:/{SCOPE}\n0::/\n")
    counters = vm_of(make(), host).cgroup
    assert counters == CgroupCounters(1, throttled_ns=44_000, memory_bytes=1000)


def test_missing_controllers_and_pressures_are_none_and_not_zero(host, tree, make):
    host.vm("a", 10, [11])
    tree.add(10, SCOPE)
    for mount in {tree.v2, tree.cpu, tree.memory}:
        for file in (mount / SCOPE).iterdir():
            if file.name != "cgroup.procs":
                file.unlink()
    (tree.v2 / SCOPE / "cpu.stat").write_text("usage_usec 5\n")  # of the core, not of the controller
    assert vm_of(make(), host).cgroup == CgroupCounters(1)


def test_pressures_of_a_kernel_with_psi_off(host, tree, make, monkeypatch):
    host.vm("a", 10, [11])
    tree.add(10, SCOPE)
    read = os.pread

    def pread(fd, size, offset):
        if str(Path(f"/proc/self/fd/{fd}").readlink()).endswith(".pressure"):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return read(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert vm_of(make(), host).cgroup == CgroupCounters(1, throttled_ns=44_000, memory_bytes=1000)


def test_quotas(host, tree, make, clock):
    host.vm("a", 10, [11])
    tree.add(10, SCOPE)
    own = str(tree.cpu / SCOPE)

    def quota():
        return quota_of(own, vcpu_groups_of(own), is_v1=tree.hybrid)

    assert quota() == Quota(None, ())
    tree.quota(SCOPE, 250_000)
    assert quota().cores == 2.5
    for number in (0, 1):
        tree.quota(f"{SCOPE}/libvirt/vcpu{number}", None)
    assert quota().cores == 2.5
    tree.quota(f"{SCOPE}/libvirt/vcpu0", 30_000)
    assert quota().cores == 2.5  # vCPU 1 has no limit of its own
    assert quota().groups == (own, f"{own}/libvirt/vcpu0")
    tree.quota(f"{SCOPE}/libvirt/vcpu1", 40_000)
    assert quota().cores == pytest.approx(0.7)
    tree.quota(SCOPE, None)
    assert quota().cores == pytest.approx(0.7)


def test_throttled_time_is_that_of_the_groups_with_a_quota(host, tree, make, clock):
    """libvirt's vcpu_quota is on a group per vCPU. When it comes or goes the sum is another counter."""
    host.vm("a", 10, [11])
    tree.add(10, SCOPE)
    for number in (0, 1):
        tree.quota(f"{SCOPE}/libvirt/vcpu{number}", None)
        tree.throttled(f"{SCOPE}/libvirt/vcpu{number}", 1000)
    source = make()
    before = vm_of(source, host).cgroup
    assert (before.throttled_ns, before.quota_cores) == (44_000, None)
    for number in (0, 1):
        tree.quota(f"{SCOPE}/libvirt/vcpu{number}", 30_000)
    assert vm_of(source, host).cgroup == before  # not looked at yet
    clock[0] += 10 * 10**9
    after = vm_of(source, host).cgroup
    assert (after.throttled_ns, after.quota_cores) == (2_000_000, 0.6)
    assert after.opened != before.opened
    assert open_files(tree.root) == 6
    tree.quota(f"{SCOPE}/libvirt/vcpu1", 10_000)  # only the amount changes: the same counter
    clock[0] += 10 * 10**9
    assert vm_of(source, host).cgroup == CgroupCounters(
        after.opened, 11_000, 22_000, 12_000, 33_000, 23_000, after.throttled_ns, 0.4, 1000
    )


def test_a_vcpus_group_that_took_anothers_place_is_found(host, tree, make, clock):
    host.vm("a", 10, [11])
    tree.add(10, SCOPE)
    for number in (0, 1):
        tree.quota(f"{SCOPE}/libvirt/vcpu{number}", 30_000)
    source = make()
    assert vm_of(source, host).cgroup.quota_cores == 0.6
    libvirt = tree.cpu / SCOPE / "libvirt"
    (libvirt / "vcpu1").rename(libvirt / "vcpu2")  # one gone, one made: as many links as before
    tree.quota(f"{SCOPE}/libvirt/vcpu2", 50_000)
    clock[0] += 10 * 10**9
    assert vm_of(source, host).cgroup.quota_cores == 0.8
    source.close()


def test_groups_of_vcpus_are_listed_when_they_come_and_go_only(host, tree, make, clock, monkeypatch):
    host.vm("a", 10, [11])
    tree.add(10, SCOPE)
    listed = []
    plain = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or plain(path))
    source = make()
    assert vm_of(source, host).cgroup.quota_cores is None

    def later():
        listed.clear()
        clock[0] += 10 * 10**9
        cores = vm_of(source, host).cgroup.quota_cores
        return cores, sum(SCOPE in str(path) for path in listed)

    assert later() == (None, 0)
    tree.quota(f"{SCOPE}/libvirt/vcpu0", 30_000)
    assert later() == (0.3, 2)
    assert later() == (0.3, 0)
    tree.quota(f"{SCOPE}/libvirt/vcpu1", 40_000)
    assert later() == (pytest.approx(0.7), 2)
    tree.quota(f"{SCOPE}/libvirt/vcpu1", 50_000)  # an amount is read each time
    assert later() == (0.8, 0)
    shutil.rmtree(tree.cpu / SCOPE / "libvirt/vcpu1")
    assert later() == (0.3, 2)


def test_a_group_whose_files_say_the_same_gives_the_same_sample(host, tree, make, clock):
    host.vm("a", 10, [11])
    status(host, 10)
    tree.add(10, SCOPE)
    source = make()
    first = vm_of(source, host)
    assert vm_of(source, host) is first
    tree.pressures(SCOPE, 11, 22, 34)
    second = vm_of(source, host)
    assert second.cgroup.io_some_ns == first.cgroup.io_some_ns + 1000
    (tree.memory / SCOPE / ("memory.usage_in_bytes" if tree.hybrid else "memory.current")).write_text("2000\n")
    assert vm_of(source, host).cgroup.memory_bytes == 2000
    assert second.cgroup.memory_bytes == 1000
    clock[0] += 10 * 10**9  # another look at its placement: the counters are the same, the moment is not
    third = vm_of(source, host)
    assert third.stamps["numa"].mono_ns == second.stamps["numa"].mono_ns + 10 * 10**9


def test_counters_have_the_moment_at_which_they_were_read(host, tree, make, monkeypatch):
    for number, name in enumerate("ab", 1):
        host.vm(name, 10 * number, [10 * number + 1])
        tree.add(10 * number, f"machine/qemu-{number}-{name}.libvirt-qemu")
        status(host, 10 * number)
    source = make(numa_poll_s=0.0)
    wait_until(lambda: len(source.sample().vms) == 2)  # of a busy machine the list may lack a new VM at first
    times = ReadingTimes(host.uuid_of("a"))
    # Both come before it, and either may take long.
    monkeypatch.setattr(source._inventory, "vms", times.before(source._inventory.vms))
    monkeypatch.setattr(source, "_poll", times.before(source._poll))
    plain = KeptFile.read

    def noted(self, *arguments):
        if self.path.endswith("/cpu.pressure"):
            times.note(host.uuid_of("a" if "qemu-1-a" in self.path else "b"))
        return plain(self, *arguments)

    monkeypatch.setattr(KeptFile, "read", noted)
    for _ in range(2):
        sample = source.sample()
        times.check(sample, host.uuid_of("b"), "cgroup")
        assert sample.vms[host.uuid_of("b")].stamps["numa"].mono_ns < sample.mono_ns  # its own


def test_a_removed_group_is_looked_for_again(host, tree, make, clock, monkeypatch):
    host.vm("a", 10, [11])
    tree.add(10, SCOPE)
    source = make()
    assert vm_of(source, host).cgroup.opened == 1
    read = os.pread

    def pread(fd, size, offset):
        if Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(tree.root):
            raise OSError(errno.ENODEV, "No such device")
        return read(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    vm = vm_of(source, host)
    assert (vm.cgroup, vm.absent["cgroup"]) == (None, Reason.NOT_PRESENT)
    assert open_files(tree.root) == 0
    monkeypatch.setattr(os, "pread", read)
    tree.add(10, "machine/qemu-2-a.libvirt-qemu")
    counters = vm_of(source, host).cgroup
    assert (counters.opened, counters.cpu_some_ns) == (2, 11_000)


def test_a_process_that_moved_is_followed(host, tree, make, clock):
    host.vm("a", 10, [11])
    tree.add(10, SCOPE)
    source = make()
    vm_of(source, host)
    tree.add(10, "machine/qemu-2-a.libvirt-qemu")
    tree.pressures("machine/qemu-2-a.libvirt-qemu", 77, 88, 99)
    assert vm_of(source, host).cgroup.cpu_some_ns == 11_000
    clock[0] += 10 * 10**9
    counters = vm_of(source, host).cgroup
    assert (counters.opened, counters.cpu_some_ns) == (2, 77_000)


def test_who_else_is_in_a_group_is_looked_at_each_minute(host, tree, make, clock):
    host.vm("a", 10, [11])
    status(host, 10)
    tree.add(10, "foo.service", "")
    source = make()
    assert vm_of(source, host).cgroup is not None
    tree.add(10, "foo.service", "", procs="10\n20\n")
    for _ in range(5):
        clock[0] += 10 * 10**9
        assert vm_of(source, host).cgroup is not None
    clock[0] += 10 * 10**9
    assert vm_of(source, host).absent["cgroup"] is Reason.SHARED
    assert open_files(tree.root) == 0
    tree.add(10, "foo.service", "")
    clock[0] += 60 * 10**9
    assert vm_of(source, host).cgroup is not None


def test_an_epoch_is_another_group_and_a_vm_that_went_leaves_no_file(host, tree, make):
    host.vm("a", 10, [11])
    tree.add(10, SCOPE)
    source = make()
    assert vm_of(source, host).cgroup.opened == 1
    host.vm("a", 10, [11], start=5000)
    vm = vm_of(source, host)
    assert vm.cgroup.opened == 2
    assert vm.epoch.endswith("-5000")
    (host.state / "a.xml").unlink()
    assert source.sample().vms == {}
    assert open_files(tree.root) == 0


def test_one_vms_trouble_is_only_that_vms(host, tree, make):
    for number, name in enumerate(("bad", "gone", "good"), 1):
        host.vm(name, 10 * number, [10 * number + 1])
        tree.add(10 * number, f"machine/qemu-{number}-{name}.libvirt-qemu")
    (tree.v2 / "machine/qemu-1-bad.libvirt-qemu/cpu.pressure").write_text("nonsense\n")
    (host.proc / "20/cgroup").unlink()
    sample = make().sample()
    assert sample.vms[host.uuid_of("bad")].absent["cgroup"] is Reason.INVALID_VALUE
    assert sample.vms[host.uuid_of("gone")].absent["cgroup"] is Reason.NOT_PRESENT
    assert sample.vms[host.uuid_of("good")].cgroup.memory_bytes == 1000


def test_beyond_the_bound_files_are_opened_for_each_reading(host, tree, make):
    host.vm("a", 10, [11])
    tree.add(10, SCOPE)
    source = make(max_fds=2)
    for _ in range(3):
        assert vm_of(source, host).cgroup.throttled_ns == 44_000
        assert open_files(tree.root) == 2


@pytest.mark.parametrize("name", ["cpu.stat", "cpu.pressure"])
def test_no_descriptor_is_left(host, tree, make, monkeypatch, name):
    host.vm("a", 10, [11])
    tree.add(10, SCOPE)
    opened = os.open

    def fail(path, *arguments):
        if str(path).endswith(name):
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", fail)
    source = make()
    assert vm_of(source, host).absent["cgroup"] is Reason.FD_LIMIT
    assert open_files(tree.root) == 0


def test_few_vms_are_looked_at_closely_at_once(host, tree, make, clock):
    for number in range(1, 21):
        host.vm(f"v{number}", 10 * number, [10 * number + 1])
        tree.add(10 * number, f"machine/qemu-{number}-v.libvirt-qemu")
    source = make()
    reported = []
    for _ in range(3):
        reported.append(sum(vm.cgroup is not None for vm in source.sample().vms.values()))
        clock[0] += 10**9
    assert reported == [8, 16, 20]
    assert all(vm.absent.get("cgroup") is None for vm in source.sample().vms.values())


def test_numa_of_one_node_is_all_there_and_stamped(host, tree, make, clock):
    host.vm("a", 10, [11, 12])
    tree.add(10, SCOPE)
    status(host, 10, resident_kb=2048, huge_kb=4096)
    source = make()
    first = vm_of(source, host)
    assert first.numa == NumaPlacement({0: 6144 * 1024}, {0: 2})
    assert first.stamps["numa"].mono_ns == clock[0]
    status(host, 10, resident_kb=1024)
    clock[0] += 9 * 10**9
    assert vm_of(source, host).stamps == first.stamps  # handed on until it is read again
    clock[0] += 10**9
    again = vm_of(source, host)
    assert again.numa.memory_bytes == {0: 1024 * 1024}
    assert again.stamps["numa"] == Stamp(clock[0], again.stamps["numa"].unix_ns)


def test_probe_and_open(host, tree, make, tmp_path):
    probe = make().probe()
    kinds = "v2 and v1" if tree.hybrid else "v2"
    assert probe.available
    assert probe.detail == (
        f"control groups {kinds} in {tree.root}; no pressures: the kernel keeps none, add psi=1 to its command line"
    )
    (host.proc / "pressure").mkdir()
    (host.proc / "pressure/cpu").write_text(PRESSURE.format(10, 10))
    assert make().probe().detail == f"control groups {kinds} in {tree.root}"
    nothing = make(root=str(tmp_path / "elsewhere")).probe()
    assert (nothing.available, nothing.reason) == (False, Reason.NOT_PRESENT)
    assert "sources.cgroup.root must be where they are" in nothing.detail
    (host.proc / "self/mountinfo").unlink()
    source = CgroupSource(Inventory(str(host.state), str(host.proc)))
    assert source.probe().reason is Reason.SOURCE_FAILED
    with pytest.raises(SourceError, match="mountinfo: No such file"):
        source.open()


def test_v1_alone_has_no_pressures(host, make):
    tree = Groups(host, hybrid=True)
    mountinfo = host.proc / "self/mountinfo"
    mountinfo.write_text("".join(line for line in mountinfo.read_text().splitlines(True) if "cgroup2" not in line))
    host.vm("a", 10, [11])
    tree.add(10, SCOPE)
    tree.quota(SCOPE, 50_000)
    source = make()
    assert vm_of(source, host).cgroup == CgroupCounters(1, throttled_ns=44_000, quota_cores=0.5, memory_bytes=1000)
    assert source.probe().detail.endswith("; no pressures: they are in v2 only, which is not mounted")


def test_mounts_and_memberships():
    text = (
        b"22 1 0:20 / /proc rw - proc proc rw\n"
        b"31 23 0:28 / /sys/fs/cgroup\\040x rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
        b"32 31 0:29 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\nnonsense\n"
    )
    v2, v1 = parse_mounts(text)
    assert (v2.point, v2.base, v2.controllers) == ("/sys/fs/cgroup x", "/", frozenset())
    assert (v1.base, v1.controllers) == ("/docker/abc", {"cpu", "cpuacct"})
    assert parse_cgroups(b"3:cpu,cpuacct:/a:b\n0::/c\n") == {"cpu": "/a:b", "cpuacct": "/a:b", "": "/c"}
    with pytest.raises(ValueError):  # noqa: PT011 - the unpacking's own message
        parse_cgroups(b"nonsense\n")


def test_groups_outside_what_is_mounted_are_not_found(tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "5").mkdir()
    (tmp_path / "g/inner").mkdir(parents=True)
    (tmp_path / "g/inner/cgroup.procs").write_text("5\n")
    (tmp_path / "self/mountinfo").write_text(f"1 1 0:1 /base {tmp_path}/g rw - cgroup2 cgroup2 rw\n")
    tree = CgroupTree(str(tmp_path), "/")
    for path, found in (
        ("/base/inner", f"{tmp_path}/g/inner"),
        ("/other", None),
        ("/base2/inner", None),
        ("/../x", None),
    ):
        (tmp_path / "5/cgroup").write_text(f"0::{path}\n")
        assert tree.find(5).v2 == found
    assert tree.find(5) == VmGroups(reason=Reason.NOT_PRESENT)


def real_mounts():
    with contextlib.suppress(OSError):
        return parse_mounts(Path("/proc/self/mountinfo").read_bytes())
    return []


@pytest.fixture
def real_group():
    """A control group of this very kernel in every hierarchy that counts, with a busy process in it."""
    if os.geteuid() != 0:
        pytest.skip("needs root: makes control groups")
    # It waits until it is in its groups: what it had before is charged to others for ever.
    script = "input()\nx = bytearray(b'x' * (1 << 22))\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-S", "-c", script], stdin=subprocess.PIPE)
    folders = []
    try:
        for mount in real_mounts():
            if not mount.controllers or mount.controllers & {"cpu", "memory"}:
                folder = Path(mount.point) / f"whitepanda-test-{os.getpid()}"
                try:
                    folder.mkdir()
                    folders.append(folder)
                    (folder / "cgroup.procs").write_text(str(busy.pid))
                except OSError as error:
                    pytest.skip(f"needs control groups that can be made: {folder}: {error.strerror}")
        if not folders:
            pytest.skip("needs control groups: none are mounted")
        busy.stdin.write(b"\n")
        busy.stdin.flush()
        yield busy.pid, folders
    finally:
        busy.kill()
        busy.communicate()
        for folder in folders:
            deadline = time.monotonic() + 5
            while folder.exists() and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    folder.rmdir()


def test_a_real_group_of_this_kernel(real_group):
    """Values of real files: a quota throttles (also on a busy machine), memory is charged, pressures are there."""
    pid, folders = real_group
    groups = CgroupTree("/proc", "/").find(pid)
    assert groups.any
    assert {groups.v2, groups.cpu_v1, groups.memory_v1} - {None} == {str(folder) for folder in folders}
    cpu = Path(groups.cpu_v1 or groups.v2)
    if (cpu / "cpu.cfs_quota_us").exists():
        (cpu / "cpu.cfs_quota_us").write_text("2000")
    elif (cpu / "cpu.max").exists():
        (cpu / "cpu.max").write_text("2000 100000")
    else:
        pytest.skip("needs the cpu controller: it is not delegated to new groups here")
    quota = quota_of(str(cpu), (), is_v1=groups.cpu_v1 is not None)
    assert quota.cores == pytest.approx(0.02)
    source = CgroupSource(Inventory("/nonexistent"), root="/")
    group = source._open_group(groups, Quota(0.02, (str(cpu),)), str(cpu))
    vm = cgroups._Vm("e", group)
    before = source._counters_or_reason(vm)
    deadline = time.monotonic() + 60

    def moved(counters):
        charged = group.charged is None or counters.memory_bytes > 1 << 20
        return charged and counters.throttled_ns > before.throttled_ns + 100_000_000

    while not moved(after := source._counters_or_reason(vm)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert after.quota_cores == 0.02
    if Path("/proc/pressure/cpu").exists() and group.cpu is not None:
        assert after.cpu_some_ns >= before.cpu_some_ns
        assert None not in (after.memory_some_ns, after.io_full_ns)
    source._files.close(*group.files())
