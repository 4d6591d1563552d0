"""The pqos source, on a fake of the package whose classes, calls and error codes are those of pqos 4.5.0."""

import os
import subprocess
import sys
import time
import types

import pytest

from agent.config import load
from collector.base import Reason, SourceError, VmIdentity
from collector.pqos.source import PqosSource
from collector.registry import SOURCES, build_sources
from tests.support.reading_times import ReadingTimes
from whitepanda.common.errors import ConfigError

S = 1_000_000_000
UNREAD = 2**64 - 1


class PqosError(Exception):
    def __init__(self, message, code=1):
        super().__init__(message, code)
        self.code = code


class PqosErrorParam(PqosError): ...  # noqa: N818 - the package's name


class PqosErrorResource(PqosError): ...  # noqa: N818 - the package's name


class PqosErrorBusy(PqosError): ...  # noqa: N818 - the package's name


class FakePqos:
    """The state of the library. `read` is what the next poll finds by group number (None: the reading fails)."""

    def __init__(self):
        self.calls = []
        self.groups = []
        self.rmids = 10
        self.read = {}
        self.events = [1, 2, 4]
        self.init_error = None
        self.on_init = lambda: None
        self.add_error = None
        self.start_error = None

    def install(self, monkeypatch):
        fake = self

        class Pqos:
            def init(self, interface, log_file=None, log_callback=None, log_context=None, verbose="default"):
                fake.calls.append(("init", interface, verbose))
                assert log_file.fileno() >= 0
                fake.on_init()
                if fake.init_error:
                    raise fake.init_error

            def fini(self):
                fake.calls.append(("fini",))

        class PqosCap:
            def get_type(self, name):
                assert name == "mon"
                if not fake.events:
                    raise PqosErrorResource("pqos_cap_get_type returned 3", 3)
                return types.SimpleNamespace(events=[types.SimpleNamespace(type=bit) for bit in fake.events])

        class Group:
            def __init__(self, number, members):
                self.number, self.members, self.stopped = number, set(members), False
                self.values = types.SimpleNamespace(
                    llc=0, mbm_total=0, mbm_local=0, mbm_total_delta=0, mbm_local_delta=0
                )

            def stop(self):
                assert not self.stopped
                self.stopped = True

            def add_pids(self, pids):
                if fake.add_error:
                    raise fake.add_error
                self.members |= set(pids)

            def remove_pids(self, pids):
                self.members -= set(pids)

        class PqosMon:
            def start_pids(self, pids, events, context=None):
                return self._start(pids, events)

            def start(self, cores, events, context=None):
                return self._start(cores, events)

            def _start(self, members, events):
                fake.calls.append(("start", tuple(members), tuple(events)))
                if fake.start_error:
                    raise fake.start_error
                if sum(not group.stopped for group in fake.groups) >= fake.rmids:
                    raise PqosErrorBusy("pqos_mon_start_pids returned 7", 7)
                fake.groups.append(Group(len(fake.groups), members))
                return fake.groups[-1]

            def poll(self, groups):
                for group in groups:
                    assert not group.stopped
                    for name, value in (fake.read.get(group.number, {}) or {}).items():
                        setattr(group.values, name, value)

        package = types.ModuleType("pqos")
        package.Pqos = Pqos
        modules = {
            "pqos": package,
            "pqos.capability": types.SimpleNamespace(PqosCap=PqosCap),
            "pqos.monitoring": types.SimpleNamespace(PqosMon=PqosMon),
            "pqos.error": types.SimpleNamespace(
                PqosError=PqosError, PqosErrorBusy=PqosErrorBusy, PqosErrorParam=PqosErrorParam
            ),
        }
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    @property
    def live(self):
        return [group for group in self.groups if not group.stopped]


class FakeInventory:
    def __init__(self, vms=()):
        self.list = list(vms)

    def vms(self):
        return tuple(self.list)


class Host:
    """A proc and a resctrl tree of files."""

    def __init__(self, folder):
        self.proc, self.root, self.lock = folder / "proc", folder / "resctrl", folder / "lock/libpqos"
        self.lock.parent.mkdir()
        self.msr = folder / "msr"
        info = self.root / "info/L3_MON"
        info.mkdir(parents=True)
        (info / "mon_features").write_text("llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n")
        (info / "num_rmids").write_text("32\n")
        self.group("")

    def group(self, path, tasks="", cpus=""):
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tasks").write_text(tasks)
        (folder / "cpus_list").write_text(cpus + "\n")
        if "mon_groups" not in path:
            (folder / "mon_groups").mkdir(exist_ok=True)

    def process(self, pid, *tids):
        for tid in (pid, *tids):
            (self.proc / str(pid) / "task" / str(tid)).mkdir(parents=True, exist_ok=True)


@pytest.fixture
def fake(monkeypatch):
    library = FakePqos()
    library.install(monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return library


@pytest.fixture
def tree(tmp_path):
    return Host(tmp_path)


@pytest.fixture
def now():
    return [100 * S]


@pytest.fixture
def make(tree, now):
    made = []

    def build(inventory, **settings):
        made.append(
            PqosSource(
                inventory,
                root=str(tree.root), proc_root=str(tree.proc), lock=str(tree.lock), msr=str(tree.msr),
                clock=lambda: now[0], **settings,
            )
        )  # fmt: skip
        return made[-1]

    yield build
    for source in made:
        source.close()


def vm(tree, number, *more):
    pid = 1000 * number
    tree.process(pid, pid + 1, *more)
    return VmIdentity(f"uuid-{number}", f"vm{number}", pid, "e1", (pid + 1,))


def tell(source):
    return {
        uuid: sample.rdt.domains["all"] if sample.rdt else sample.absent["rdt"]
        for uuid, sample in source.sample().vms.items()
    }


def values(llc, total, local):
    return {"llc": llc, "mbm_total": total, "mbm_local": local}


def test_counters_have_the_moment_at_which_they_were_read(fake, tree, make, monkeypatch):
    source = make(FakeInventory([vm(tree, 1), vm(tree, 2)]))
    monkeypatch.setattr(source, "_clock", time.monotonic_ns)
    source.sample()
    times = ReadingTimes("uuid-1")
    monkeypatch.setattr(source._inventory, "vms", times.before(source._inventory.vms))
    monkeypatch.setattr(source, "_follow", times.before(source._follow))
    plain = source._library.monitor.poll

    def noted(groups):
        times.note(f"uuid-{groups[0].number + 1}")
        plain(groups)

    monkeypatch.setattr(source._library.monitor, "poll", noted)
    fake.read = {0: values(7, 300, 200), 1: values(0, 1, 0)}
    times.check(source.sample(), "uuid-2", "rdt")


def test_samples_are_cumulative_and_the_first_occupancy_is_left_out(fake, tree, make, now):
    source = make(FakeInventory([vm(tree, 1), vm(tree, 2)]))
    source.open()
    fake.read = {0: values(5, 100, 80), 1: values(6, 1, 0)}
    first = source.sample().vms["uuid-1"].rdt
    assert (first.domains["all"].llc_occupancy_bytes, first.domains["all"].reason) == (None, Reason.VM_STARTING)
    assert (first.domains["all"].mbm_total_bytes, first.domains["all"].mbm_local_bytes) == (100, 80)
    fake.read = {0: values(7, 300, 200), 1: values(0, 1, 0)}
    now[0] += 4 * S
    assert source.sample().vms["uuid-1"].rdt.domains["all"].llc_occupancy_bytes is None
    now[0] += 1 * S
    second = source.sample().vms
    domain = second["uuid-1"].rdt.domains["all"]
    assert (domain.llc_occupancy_bytes, domain.mbm_total_bytes, domain.mbm_local_bytes) == (7, 300, 200)
    assert domain.reason is Reason.UNSPECIFIED
    assert second["uuid-1"].rdt.opened == first.opened != second["uuid-2"].rdt.opened
    assert second["uuid-2"].rdt.domains["all"].llc_occupancy_bytes == 0
    assert fake.calls[:2] == [("init", "OS", "silent"), ("start", (1000,), ("l3_occup", "lmem_bw", "tmem_bw"))]


def test_threads_are_kept_in_step(fake, tree, make, now):
    source = make(FakeInventory([vm(tree, 1)]))
    source.sample()
    tree.process(1000, 1005, 1006)
    source.sample()
    assert fake.groups[0].members == {1000, 1005, 1006}  # the library finds 1001 by 1000
    (tree.proc / "1000/task/1006").rmdir()
    (tree.proc / "1000/task/1001").rmdir()
    now[0] += 6 * S
    source.sample()
    assert fake.groups[0].members == {1000, 1005}


def test_a_change_that_fails_makes_the_group_again(fake, tree, make):
    source = make(FakeInventory([vm(tree, 1), vm(tree, 2)]))
    fake.read = {n: values(1, 1000, 1000) for n in range(2)}
    source.sample()
    opened = source.sample().vms["uuid-1"].rdt.opened
    tree.process(1000, 1005)
    fake.add_error = PqosErrorParam("pqos_mon_add_pids returned 2", 2)
    assert tell(source)["uuid-1"] is Reason.VM_STARTING
    assert fake.groups[0].stopped
    fake.add_error = None
    fake.read[2] = values(1, 10, 10)
    again = source.sample().vms
    assert again["uuid-1"].rdt.opened > opened
    assert again["uuid-2"].rdt.domains["all"].mbm_total_bytes == 1000


def test_no_more_groups_than_max_groups_and_a_stopped_vm_makes_room(fake, tree, make):
    inventory = FakeInventory([vm(tree, n) for n in (1, 2, 3)])
    fake.read = {n: values(1, 1, 1) for n in range(3)}
    source = make(inventory, max_groups=2)
    found = tell(source)
    assert found["uuid-3"] is Reason.NO_RMID
    del inventory.list[0]
    assert Reason.NO_RMID not in tell(source).values()
    assert fake.groups[0].stopped
    assert len(fake.live) == 2


def test_where_the_kernel_has_no_monitoring_id_none_is_asked_for_for_a_while(fake, tree, make, now):
    fake.rmids = 1
    fake.read = {0: values(1, 1, 1)}
    source = make(FakeInventory([vm(tree, n) for n in (1, 2, 3)]))
    for _ in range(3):
        found = tell(source)
        assert found["uuid-2"] is found["uuid-3"] is Reason.NO_RMID
        assert found["uuid-1"].mbm_total_bytes == 1
    assert sum(call[0] == "start" for call in fake.calls) == 2
    fake.rmids = 10
    now[0] += 11 * S
    tell(source)
    assert len(fake.live) == 3


def test_a_new_epoch_is_a_new_group(fake, tree, make):
    inventory = FakeInventory([vm(tree, 1)])
    source = make(inventory)
    fake.read = {0: values(1, 500, 500), 1: values(1, 5, 5)}
    before = source.sample().vms["uuid-1"]
    inventory.list = [VmIdentity("uuid-1", "vm1", 1000, "e2", (1001,))]
    after = source.sample().vms["uuid-1"]
    assert (after.epoch, after.rdt.domains["all"].mbm_total_bytes) == ("e2", 5)
    assert after.rdt.opened != before.rdt.opened


def test_a_reading_that_failed_is_absent_and_not_the_last_one(fake, tree, make):
    source = make(FakeInventory([vm(tree, 1), vm(tree, 2)]))
    fake.read = {0: values(1, 1, 1), 1: values(1, 1, 1)}
    source.sample()
    fake.read = {0: None, 1: values(1, 2, 2)}  # the library says that all went well
    found = tell(source)
    assert found["uuid-1"] is Reason.RDT_UNAVAILABLE
    assert found["uuid-2"].mbm_total_bytes == 2


def test_a_total_that_falls_is_no_value_and_no_burst_when_it_returns(fake, tree, make):
    """libpqos reads "Unavailable" in one domain as 0."""
    source = make(FakeInventory([vm(tree, 1)]))
    fake.read = {0: values(1, 1000, 900)}
    opened = source.sample().vms["uuid-1"].rdt.opened
    fake.read = {0: values(1, 400, 300)}
    assert tell(source)["uuid-1"] is Reason.RDT_UNAVAILABLE
    fake.read = {0: values(1, 1010, 905)}
    back = source.sample().vms["uuid-1"].rdt
    assert (back.opened, back.domains["all"].mbm_total_bytes) == (opened, 1010)


def test_a_group_that_was_removed_by_others_is_made_again(fake, tree, make):
    source = make(FakeInventory([vm(tree, 1)]))
    fake.read = {0: values(1, 1000, 900), 1: values(1, 7, 7)}
    opened = source.sample().vms["uuid-1"].rdt.opened
    fake.read[0] = values(0, 0, 0)
    for _ in range(5):
        assert tell(source)["uuid-1"] is Reason.RDT_UNAVAILABLE
    again = source.sample().vms["uuid-1"].rdt
    assert again.opened > opened
    assert again.domains["all"].mbm_total_bytes == 7
    assert fake.groups[0].stopped


def test_events_that_the_cpu_lacks_are_absent(fake, tree, make, now):
    fake.events = [1, 4]
    source = make(FakeInventory([vm(tree, 1)]))
    fake.read = {0: {"llc": 3, "mbm_total": 9}}
    source.sample()
    now[0] += 5 * S
    domain = tell(source)["uuid-1"]
    assert (domain.llc_occupancy_bytes, domain.mbm_total_bytes, domain.mbm_local_bytes) == (3, 9, None)
    assert domain.reason is Reason.NO_EVENT


def test_an_error_of_one_vm_is_its_own(fake, tree, make, caplog):
    source = make(FakeInventory([vm(tree, 1)]))
    fake.start_error = PqosErrorResource("pqos_mon_start_pids returned 3", 3)
    for _ in range(2):
        assert tell(source)["uuid-1"] is Reason.RDT_UNAVAILABLE
    assert caplog.text.count("vm1: libpqos does not monitor it") == 1


def test_a_vm_in_someone_elses_group_is_let_alone(fake, tree, make, caplog):
    tree.group("mon_groups/theirs", "2001\n")
    source = make(FakeInventory([vm(tree, 1), vm(tree, 2)]))
    fake.read = {0: values(1, 1, 1)}
    found = tell(source)
    assert found["uuid-2"] is Reason.RDT_UNAVAILABLE
    assert [call[1] for call in fake.calls if call[0] == "start"] == [(1000,)]
    assert "vm2: theirs of another program monitors it; use [sources.resctrl]" in caplog.text
    tree.process(1000, 1005, 1006)
    tree.group("mon_groups/theirs", "2001\n1005\n")
    source.sample()
    assert fake.groups[0].members == {1000, 1006}


def rmdir_with_files(monkeypatch):
    """In resctrl a group is removed with what is in it."""
    removed = []

    def rmdir(path):
        removed.append(path.name)
        subprocess.run(["rm", "-r", path], check=True)

    monkeypatch.setattr("pathlib.Path.rmdir", rmdir)
    return removed


def test_what_the_library_leaves_is_removed_and_nothing_else(fake, tree, make, monkeypatch):
    dead = subprocess.Popen(["true"])
    dead.wait()
    tree.proc.mkdir()
    (tree.proc / str(os.getpid())).mkdir()
    (tree.proc / "77").mkdir()
    tree.group("COS1")
    tree.group(f"COS1/mon_groups/pqos-{dead.pid}-0", "1000\n1001\n")  # of a killed agent
    tree.group(f"mon_groups/pqos-{dead.pid}-1", "")
    tree.group(f"mon_groups/pqos-{dead.pid}-2", "4711\n")  # it measures another program's processes
    tree.group(f"mon_groups/pqos-{dead.pid}-3", "", "0-1")  # it measures CPUs
    tree.group("mon_groups/pqos-77-0", "")  # its maker lives
    tree.group("mon_groups/telegraf", "")
    removed = rmdir_with_files(monkeypatch)

    def start():
        for name in ("COS2", "COS3", "COS4"):
            tree.group(name)

    fake.on_init = start
    source = make(FakeInventory([vm(tree, 1)]))
    source.open()
    assert sorted(removed) == [f"pqos-{dead.pid}-0", f"pqos-{dead.pid}-1"]
    removed.clear()
    tree.group("COS3", "4711\n")  # somebody uses it meanwhile
    tree.group(f"mon_groups/pqos-{os.getpid()}-9")
    source.close()
    source.close()
    assert sorted(removed) == ["COS2", "COS4", f"pqos-{os.getpid()}-9"]
    assert fake.calls[-1] == ("fini",)


def test_close_stops_all_groups(fake, tree, make):
    source = make(FakeInventory([vm(tree, 1), vm(tree, 2)]))
    source.sample()
    source.close()
    assert fake.live == []
    assert [call for call in fake.calls if call[0] not in ("init", "start", "fini")] == []  # never a reset


def test_registers_count_cpus_that_a_vm_has_alone(fake, tree, make):
    (tree.root / "info/L3_MON/mon_features").unlink()
    subprocess.run(["rm", "-r", tree.root / "info"], check=True)
    tree.msr.touch()
    cpus = {1001: {2, 3}, 2001: {4}, 3001: {4, 5}}
    vms = [vm(tree, n) for n in (1, 2, 3)]
    vms.append(VmIdentity("uuid-4", "vm4", 4000, "e1", ()))
    source = make(FakeInventory(vms), interface="msr", affinity=lambda tid: cpus[tid])
    fake.read = {0: {"llc": 1, "mbm_total": 5, "mbm_total_delta": 0, "mbm_local_delta": 0}}
    found = tell(source)
    assert found["uuid-2"] is found["uuid-3"] is Reason.SHARED
    assert found["uuid-4"] is Reason.VM_STARTING
    assert found["uuid-1"].mbm_total_bytes == 0
    assert fake.calls[0] == ("init", "MSR", "silent")
    fake.read = {0: {"llc": 1, "mbm_total": 2, "mbm_total_delta": 70, "mbm_local_delta": 30}}
    for turn in (1, 2):  # differences add up
        found = tell(source)
        assert (found["uuid-1"].mbm_total_bytes, found["uuid-1"].mbm_local_bytes) == (70 * turn, 30 * turn)
    opened = source.sample().vms["uuid-1"].rdt.opened
    fake.read = {0: None}
    assert tell(source)["uuid-1"] is Reason.RDT_UNAVAILABLE
    fake.read = {0: {"llc": 1, "mbm_total_delta": 1, "mbm_local_delta": 1}}
    assert source.sample().vms["uuid-1"].rdt.opened > opened
    cpus[1001] = {2, 6}
    source.sample()
    assert fake.groups[0].stopped and fake.groups[1].members == {2, 6}
    cpus[1001] = {4}
    assert tell(source)["uuid-1"] is Reason.SHARED
    assert fake.live == []


# -- what is in the way ------------------------------------------------------------------------------------------


def problem(source):
    probe = source.probe()
    assert not probe.available
    with pytest.raises(SourceError) as caught:
        source.open()
    assert (str(caught.value), caught.value.reason) == (probe.detail, probe.reason)
    return probe


def test_probe_starts_nothing(fake, tree, make):
    probe = make(FakeInventory()).probe()
    assert (probe.available, probe.detail) == (True, f"libpqos on {tree.root}; 32 monitoring ids")
    assert fake.calls == []


def test_without_the_package(fake, make, monkeypatch):
    monkeypatch.setitem(sys.modules, "pqos", None)
    assert "`python3 tools/bootstrap.py host`" in problem(make(FakeInventory())).detail


def test_without_the_library(fake, make, monkeypatch):
    def missing():
        raise OSError("libpqos.so.4: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(sys.modules["pqos"], "Pqos", missing)
    probe = problem(make(FakeInventory()))
    assert "libpqos.so.4" in probe.detail and "install libpqos 4 (Debian 12: intel-cmt-cat)" in probe.detail
    assert probe.reason is Reason.NO_RDT


def test_not_root(fake, make, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    assert problem(make(FakeInventory())).reason is Reason.NO_PERMISSION


def test_no_place_for_its_lock(fake, tree, make):
    tree.lock.parent.rmdir()
    assert f"ReadWritePaths={tree.lock.parent} in the unit" in problem(make(FakeInventory())).detail


@pytest.mark.parametrize("left", ["0000004000000000", "0000004000000002", "0000004000000020"])
def test_without_its_capabilities(fake, tree, make, left):
    (tree.proc / "self").mkdir(parents=True)
    status = tree.proc / "self/status"
    status.write_text("Uid:\t0\nCapEff:\t0000004000000022\n")  # CAP_PERFMON, CAP_DAC_OVERRIDE, CAP_KILL
    assert make(FakeInventory()).probe().available
    status.write_text(f"Uid:\t0\nCapEff:\t{left}\n")
    probe = problem(make(FakeInventory()))
    assert "CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_KILL in the unit" in probe.detail
    assert probe.reason is Reason.NO_PERMISSION


def test_no_resctrl(fake, tree, make):
    subprocess.run(["rm", "-r", tree.root / "info"], check=True)
    assert problem(make(FakeInventory())).reason is Reason.NO_RDT


def test_control_groups_of_others(fake, tree, make):
    tree.group("COS1")
    tree.group("libvirt-3-db")
    assert f"{tree.root}/libvirt-3-db: libpqos wants all" in problem(make(FakeInventory())).detail


def test_no_registers(fake, tree, make):
    tree.msr.touch()
    source = make(FakeInventory(), interface="msr")
    assert "resctrl is mounted" in problem(source).detail
    subprocess.run(["rm", "-r", tree.root / "info"], check=True)
    assert source.probe().available
    tree.msr.unlink()
    probe = problem(source)
    assert "modprobe msr" in probe.detail
    assert probe.reason is Reason.NO_PERMISSION
    assert fake.calls == []  # it would end the process


def test_a_library_that_does_not_start(fake, tree, make, monkeypatch):
    removed = rmdir_with_files(monkeypatch)
    fake.on_init = lambda: tree.group("COS1")
    fake.init_error = PqosError("pqos_init returned 1", 1)
    with pytest.raises(SourceError, match=r"pqos_init returned 1.*`pqos -s`"):
        make(FakeInventory()).open()
    assert removed == ["COS1"]


def test_a_cpu_without_monitoring(fake, make):
    fake.events = []
    with pytest.raises(SourceError, match="no cache or memory bandwidth monitoring"):
        make(FakeInventory()).sample()
    assert fake.calls[-1] == ("fini",)


def test_the_configuration_never_chooses_it_by_itself(tmp_path):
    path = tmp_path / "agent.toml"
    path.write_text("[agent]\n")
    specs = [spec for spec in SOURCES if spec.name == "pqos"]
    assert build_sources(load(path).sources, specs=specs) == []
    path.write_text('[agent]\n[sources.pqos]\nmode = "auto"\n')
    with pytest.raises(ConfigError, match=r"sources\.pqos\.mode"):
        load(path)
    path.write_text('[agent]\n[sources.pqos]\nmode = "required"\ninterface = "msr"\n')
    ((source, mode),) = build_sources(load(path).sources, specs=specs)
    assert (source.name, mode) == ("pqos", "required")


def test_what_was_said_of_a_vm_is_forgotten_with_it(fake, tree, make, caplog):
    source = make(FakeInventory([vm(tree, 1)]))
    for number in range(1, 30):
        identity = vm(tree, number)
        source._inventory = FakeInventory([identity])
        source._warn(identity, "no")
        source._warn(identity, "no")
        source.sample()
        assert source._warned == {identity.uuid: {"no"}}
    assert caplog.text.count(": no\n") == 29
