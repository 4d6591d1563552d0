import dataclasses
import errno
import fcntl
import itertools
import os
import time
from pathlib import Path

import pytest

import collector.resctrl.tree
from collector.base import RdtDomain, Reason, Source, SourceError
from collector.files import KeptFile
from collector.resctrl.source import ResctrlSource
from collector.resctrl.tree import PREFIX, Place
from tests.support.reading_times import ReadingTimes
from tests.support.waiting import wait_until

ROOT = Place("")


def own(uuid, ctrl=""):
    return Place(ctrl, PREFIX + uuid)


@pytest.fixture(params=[True, False], ids=["kernel-tells", "by-tasks-files"])
def tells(request):
    return request.param


def test_a_vm_gets_a_group_with_all_its_threads(machine, tells):
    m = machine()
    uuid = m.vm("a", 10, [11, 12], [13])
    source = m.source(machine_tells=tells)
    assert isinstance(source, Source)
    first = m.tick(source)[uuid].rdt
    assert m.own_groups() == [own(uuid).name]
    assert {m.kernel.threads[tid] for tid in (10, 11, 12, 13)} == {own(uuid)}
    assert (first.owner, list(first.domains)) == ("whitepanda", ["00", "01"])
    # Just moved: what the threads have in the cache is charged elsewhere, what the id's last user had, here.
    assert first.domains["00"] == RdtDomain(None, 0, 0, Reason.VM_STARTING)
    m.kernel.everywhere(own(uuid), 65536, 2000, 1500)
    assert m.tick(source, 4)[uuid].rdt.domains["00"] == RdtDomain(None, 2000, 1500, Reason.VM_STARTING)
    second = m.tick(source)[uuid].rdt  # 5 s after the move
    assert dict(second.domains) == {"00": RdtDomain(65536, 2000, 1500), "01": RdtDomain(65536, 2000, 1500)}
    assert second.opened == first.opened
    assert m.kernel.log.count("task 11 " + own(uuid).name) == 1  # nothing is written twice


def test_counters_have_the_moment_at_which_they_were_read(machine, monkeypatch):
    """Listing the VMs, waiting for the tree's lock and moving threads take their time."""
    m = machine()
    a, b = m.vm("a", 10, [11]), m.vm("b", 20, [21])
    source = m.source()
    monkeypatch.setattr(source, "_clock", time.monotonic_ns)
    wait_until(lambda: len(source.sample().vms) == 2)  # of a busy machine the list may lack a new VM at first
    times = ReadingTimes(a)
    monkeypatch.setattr(source._inventory, "vms", times.before(source._inventory.vms))
    monkeypatch.setattr(source, "_change", times.before(source._change))
    plain = KeptFile.read

    def noted(self, *arguments):
        if self.path.endswith("00/mbm_total_bytes"):
            times.note(a if own(a).name in self.path else b)
        return plain(self, *arguments)

    monkeypatch.setattr(KeptFile, "read", noted)
    times.check(source.sample(), b, "rdt")


def test_new_threads_are_added_and_ended_ones_are_no_harm(machine, tells):
    m = machine()
    uuid = m.vm("a", 10, [11])
    source = m.source(machine_tells=tells)
    m.tick(source)
    m.vm("a", 10, [11], [14, 15])
    m.kernel.threads[11] = own(uuid)
    m.kernel.threads[10] = own(uuid)
    del m.kernel.threads[15]  # it ended between the listing and the writing
    m.kernel.publish()
    sample = m.tick(source)[uuid]
    assert sample.rdt is not None
    assert m.kernel.threads[14] == own(uuid)
    assert 15 not in m.kernel.threads


def test_a_vm_is_followed_to_another_control_group(machine, tells):
    m = machine()
    uuid = m.vm("a", 10, [11, 12])
    source = m.source(machine_tells=tells)
    before = m.tick(source)[uuid].rdt
    m.kernel.group(Place("gold"))
    for tid in (11, 12):
        m.kernel.put_task(Place("gold"), tid)
    after = m.tick(source, 1 if tells else 6)[uuid].rdt
    assert m.own_groups() == [own(uuid, "gold").name]
    assert m.kernel.threads[11] == own(uuid, "gold")
    assert m.kernel.threads[10] == ROOT  # the emulator's thread stayed with its operator's choice
    assert after.opened != before.opened
    assert after.domains["00"].reason is Reason.VM_STARTING


def test_a_vm_that_is_moved_while_its_group_is_made(machine):
    m = machine()
    uuid = m.vm("a", 10, [11])
    m.kernel.group(Place("gold"))
    source = m.source()
    real = m.kernel.make

    def make(place):
        real(place)
        for tid in (10, 11):
            m.kernel.put_task(Place("gold"), tid)

    m.kernel.make = make
    # The kernel refuses the threads (EINVAL): what the empty group counts is nobody's.
    assert dict(m.tick(source)[uuid].absent) == {"rdt": Reason.VM_STARTING}
    m.kernel.make = real
    assert m.tick(source)[uuid].rdt is not None
    assert m.kernel.threads[11] == own(uuid, "gold")


def test_vcpus_in_several_control_groups_are_added_up(machine):
    m = machine()
    uuid = m.vm("a", 10, [11, 12])
    m.kernel.group(Place("gold"))
    m.kernel.put_task(Place("gold"), 12)
    source = m.source()
    m.tick(source)
    assert m.own_groups() == [own(uuid, "gold").name, own(uuid).name]
    m.kernel.everywhere(own(uuid), 100, 10, 1)
    m.kernel.everywhere(own(uuid, "gold"), 200, 20, 2)
    assert m.tick(source, 5)[uuid].rdt.domains["01"] == RdtDomain(300, 30, 3)


@pytest.mark.parametrize("name", ["vm-1-vcpus_0-1", "7-pqos"])
def test_anothers_group_is_read_and_not_robbed(machine, tells, name):
    m = machine()
    uuid = m.vm("a", 10, [11, 12])
    theirs = m.kernel.group(Place("", name))
    for tid in (10, 11, 12):
        m.kernel.put_task(theirs, tid)
    m.kernel.everywhere(theirs, 4096, 500, 400)
    source = m.source(machine_tells=tells)
    rdt = m.tick(source)[uuid].rdt
    assert (rdt.owner, rdt.domains["00"]) == (name, RdtDomain(4096, 500, 400))  # nothing moved: good at once
    assert (m.own_groups(), m.kernel.log) == ([], [])
    # Its owner lets go: from then on the VM has a group of ours.
    for tid in (10, 11, 12):
        m.kernel.put_task(ROOT, tid)
    changed = m.tick(source, 1 if tells else 6)[uuid].rdt
    assert (changed.owner, m.own_groups()) == ("whitepanda", [own(uuid).name])
    assert changed.opened != rdt.opened


def test_threads_in_anothers_group_stay_there(machine):
    m = machine()
    uuid = m.vm("a", 10, [11], [13])
    theirs = m.kernel.group(Place("", "emulator"))
    m.kernel.put_task(theirs, 13)
    source = m.source()
    assert m.tick(source)[uuid].rdt.owner == "whitepanda"
    assert (m.kernel.threads[13], m.kernel.threads[11]) == (theirs, own(uuid))


def test_a_vm_taken_over_by_another_owner_is_let_go(machine, tells):
    m = machine()
    uuid = m.vm("a", 10, [11])
    source = m.source(machine_tells=tells)
    m.tick(source)
    theirs = m.kernel.group(Place("", "libvirt"))
    for tid in (10, 11):
        m.kernel.put_task(theirs, tid)
    rdt = m.tick(source, 1 if tells else 6)[uuid].rdt
    assert (rdt.owner, m.own_groups()) == ("libvirt", [])
    m.tick(source, 30)
    assert m.kernel.threads[11] == theirs


def test_vcpus_in_several_groups_of_others(machine):
    m = machine()
    uuid = m.vm("a", 10, [11, 12])
    for tid, name in ((11, "vcpus_0"), (12, "vcpus_1")):
        m.kernel.put_task(m.kernel.group(Place("", name)), tid)
        m.kernel.everywhere(Place("", name), 10, 20, 5)
    rdt = m.tick(m.source())[uuid].rdt
    assert (rdt.owner, rdt.domains["00"]) == ("vcpus_0, vcpus_1", RdtDomain(20, 40, 10))


def test_a_group_of_several_processes_is_no_vms(machine, tells):
    m = machine()
    a, b = m.vm("a", 10, [11]), m.vm("b", 20, [21])
    theirs = m.kernel.group(Place("", "all"))
    for tid in (11, 21):
        m.kernel.put_task(theirs, tid)
    source = m.source(machine_tells=tells)
    vms = m.tick(source)
    assert dict(vms[a].absent) == dict(vms[b].absent) == {"rdt": Reason.SHARED}
    assert vms[a].rdt is None
    m.kernel.put_task(ROOT, 21)
    assert m.tick(source, 11)[a].rdt.owner == "all"


# --- monitoring ids ---


def count(vms):
    return sum(sample.rdt is not None for sample in vms.values())


def test_more_vms_than_ids_take_turns(machine):
    m = machine()
    (m.kernel.root / "info/L3_MON/num_rmids").write_text("8\n")
    uuids = [m.vm(f"v{n}", 10 * n, [10 * n + 1]) for n in range(1, 11)]
    source = m.source(hold_s=10, reserve_rmids=3)  # 8 ids: the root's, 3 reserved, 4 for us
    reported = dict.fromkeys(uuids, 0)
    for _ in range(60):
        vms = m.tick(source)
        assert count(vms) == len(m.own_groups()) == 4
        for uuid, sample in vms.items():
            if sample.rdt is None:
                assert dict(sample.absent) == {"rdt": Reason.NO_RMID}
            else:
                reported[uuid] += 1
    # Each holds for 10 s, waits for the others and comes again.
    assert set(reported.values()) == {20, 30}
    assert sum(reported.values()) == 240


@pytest.mark.long
@pytest.mark.parametrize("max_groups", [0, 100, 7, 3])
def test_max_groups_is_a_bound_and_not_a_number_of_ids(machine, max_groups):
    m = machine()
    (m.kernel.root / "info/L3_MON/num_rmids").write_text("8\n")
    uuids = [m.vm(f"v{n}", 10 * n, [10 * n + 1]) for n in range(1, 21)]
    source = m.source(hold_s=5, reserve_rmids=4, max_groups=max_groups)
    reported = dict.fromkeys(uuids, 0)
    for _ in range(200):
        vms = m.tick(source)
        assert count(vms) == len(m.own_groups()) == 3
        for uuid, sample in vms.items():
            reported[uuid] += sample.rdt is not None
    assert {reported[uuid] for uuid in uuids} == {30}


@pytest.mark.long
def test_fewer_ids_than_the_kernel_says_and_the_turns_go_on(machine):
    m = machine()
    (m.kernel.root / "info/L3_MON/num_rmids").write_text("8\n")
    uuids = [m.vm(f"v{n}", 10 * n, [10 * n + 1]) for n in range(1, 21)]
    source = m.source(hold_s=5, reserve_rmids=4)
    (m.kernel.root / "info/L3_MON/num_rmids").write_text("4\n")  # what mkdir goes by
    source._monitoring = source._monitoring._replace(num_rmids=100)
    tried = []
    real_make = m.kernel.make
    m.kernel.make = lambda place: tried.append(place) or real_make(place)
    reported = dict.fromkeys(uuids, 0)
    for _ in range(200):
        vms = m.tick(source)
        assert count(vms) == 3
        for uuid, sample in vms.items():
            reported[uuid] += sample.rdt is not None
    assert {reported[uuid] for uuid in uuids} == {30}
    # A group per turn, one refusal per turn (the new group first) and per look for more.
    assert len(tried) <= 3 + 2 * 3 * 200 / 5 + 200 / 60 + 1
    (m.kernel.root / "info/L3_MON/num_rmids").write_text("100\n")
    m.tick(source, 61)
    assert count(m.tick(source)) == 20  # more are to be had: found out by itself


def test_a_change_of_turns_is_another_epoch(machine):
    m = machine()
    a, b = m.vm("a", 10, [11]), m.vm("b", 20, [21])
    source = m.source(max_groups=1, hold_s=2)
    opened = {}
    for _ in range(8):
        for uuid, sample in m.tick(source).items():
            if sample.rdt:
                opened.setdefault(uuid, []).append(sample.rdt.opened)
    assert opened == {a: [1, 1, 3, 3], b: [2, 2, 4, 4]}


def test_occupancy_is_of_the_later_part_of_a_turn(machine):
    m = machine()
    a, b = m.vm("a", 10, [11]), m.vm("b", 20, [21])
    source = m.source(max_groups=1, hold_s=8)
    reported = {a: [], b: []}
    for _ in range(32):
        for uuid, sample in m.tick(source).items():
            if sample.rdt:
                domain = sample.rdt.domains["00"]
                assert (domain.llc_occupancy_bytes is None) == (domain.reason is Reason.VM_STARTING)
                assert domain.mbm_total_bytes == 0  # bandwidth is reported at once
                reported[uuid].append(domain.llc_occupancy_bytes)
    assert reported == {a: ([None] * 5 + [0] * 3) * 2, b: ([None] * 5 + [0] * 3) * 2}


@pytest.mark.parametrize(("reserve", "least"), [(1, 3), (0, 2)])
def test_freed_ids_in_limbo_stop_the_turns_and_cost_one_group_at_most(machine, reserve, least):
    m = machine()
    (m.kernel.root / "info/L3_MON/num_rmids").write_text(f"{4 + reserve}\n")
    for n in range(1, 7):
        m.vm(f"v{n}", 10 * n, [10 * n + 1])
    source = m.source(hold_s=5, reserve_rmids=reserve)
    assert count(m.tick(source)) == 3
    m.kernel.limbo = reserve  # a spare id, if there is one, is not free yet: EBUSY
    removed = []
    real_remove, real_make = m.kernel.remove, m.kernel.make

    def remove(place):
        real_remove(place)
        m.kernel.limbo = 1
        removed.append(place)

    tried = []

    def make(place):
        tried.append(m.now_ns)
        real_make(place)

    m.kernel.remove, m.kernel.make = remove, make
    m.tick(source, 6)
    for _ in range(30):
        vms = m.tick(source)
        assert count(vms) == least
        assert sum(sample.absent.get("rdt") is Reason.NO_RMID for sample in vms.values()) == 6 - least
    assert 1 <= len(tried) <= 7  # backs off: 1, 2, 4, 8, 16 s
    m.kernel.limbo, m.kernel.remove = 0, real_remove
    m.tick(source, 40)
    assert count(m.tick(source)) == 3


def test_ids_used_by_others_are_left_to_them(machine):
    m = machine()
    (m.kernel.root / "info/L3_MON/num_rmids").write_text("6\n")
    for n in range(1, 5):
        m.vm(f"v{n}", 10 * n, [10 * n + 1])
    source = m.source(reserve_rmids=1)
    assert count(m.tick(source)) == 4
    # An operator makes two more groups than there were: our oldest give way at the next look.
    m.kernel.remove(own(m.host.uuid_of("v4")))
    m.kernel.group(Place("x"))
    m.kernel.group(Place("y"))
    m.tick(source, 6)
    m.tick(source)
    assert len(m.own_groups()) == 2
    assert {place.ctrl for place in m.kernel.places()} >= {"x", "y"}


def test_no_id_at_all(machine):
    m = machine()
    uuid = m.vm("a", 10, [11])
    m.kernel.fail["mkdir"] = errno.ENOSPC
    source = m.source()
    for _ in range(3):
        assert dict(m.tick(source)[uuid].absent) == {"rdt": Reason.NO_RMID}
    m.kernel.fail.clear()
    assert m.tick(source, 8)[uuid].rdt is not None


# --- ownership, clean-up ---


def test_stale_groups_go_at_the_start_and_others_stay(machine):
    m = machine()
    a = m.vm("a", 10, [11])
    m.kernel.group(Place("gold"))
    dead = "00000000-dead-4000-8000-000000000000"
    for place in (own(dead), own(dead, "gold"), own(a, "gold"), Place("", "theirs"), Place("gold", "whitepandas")):
        m.kernel.group(place)
    source = m.source()
    m.tick(source)
    m.tick(source, 6)
    assert m.own_groups() == [own(a).name]
    assert {place.name for place in m.kernel.places()} >= {"theirs", "gold", "gold/whitepandas"}
    source.close()
    assert m.own_groups() == []
    assert {place.name for place in m.kernel.places()} == {"/", "gold", "theirs", "gold/whitepandas"}


def test_the_group_that_a_killed_agent_left_to_a_living_vm_is_taken_over(machine, tells):
    m = machine()
    uuid = m.vm("a", 10, [11])
    m.kernel.group(own(uuid))
    for tid in (10, 11):
        m.kernel.put_task(own(uuid), tid)
    m.kernel.everywhere(own(uuid), 8192, 777, 7)
    source = m.source(machine_tells=tells)
    rdt = m.tick(source)[uuid].rdt
    assert rdt.domains["00"] == RdtDomain(8192, 777, 7)  # nothing was moved
    assert m.kernel.log == []


def test_groups_go_with_their_vms_and_files_are_closed(machine):
    m = machine()
    m.vm("a", 10, [11])
    m.vm("b", 20, [21])
    source = m.source()
    m.tick(source)
    both = m.open_files()
    m.stop("b", 20)
    m.tick(source)
    assert m.own_groups() == [own(m.host.uuid_of("a")).name]
    # The root and its L3_MON, and per VM: 6 value files, the task folder, the watched thread.
    assert (both, m.open_files()) == (2 + 2 * 8, 2 + 8)
    m.stop("a", 10)
    assert m.tick(source) == {}
    assert (m.own_groups(), m.open_files()) == ([], 2)
    source.close()
    source.close()
    assert m.open_files() == 0


def test_many_starts_leak_nothing(machine):
    m = machine()
    source = m.source()
    m.tick(source)
    for start in range(40):
        m.vm("a", 10, [11], start=1000 + start)
        assert m.tick(source)[m.host.uuid_of("a")].rdt is not None
        m.stop("a", 10)
    m.tick(source)
    assert (m.own_groups(), m.open_files()) == ([], 2)


def test_a_restarted_vm_has_a_new_group(machine):
    m = machine()
    uuid = m.vm("a", 10, [11])
    source = m.source()
    first = m.tick(source)[uuid]
    m.stop("a", 10)
    m.vm("a", 30, [31], start=5000)
    second = m.tick(source)[uuid]
    assert second.epoch != first.epoch
    assert second.rdt.opened != first.rdt.opened
    assert m.kernel.log[-4:-2] == [f"rmdir {own(uuid).name}", f"mkdir {own(uuid).name}"]


def test_a_group_that_someone_removed_is_made_again(machine):
    m = machine()
    uuid = m.vm("a", 10, [11])
    source = m.source()
    before = m.tick(source)[uuid].rdt.opened
    m.kernel.remove(own(uuid))
    m.tick(source)
    assert m.tick(source)[uuid].rdt.opened > before
    assert m.kernel.threads[11] == own(uuid)


def test_a_control_group_that_vanishes_under_the_vm(machine):
    m = machine()
    uuid = m.vm("a", 10, [11])
    m.kernel.group(Place("gold"))
    m.kernel.put_task(Place("gold"), 11)
    source = m.source()
    m.kernel.fail["mkdir"] = errno.ENOENT
    assert dict(m.tick(source)[uuid].absent) == {"rdt": Reason.NOT_PRESENT}
    m.kernel.fail.clear()
    assert m.tick(source)[uuid].rdt is not None


def test_a_locked_tree_is_neither_waited_for_nor_changed(machine):
    m = machine()
    uuid = m.vm("a", 10, [11])
    source = m.source()
    fd = os.open(m.kernel.root, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert dict(m.tick(source)[uuid].absent) == {"rdt": Reason.VM_STARTING}
        fcntl.flock(fd, fcntl.LOCK_SH)  # another reader: may be read beside, not changed
        assert dict(m.tick(source)[uuid].absent) == {"rdt": Reason.VM_STARTING}
        assert m.own_groups() == []
        fcntl.flock(fd, fcntl.LOCK_UN)
        first = m.tick(source)[uuid].rdt
        fcntl.flock(fd, fcntl.LOCK_EX)
        m.kernel.everywhere(own(uuid), 1, 2, 1)
        assert m.tick(source)[uuid].rdt.domains["00"].mbm_total_bytes == 2  # values are read all the same
        m.vm("b", 20, [21])
        assert m.tick(source)[m.host.uuid_of("b")].rdt is None
        source.close()  # gives up after a second; the next start removes what is left
        assert m.own_groups() == [own(uuid).name]
    finally:
        os.close(fd)
    assert first.owner == "whitepanda"


# --- values ---


def test_what_the_kernel_has_no_value_for(machine):
    m = machine("zen5-abmc")
    uuid = m.vm("a", 10, [11])
    source = m.source()
    m.tick(source)
    m.kernel.everywhere(own(uuid), 1000, 100, 50)
    m.kernel.value(own(uuid), "01", "mbm_total_bytes", "Unassigned")
    m.kernel.value(own(uuid), "01", "mbm_local_bytes", "Unassigned")
    domains = m.tick(source, 5)[uuid].rdt.domains
    assert domains["00"] == RdtDomain(1000, 100, 50)
    assert domains["01"] == RdtDomain(1000, None, None, Reason.RDT_UNASSIGNED)
    m.kernel.value(own(uuid), "00", "mbm_total_bytes", "Unavailable")
    m.kernel.value(own(uuid), "01", "mbm_total_bytes", "Error")
    domains = m.tick(source)[uuid].rdt.domains
    assert domains["00"] == RdtDomain(1000, None, 50, Reason.RDT_UNAVAILABLE)
    assert domains["01"] == RdtDomain(1000, None, None, Reason.RDT_UNAVAILABLE)


def test_a_cpu_without_local_bandwidth(machine):
    m = machine("mpam-total-only")
    uuid = m.vm("a", 10, [11])
    source = m.source()
    m.tick(source)
    for domain in ("01", "05"):
        m.kernel.value(own(uuid), domain, "mbm_total_bytes", 9)
    assert dict(m.tick(source, 5)[uuid].rdt.domains) == {
        name: RdtDomain(0, 9, None, Reason.NO_EVENT) for name in ("01", "05")
    }


def test_sub_numa_nodes_are_not_counted_twice(machine):
    m = machine("ice-lake-sp-snc2")
    uuid = m.vm("a", 10, [11])
    theirs = m.kernel.group(Place("", "theirs"))
    m.kernel.put_task(theirs, 11)
    m.kernel.everywhere(theirs, 30, 20, 10)
    for node in ("00", "01"):
        m.kernel.value(theirs, f"00/mon_sub_L3_{node}", "llc_occupancy", 15)
    assert dict(m.tick(m.source())[uuid].rdt.domains) == {"00": RdtDomain(30, 20, 10), "01": RdtDomain(30, 20, 10)}


def test_domains_come_and_go_with_their_cpus(machine):
    m = machine("zen3-8-domains")
    uuid = m.vm("a", 10, [11])
    source = m.source()
    assert list(m.tick(source)[uuid].rdt.domains) == ["00", "01", "02", "03", "08", "09", "10", "11"]
    files = m.open_files()
    gone = [Path(m.kernel.path(place)) / "mon_data/mon_L3_08" for place in (ROOT, own(uuid))]
    for folder in gone:
        folder.rename(folder.parent.parent / "offline")
    rdt = m.tick(source)[uuid].rdt
    assert list(rdt.domains) == ["00", "01", "02", "03", "09", "10", "11"]
    assert m.open_files() == files - 3
    for folder in gone:
        (folder.parent.parent / "offline").rename(folder)
    assert "08" in m.tick(source)[uuid].rdt.domains
    assert m.open_files() == files


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1 << 40, 5),  # it began again, or wrapped
        (1000, 18446744073708863487),  # a negative number, as an unsigned one
        (1000, 1 << 62),  # no memory is that fast
    ],
)
def test_no_absurd_value_becomes_a_rate(machine, before, after):
    m = machine()
    uuid = m.vm("a", 10, [11])
    source = m.source()
    m.tick(source)
    reported = []
    for value in (before, before + 10, after, before + 20, before + 30):
        m.kernel.everywhere(own(uuid), 0, value, 0)
        reported.append(m.tick(source)[uuid].rdt)
    pairs = [
        (one.domains["00"].mbm_total_bytes, other.domains["00"].mbm_total_bytes)
        for one, other in itertools.pairwise(reported)
        if one.opened == other.opened
    ]
    differences = {b - a for a, b in pairs if a is not None and b is not None}
    assert differences == {10}


# --- hosts where it does not work, or not fully ---


def test_probe(machine, monkeypatch, tmp_path):
    m = machine()
    source = m.source()
    probe = source.probe()
    assert probe.available
    assert "208 monitoring ids" in probe.detail
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    probe = source.probe()
    assert (probe.available, probe.reason) == (False, Reason.NO_PERMISSION)
    assert "by its unit" in probe.detail

    def elsewhere(root):
        return ResctrlSource(None, root=str(root), proc_root=str(m.host.proc)).probe()

    bare = tmp_path / "bare"
    bare.mkdir()
    assert elsewhere(bare).reason is Reason.NO_RDT
    assert f"mount -t resctrl resctrl {bare}" in elsewhere(bare).detail
    (m.host.proc / "filesystems").write_text("nodev\tsysfs\n")
    assert "this kernel has no resctrl" in elsewhere(bare).detail
    (bare / "info/L3").mkdir(parents=True)
    assert "cannot monitor" in elsewhere(bare).detail
    (bare / "info/L3_MON").mkdir()
    (bare / "info/L3_MON/mon_features").write_text("llc_occupancy\n")
    (bare / "info/L3_MON/num_rmids").write_text("many\n")
    assert (elsewhere(bare).available, elsewhere(bare).reason) == (False, Reason.NO_RDT)


def test_a_read_only_mount_still_shows_what_others_monitor(machine, monkeypatch):
    m = machine()
    a, b = m.vm("a", 10, [11]), m.vm("b", 20, [21])
    theirs = m.kernel.group(Place("", "theirs"))
    m.kernel.put_task(theirs, 11)
    m.kernel.fail["mkdir"] = errno.EROFS
    real = os.statvfs
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((*tuple(real(path))[:8], os.ST_RDONLY, 255)))
    source = m.source()
    assert "read-only here" in source.probe().detail
    for _ in range(2):
        vms = m.tick(source)
        assert vms[a].rdt.owner == "theirs"
        assert dict(vms[b].absent) == {"rdt": Reason.NO_PERMISSION}


def test_the_kernel_refuses_to_move_tasks(machine):
    m = machine()
    uuid = m.vm("a", 10, [11])
    m.kernel.fail["write"] = errno.EPERM
    source = m.source()
    for _ in range(3):
        assert dict(m.tick(source)[uuid].absent) == {"rdt": Reason.NO_PERMISSION}
        assert m.own_groups() == []  # an id is not held for nothing
    assert len(m.kernel.log) == 2  # made once, removed, not tried each second


def test_one_vms_trouble_is_not_anothers(machine):
    m = machine()
    a, b = m.vm("a", 10, [11]), m.vm("b", 20, [21])
    (m.host.proc / "20/task").rename(m.host.proc / "20/gone")
    source = m.source()
    vms = m.tick(source)
    assert vms[a].rdt is not None
    assert dict(vms[b].absent) == {"rdt": Reason.NOT_PRESENT}
    (m.host.proc / "20/gone").rename(m.host.proc / "20/task")
    assert m.tick(source)[b].rdt is not None


def test_a_uuid_that_would_leave_its_folder_is_not_used(machine, monkeypatch):
    m = machine()
    m.vm("a", 10, [11])
    source = m.source()

    vms = tuple(dataclasses.replace(vm, uuid="../../x") for vm in source._inventory.vms())
    monkeypatch.setattr(source._inventory, "vms", lambda: vms)
    assert dict(m.tick(source)["../../x"].absent) == {"rdt": Reason.INVALID_VALUE}
    assert m.kernel.log == []


def test_only_one_has_groups(machine):
    m = machine()
    uuid = m.vm("a", 10, [11])
    source = m.source()
    m.tick(source)
    other = ResctrlSource(source._inventory, root=str(m.kernel.root), proc_root=str(m.host.proc))
    probe = other.probe()
    assert (probe.available, probe.reason) == (False, Reason.SOURCE_FAILED)
    assert "another whitepanda has its monitoring groups here" in probe.detail
    for attempt in (other.open, other.sample):
        with pytest.raises(SourceError, match="another whitepanda"):
            attempt()
    other.close()
    assert m.own_groups() == [own(uuid).name]
    assert m.kernel.threads[11] == own(uuid)
    assert source.probe().available  # its own lock is not in its way
    assert m.tick(source)[uuid].rdt is not None
    files = m.open_files()
    assert not other.probe().available
    assert m.open_files() == files
    source.close()
    assert other.probe().available
    source.open()  # a look holds nothing
    source.close()
    other.open()
    with pytest.raises(SourceError, match="another whitepanda"):
        source.open()
    other.close()
    assert m.open_files() == 0


def test_a_look_of_anothers_doctor_is_waited_out(machine, monkeypatch):
    m = machine()
    source = m.source()
    source.close()
    fd = os.open(m.kernel.root / "info/L3_MON", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    monkeypatch.setattr(collector.resctrl.tree.time, "sleep", lambda seconds: fcntl.flock(fd, fcntl.LOCK_UN))
    try:
        source.open()
    finally:
        os.close(fd)
    assert m.kernel.is_current()


def test_unmounted_and_mounted_again(machine):
    m = machine()
    uuid = m.vm("a", 10, [11])
    source = m.source()
    m.tick(source)
    m.kernel.root.rename(m.kernel.root.parent / "away")
    m.kernel.root.mkdir()
    with pytest.raises(SourceError, match="not mounted") as failure:
        m.tick(source)
    assert failure.value.reason is Reason.NO_RDT
    m.kernel.root.rmdir()
    (m.kernel.root.parent / "away").rename(m.kernel.root)
    assert m.tick(source)[uuid].rdt is not None


def test_no_file_descriptor_left(machine, monkeypatch):
    m = machine()
    a, b = m.vm("a", 10, [11]), m.vm("b", 20, [21])
    source = m.source()
    m.tick(source)
    m.kernel.remove(own(b))
    real = os.open

    def full(path, *arguments, **more):
        if "mon_data" in str(path) and arguments[0] & os.O_CLOEXEC and not arguments[0] & os.O_DIRECTORY:
            raise OSError(errno.EMFILE, "Too many open files", path)
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, "open", full)
    m.tick(source)
    vms = m.tick(source)
    assert vms[a].rdt is not None
    assert dict(vms[b].absent) == {"rdt": Reason.FD_LIMIT}
    assert m.own_groups() == [own(a).name]
    monkeypatch.setattr(os, "open", real)
    assert m.tick(source)[b].rdt is not None


@pytest.mark.parametrize("max_fds", [0, 1, 9, 100])
def test_beyond_its_share_files_are_opened_for_each_reading(machine, tells, max_fds):
    m = machine()
    uuids = [m.vm(name, pid, [pid + 1]) for name, pid in (("a", 10), ("b", 20), ("c", 30))]
    source = m.source(machine_tells=tells, max_fds=max_fds)
    m.tick(source)
    assert m.open_files() <= 2 + max_fds  # the root's two are no kept files
    for value in (1000, 2000):
        for uuid in uuids:
            m.kernel.everywhere(own(uuid), 7, value, 5)
        vms = m.tick(source)
        assert [vms[uuid].rdt.domains["00"].mbm_total_bytes for uuid in uuids] == [value] * 3
    m.kernel.remove(own(uuids[2]))
    assert m.tick(source)[uuids[2]].rdt is None
    m.tick(source)
    assert m.tick(source)[uuids[2]].rdt is not None
    m.stop("b", 20)
    m.vm("c", 30, [31], [32])
    m.tick(source, 6)
    assert sorted(m.tick(source)) == sorted([uuids[0], uuids[2]])
    assert m.kernel.threads[32] == own(uuids[2])
    source.close()
    assert m.open_files() == 0


def test_what_was_said_of_a_group_is_forgotten_with_it(machine, caplog):
    m = machine()
    source = m.source()
    real_remove = m.kernel.remove

    def refuse(place):
        raise OSError(errno.EBUSY, "Device or resource busy")

    for start in range(5):
        uuid = m.vm("a", 10, [11], start=1000 + start)
        m.tick(source)
        m.stop("a", 10)
        m.kernel.remove = refuse
        for _ in range(3):
            m.tick(source, 6)
        assert source._stuck == {own(uuid)}
        m.kernel.remove = real_remove
        m.tick(source, 6)
        m.tick(source, 6)
        assert (source._stuck, source._warned, m.own_groups()) == (set(), set(), [])
    assert caplog.text.count("cannot be removed: Device or resource busy") == 5  # once each
