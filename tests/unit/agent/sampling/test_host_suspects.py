"""Control groups beside the VMs as suspects: which, how much they use, and of which job they are."""

import shutil

import pytest

from agent.sampling.host_cgroups import HostSuspects, job_of_group
from agent.sampling.windows import CpiWindow
from collector.base import Reason

S = 10**9
VM = CpiWindow("uuid", "1", "web", "web", True, 100 * S, 10 * S, 1.0, 1.2)


def use(root, path, usage_us):
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.stat").write_text(f"usage_usec {usage_us}\nuser_usec 1\nsystem_usec 1\n")


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("ceph-osd@3.service", "host:ceph-osd.service"),
        ("ceph-osd@12.service", "host:ceph-osd.service"),
        ("system-ceph.slice", "host:system-ceph.slice"),
        ("backup-7.scope", "host:backup.scope"),
        ("run-r0123456789abcdef.scope", "host:run-r0123456789abcdef.scope"),
        ("docker-0123456789abcdef.scope", "host:docker.scope"),
        ("user.slice", "host:user.slice"),
    ],
)
def test_jobs_are_without_instances(name, job):
    assert job_of_group(name) == job


def test_usage_since_the_last_window_most_first(tmp_path):
    for path in ("user.slice", "system.slice/ceph-osd@3.service", "system.slice/idle.service", "machine.slice"):
        use(tmp_path, path, 1_000_000)
    use(tmp_path, "system.slice", 9)
    suspects = HostSuspects(str(tmp_path), 8)
    assert suspects.windows(5 * S, [VM]) == []
    use(tmp_path, "user.slice", 1_000_000 + 5_000_000)
    use(tmp_path, "system.slice/ceph-osd@3.service", 1_000_000 + 20_000_000)
    use(tmp_path, "system.slice", 50_000_000)  # its units count, not their sum
    use(tmp_path, "machine.slice", 90_000_000)
    osd, user = suspects.windows(15 * S, [VM])
    assert (osd.vm, osd.job, osd.cpu_usage_cores) == ("host:ceph-osd@3.service", "host:ceph-osd.service", 2.0)
    assert (user.vm, user.cpu_usage_cores) == ("host:user.slice", 0.5)
    assert (osd.start_unix_ns, osd.duration_ns, osd.latency_sensitive) == (100 * S, 10 * S, False)
    assert (osd.cpi, osd.cpi_reason) == (None, Reason.NOT_VISIBLE)
    assert suspects.jobs == {"host:ceph-osd.service", "host:user.slice"}


def test_groups_with_a_process_of_a_vm_are_left_out(tmp_path):
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    for path in ("user.slice", "system.slice/qemu-7.service", "system.slice/backup.service"):
        use(root, path, 0)
    for pid, group in ((11, "/user.slice/user-0.slice/session-1.scope"), (12, "/system.slice/qemu-7.service")):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "cgroup").write_text(f"0::{group}\n")
    suspects = HostSuspects(str(root), 8, str(proc))
    suspects.windows(5 * S, [VM])
    for path in ("user.slice", "system.slice/qemu-7.service", "system.slice/backup.service"):
        use(root, path, 1_000_000)
    found = suspects.windows(15 * S, [VM], [11, 12, 13])  # 13 has ended
    assert [one.name for one in found] == ["backup.service"]


def test_only_so_many(tmp_path):
    for n in range(5):
        use(tmp_path, f"system.slice/a{n}.service", 0)
    suspects = HostSuspects(str(tmp_path), 2)
    suspects.windows(5 * S, [VM])
    for n in range(5):
        use(tmp_path, f"system.slice/a{n}.service", (n + 1) * 1_000_000)
    assert [one.name for one in suspects.windows(15 * S, [VM])] == ["a4.service", "a3.service"]


def test_a_group_that_began_again_is_no_difference(tmp_path):
    use(tmp_path, "user.slice", 5_000_000)
    suspects = HostSuspects(str(tmp_path), 2)
    suspects.windows(5 * S, [VM])
    use(tmp_path, "user.slice", 1_000_000)  # its time went back
    assert suspects.windows(15 * S, [VM]) == []
    shutil.rmtree(tmp_path / "user.slice")
    assert suspects.windows(25 * S, [VM]) == []


def test_a_host_without_v2_or_without_vms_has_none(tmp_path):
    suspects = HostSuspects(str(tmp_path / "none"), 2)
    assert suspects.windows(5 * S, [VM]) == suspects.windows(15 * S, [VM]) == []
    assert suspects.windows(25 * S, []) == []
