import contextlib
import errno
import json
import logging
import os
import uuid
from collections import Counter
from types import SimpleNamespace

import pytest

from collector.base import DiskDevice, InterfaceDevice, Reason
from collector.inventory.inventory import Inventory
from collector.qemu import discovery, process
from collector.qemu.cmdline import disk_kind, parse_options
from collector.qemu.discovery import QemuFinder
from tests.support.waiting import wait_until

ONE, TWO = (f"57500000-0000-4000-8000-00000000000{number}" for number in (1, 2))


@pytest.fixture
def finder(qemu_host):
    return qemu_host.finder()


@pytest.fixture
def found(qemu_host, finder):
    """The VMs, by name, some time later."""

    def look(seconds=2.5, libvirt_pids=()):
        qemu_host.later(seconds)
        return {vm.name: vm for vm in finder.vms(libvirt_pids)}

    return look


def test_a_bare_qemu(qemu_host, found):
    qemu_host.process(
        500,
        f"/usr/bin/qemu-system-x86_64 -name guest=one,debug-threads=on -uuid {ONE} -hda /dev/sdb "
        "-netdev tap,id=n,ifname=tap7 -device virtio-net,netdev=n,mac=52:54:00:00:00:01 -device vfio-pci,host=01:00",
        start=4321,
        threads=("qemu", "call_rcu", "CPU 10/KVM", "CPU 2/KVM", "IO mon_iothread"),
    )
    vm = found()["one"]
    assert (vm.uuid, vm.pid, vm.epoch) == (ONE, 500, "111111112222-4321")
    assert vm.vcpu_tids == (503, 502)
    assert (vm.manager, vm.state, vm.accelerator, vm.vfio) == ("qemu", "running", "kvm", True)
    assert vm.disks == (DiskDevice("hda", "block"),)
    assert vm.interfaces == (InterfaceDevice("tap7", "52:54:00:00:00:01", "ethernet"),)
    assert vm.facts == {}


def test_a_name_of_any_bytes_and_any_length_is_fit_to_be_shown_and_sent(qemu_host, found):
    names = (b"bad\xff\xfename", b"\x1b[2Jcleared", b"\xc2\x9b31m", b"long" * 15_000)
    for number, name in enumerate(names):
        qemu_host.process(500 + 10 * number, "set below")
        arguments = (b"qemu-system-x86_64", b"-name", name + b",debug-threads=on")
        (qemu_host.proc / str(500 + 10 * number) / "cmdline").write_bytes(b"".join(word + b"\0" for word in arguments))
    cut = "long" * 63 + "lon…"
    assert list(found()) == [r"bad\xff\xfename", r"\x1b[2Jcleared", r"\x9b31m", cut]


def test_proxmox(qemu_host, found):
    qemu_host.proxmox(101, 500, f"-smbios type=1,uuid={ONE}")
    vm = found()["vm-101"]
    assert (vm.uuid, vm.manager, dict(vm.facts)) == (ONE, "proxmox", {"pve:vmid": "101"})


def test_proxmox_is_seen_at_once_by_its_run_directory(qemu_host, finder, found):
    qemu_host.run_dir.mkdir()
    assert found() == {}
    qemu_host.proxmox(101, 500)
    assert list(found(0.3)) == ["vm-101"]
    assert finder.launch(*_key(found(0)["vm-101"])).qmp == (f"{qemu_host.run_dir}/101.qmp",)


def test_a_pid_file_of_a_dead_vm_names_none(qemu_host, found):
    qemu_host.proxmox(101, 500)
    qemu_host.process(500, "sshd: somebody")
    (qemu_host.run_dir / "102.pid").write_text("garbage")
    assert found() == {}


LIBVIRTS = (
    "/usr/bin/qemu-system-x86_64 -name guest={name},debug-threads=on -uuid {uuid} -object "
    "secret,file=/var/lib/libvirt/qemu/domain-1-{name}/master-key.aes -qmp unix:/run/{name}.monitor,server=on"
)


def test_libvirts_are_left_to_libvirt(qemu_host, found):
    qemu_host.process(500, LIBVIRTS.format(name="a", uuid=TWO))
    qemu_host.process(510, f"qemu-system-x86_64 -name b -uuid {ONE}")
    qemu_host.process(520, "qemu-system-x86_64 -name c -M none")
    for _ in range(10):
        assert list(found(libvirt_pids={500, 510})) == []
    assert list(found()) == []  # libvirt may just be replacing the files
    assert list(found(8)) == ["b"]


def test_a_libvirts_that_no_status_file_reports_is_measured_after_a_while(qemu_host, finder, found):
    """KubeVirt's, a session's, one of a libvirt in a container: nobody else would have it."""
    qemu_host.process(500, LIBVIRTS.format(name="pod", uuid=ONE))
    for _ in range(4):
        assert list(found()) == []
    (vm,) = found(2.5).values()
    assert (vm.name, vm.uuid, vm.manager, vm.vcpu_tids) == ("pod", ONE, "qemu", (502,))
    assert finder.launch(*_key(vm)).qmp == ()  # it is that libvirt's
    assert list(found()) == ["pod"]
    assert list(found(libvirt_pids={500})) == []  # told after all
    assert list(found()) == []


def test_a_libvirts_arguments_are_not_read_while_libvirt_reports_of_it(qemu_host, found, monkeypatch):
    qemu_host.process(500, LIBVIRTS.format(name="a", uuid=ONE))
    reads = []
    real = discovery.read_once
    monkeypatch.setattr(discovery, "read_once", lambda path, size: reads.append(path) or real(path, size))
    for _ in range(40):
        assert list(found(libvirt_pids={500})) == []
    assert reads == []


def test_who_is_trusted_with_a_vm(qemu_host, caplog, monkeypatch):
    """Anybody may start a program by that name, with any VM's name and UUID."""
    monkeypatch.setattr("pwd.getpwnam", lambda name: SimpleNamespace(pw_uid={"libvirt-qemu": 64055}[name]))
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_name={65534: "nobody"}[uid]))
    users = ("libvirt-qemu", "42436", "not-here")
    finder = qemu_host.finder(users=users)
    for pid, uid in ((500, 0), (510, 107), (520, 64055), (530, 42436), (540, 999)):
        qemu_host.process(pid, f"kvm -name vm{uid}", uid=uid)
    for pid, uid in ((600, 65534), (610, 65534), (620, 1000), (630, 42437)):
        qemu_host.process(pid, "kvm -name payroll-db", uid=uid)
    for _ in range(40):
        qemu_host.later(2.5)
        vms = finder.vms(())
    assert [vm.name for vm in vms] == ["vm0", "vm107", "vm64055", "vm42436", "vm999"]
    assert finder.launch(*_key(vms[2])).uid == 64055
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "process 600: a QEMU of user nobody (65534) is not measured",
        "process 620: a QEMU of user 1000 is not measured",
        "process 630: a QEMU of user 42437 is not measured",
    ]
    assert "add the user to sources.qemu.users" in caplog.text


def test_one_whose_user_is_not_reported_is_no_vm(qemu_host, found):
    qemu_host.process(500, "kvm -name one")
    (qemu_host.proc / "500/status").write_text("Name:\tUid:\t0\n")
    qemu_host.process(510, "kvm -name two")
    (qemu_host.proc / "510/status").unlink()
    assert found() == {}


@pytest.mark.parametrize("command", ["qemu-img create x", "sh -c qemu-system-x86_64", "''", "kvmtool"])
def test_other_programs_are_none(qemu_host, found, command):
    qemu_host.process(500, command)
    assert found() == {}


def test_a_qemu_that_is_starting_waits_for_its_threads(qemu_host, found):
    """So does the parent of one that becomes a daemon; and a wait=on socket is not connected to too early."""
    qemu_host.process(500, "kvm -name one", threads=("kvm", "call_rcu"))
    assert found() == {}
    qemu_host.thread(500, 502, "CPU 0/KVM")
    for _ in range(2):
        assert list(found()) == ["one"]


def test_a_process_that_becomes_qemu_by_exec_is_found(qemu_host, found):
    qemu_host.process(500, "sh start-vm.sh")
    assert found() == {}
    qemu_host.process(500, "kvm -name one")
    assert list(found()) == ["one"]


def test_one_that_becomes_qemu_late_is_found_within_a_minute(qemu_host, found):
    qemu_host.process(500, "sh start-vm.sh")
    for pid in range(600, 640):
        qemu_host.process(pid, "sleep 1", threads=())
    for _ in range(5):
        found()
    qemu_host.process(500, "kvm -name one")
    assert any("one" in found() for _ in range(35))


def test_processes_are_not_looked_at_each_time(qemu_host, finder, found, monkeypatch):
    for pid in range(1000, 1300):
        qemu_host.process(pid, "sleep 1", threads=())
    qemu_host.process(500, "kvm -name one")
    for _ in range(5):
        found()
    reads = Counter()
    real = discovery.read_once
    for module in (discovery, process):
        monkeypatch.setattr(
            module, "read_once", lambda path, size: reads.update([path.rsplit("/")[-1]]) or real(path, size)
        )
    for _ in range(10):
        found(0.25)  # no scan but one in eight
    assert reads["cmdline"] <= 2 * 11  # a thirtieth of 300 at each scan
    assert reads["stat"] <= 10 + 2
    reads.clear()
    for _ in range(10):
        found(0)  # as the sources of one tick ask
    assert not reads


def test_stop_and_restart_with_the_same_process_id(qemu_host, found):
    qemu_host.process(500, f"kvm -name one -uuid {ONE}", start=1000)
    first = found()["one"]
    qemu_host.end(500)
    qemu_host.process(500, f"kvm -name one -uuid {ONE}", start=2000)
    assert found(0.3) == {}  # told as gone at once
    second = found()["one"]
    assert (first.uuid, first.pid) == (second.uuid, second.pid)
    assert first.epoch != second.epoch


def test_a_reused_process_id_is_no_vm(qemu_host, found):
    qemu_host.process(500, f"kvm -name one -uuid {ONE}", start=1000)
    assert list(found()) == ["one"]
    qemu_host.process(500, "sleep 1000", start=2000)
    for _ in range(3):
        assert found() == {}


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_zombie_is_gone(qemu_host, found, state):
    qemu_host.process(500, "kvm -name one")
    assert list(found()) == ["one"]
    qemu_host.state(500, state)
    assert found() == {}


def test_plugged_and_unplugged_vcpus(qemu_host, found):
    qemu_host.process(500, "kvm -name one", threads=("kvm", "call_rcu", "CPU 0/TCG"))
    vm = found()["one"]
    assert (vm.vcpu_tids, vm.accelerator) == ((502,), "tcg")
    assert found()["one"] is vm
    qemu_host.thread(500, 503, "kvm")  # has not got its name yet
    assert found()["one"] is vm
    qemu_host.thread(500, 503, "CPU 1/TCG")
    assert found()["one"].vcpu_tids == (502, 503)
    qemu_host.thread(500, 509, "worker")
    (qemu_host.proc / "500/task/503").rename(qemu_host.folder / "unplugged")
    assert found()["one"].vcpu_tids == (502,)


def test_one_thread_for_all_vcpus(qemu_host, found):
    qemu_host.process(500, "qemu-system-x86_64 -name one", threads=("q", "call_rcu", "ALL CPUs/TCG"))
    assert found()["one"].vcpu_tids == (502,)


def test_what_qmp_reported_stands_where_names_tell_nothing(qemu_host, finder, found):
    qemu_host.process(500, f"qemu-system-x86_64 -uuid {ONE}", threads=("q", "q", "q"))
    vm = found()["qemu-500"]
    assert (vm.vcpu_tids, vm.accelerator) == ((), "tcg")
    assert not finder.has_vcpu_names(*_key(vm))
    learned = {"state": "paused", "name": "named", "vcpu_tids": (502, 501), "disks": (DiskDevice("x"),)}
    finder.learn(*_key(vm), **learned, facts={"pve:pool": "p"})
    vm = found(0)["named"]
    assert (vm.vcpu_tids, vm.state, dict(vm.facts)) == ((502, 501), "paused", {"pve:pool": "p"})
    assert vm.disks == (DiskDevice("x"),)
    finder.learn(vm.uuid, "another epoch", state="crashed")
    assert found()["named"].state == "paused"
    assert finder.launch(vm.uuid, "another epoch") is None


def test_uuids_that_are_made_are_stable(qemu_host, finder, found):
    qemu_host.process(500, "kvm -name bare", start=1)
    qemu_host.proxmox(7, 600, start=2)
    first = found()
    again = {vm.name: vm for vm in qemu_host.finder().vms(())}
    assert {vm.uuid for vm in first.values()} == {vm.uuid for vm in again.values()}
    assert len({uuid.UUID(vm.uuid) for vm in first.values()}) == 2
    for pid, start in ((500, 11), (600, 12)):
        qemu_host.state(pid, "S", start=start)
    found()
    restarted = found()
    assert restarted["vm-7"].uuid == first["vm-7"].uuid  # Proxmox' VM is the same one
    assert restarted["bare"].uuid != first["bare"].uuid


def test_two_with_one_uuid_are_two(qemu_host, found, caplog):
    qemu_host.process(500, f"kvm -name one -uuid {ONE}")
    qemu_host.process(600, f"kvm -name two -uuid {ONE}")
    vms = found()
    assert vms["one"].uuid == ONE
    assert vms["two"].uuid != ONE
    assert "process 600: another VM here has its UUID" in caplog.text
    qemu_host.end(500)
    assert found()["two"] is vms["two"]


def test_taps_that_the_kernel_named_or_that_were_handed_in(qemu_host, finder, found):
    command = "kvm -name one -netdev tap,id=a -netdev tap,id=b,fds=31:32 -netdev user,id=c -netdev bridge,id=d"
    qemu_host.process(500, command)
    folder = qemu_host.proc / "500/fdinfo"
    folder.mkdir()
    for fd, text in {
        "3": "pos:\t0\n",
        "12": "pos:\t0\niff:\ttap0\n",
        "13": "iff:\ttap0\n",
        "14": "iff:\ttap9\n",
        "31": "iff:\tgiven\n",
        "32": "iff:\tgiven\n",
    }.items():
        (folder / fd).write_text(text)
    assert finder.launch(*_key(found()["one"])).taps == ("tap0", "given", "", "tap9")
    qemu_host.process(600, "kvm -name dark -netdev tap,id=a")
    assert finder.launch(*_key(found()["dark"])).taps == ("",)


def test_a_relative_socket_is_beside_the_process(qemu_host, finder, found):
    qemu_host.process(500, "kvm -name one -qmp unix:q.sock,server=on -qmp unix:/run/x,server=on")
    (qemu_host.proc / "500/cwd").symlink_to("/srv/vms")
    assert finder.launch(*_key(found()["one"])).qmp == ("/srv/vms/q.sock", "/run/x")


def test_what_cannot_be_read_now_costs_no_vm(qemu_host, found, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    qemu_host.process(500, "kvm -name one")
    assert list(found()) == ["one"]
    real = os.open

    def full(path, flags, *arguments, **keywords):
        if str(path).startswith(str(qemu_host.proc)):
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return real(path, flags, *arguments, **keywords)

    monkeypatch.setattr(os, "open", full)
    assert list(found()) == list(found()) == ["one"]
    assert caplog.text.count("Too many open files; new VMs are not seen") == 1


def test_a_process_that_is_hidden_or_ends_meanwhile_costs_no_other(qemu_host, found):
    qemu_host.process(500, "kvm -name one")
    (qemu_host.proc / "490").mkdir()
    qemu_host.process(495, "kvm -name broken")
    (qemu_host.proc / "495/stat").write_text("nonsense")
    assert list(found()) == ["one"]


@pytest.fixture
def wedged(qemu_host):
    """Make a process whose command line cannot be read: a pipe that nobody writes; returns what lets it go on."""
    pipes = []

    def make(pid):
        qemu_host.process(pid, "kvm -name wedged")
        pipe = qemu_host.proc / str(pid) / "cmdline"
        pipe.unlink()
        os.mkfifo(pipe)
        pipes.append(pipe)

        def go_on(command="kvm -name wedged"):
            pipes.remove(pipe)
            pipe.write_bytes(command.replace(" ", "\0").encode() + b"\0")

        return go_on

    yield make
    for pipe in pipes:
        with contextlib.suppress(OSError):  # its reader is gone
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


def test_a_wedged_process_holds_up_nobody_and_costs_only_itself(qemu_host, wedged, caplog):
    qemu_host.process(490, "kvm -name before")
    finder = qemu_host.finder(start=discovery._in_thread)

    def names():
        return [vm.name for vm in finder.vms(())]

    assert names() == ["before"]
    go_on = wedged(500)
    qemu_host.later(2.5)
    assert names() == ["before"]
    wait_until(lambda: finder._current is not None and finder._current.pid == 500)
    qemu_host.process(510, "kvm -name after")
    qemu_host.later(4)
    assert names() == ["before"]  # at once, and no second look meanwhile
    assert finder.probe().reason is Reason.UNSPECIFIED
    qemu_host.later(1.5)
    names()
    probe = finder.probe()
    assert (probe.available, probe.reason) == (True, Reason.STUCK)
    assert "cmdline hangs for process 500: a VM there is not seen until it continues or ends" in probe.detail
    assert caplog.text.count("500/cmdline: reading it hangs") == 1

    def seen():
        # The clock is the test's: a look that has not come to run yet must not grow old meanwhile.
        wait_until(lambda: finder._current is None or finder._current.pid == 500)
        qemu_host.later(2.5)
        return names()

    wait_until(lambda: seen() == ["before", "after"])
    qemu_host.end(490)
    assert seen() == ["after"]  # it is still seen who ends
    wait_until(lambda: finder._current is None)  # else that look could find 500 let go, and hang there again
    go_on()
    wait_until(lambda: finder.probe().reason is Reason.UNSPECIFIED)
    (qemu_host.proc / "500/cmdline").unlink()
    qemu_host.process(500, "kvm -name wedged")
    wait_until(lambda: seen() == ["wedged", "after"])


def test_many_wedged_processes_end_the_looking_and_no_vm(qemu_host, wedged):
    qemu_host.process(490, "kvm -name before")
    finder = qemu_host.finder(start=discovery._in_thread)
    finder.vms(())
    for pid in (500, 510, 520, 530, 540):
        wedged(pid)
    for count in range(1, discovery._MAX_HUNG + 1):
        qemu_host.later(2.5)
        finder.vms(())
        wait_until(lambda: finder._current.pid >= 500)
        qemu_host.later(5.5)
        assert [vm.name for vm in finder.vms(())] == ["before"]
        assert len(finder._hung) == count
    qemu_host.later(60)
    assert [vm.name for vm in finder.vms(())] == ["before"]
    assert finder._current is None
    assert "process 500, 510, 520, 530: no new VM is seen" in finder.probe().detail


def test_the_first_list_is_waited_for_only_so_long(qemu_host, wedged, monkeypatch):
    monkeypatch.setattr(discovery, "_FIRST_S", 0.05)
    go_on = wedged(500)
    finder = qemu_host.finder(start=discovery._in_thread)
    assert finder.vms(()) == []
    wait_until(lambda: finder._current.pid == 500)
    probe = finder.probe()
    assert (probe.reason, "hangs for process 500" in probe.detail) == (Reason.STUCK, True)
    go_on()
    wait_until(lambda: [vm.name for vm in finder.vms(())] == ["wedged"])


def test_without_a_thread_left_known_vms_stay(qemu_host, caplog):
    def full(work):
        if starts:
            raise RuntimeError("can't start new thread")
        starts.append(1)
        work()

    starts = []
    qemu_host.process(500, "kvm -name one")
    finder = qemu_host.finder(start=full)
    for _ in range(3):
        assert [vm.name for vm in finder.vms(())] == ["one"]
        qemu_host.later(2.5)
    assert caplog.text.count("can't start new thread; raise the agent's TasksMax") == 1


def test_a_defect_while_looking_is_reported_once_and_costs_no_known_vm(qemu_host, found, monkeypatch, caplog):
    qemu_host.process(500, "kvm -name one")
    assert list(found()) == ["one"]
    monkeypatch.setattr(discovery, "listed", lambda _folder: 1 // 0)
    qemu_host.process(510, "kvm -name two")
    for _ in range(2):
        assert list(found()) == ["one"]
    assert caplog.text.count("looking for new VMs failed: ZeroDivisionError") == 1


@pytest.mark.parametrize("error", [ZeroDivisionError("a defect"), OSError(errno.EIO, "Input/output error")])
@pytest.mark.parametrize("failing", ["parse_task_stat", "parse_command_line", "taps_of"])
def test_whatever_goes_wrong_with_one_process_costs_only_that_one(
    qemu_host, found, monkeypatch, caplog, failing, error
):
    real, first = getattr(discovery, failing), []

    def fails_at_the_first(*arguments):
        first[:] = first or arguments[:1]
        if arguments[0] == first[0]:
            raise error
        return real(*arguments)

    monkeypatch.setattr(discovery, failing, fails_at_the_first)
    qemu_host.process(490, "kvm -name first", start=1)
    qemu_host.process(500, "kvm -name second", start=2)
    for _ in range(2):
        assert list(found()) == ["second"]
    reported = f"process 490: examining it failed: {type(error).__name__}"
    assert caplog.text.count(reported) == caplog.text.count("failed") == 1


def test_a_known_vm_whose_threads_cannot_be_listed_costs_no_other(qemu_host, found, monkeypatch):
    qemu_host.process(490, "kvm -name one")
    qemu_host.process(500, "kvm -name two")
    assert list(found()) == ["one", "two"]
    real = discovery.listed

    def failing(folder):
        if str(folder).endswith("/490/task"):
            raise OSError(errno.EIO, "Input/output error", str(folder))
        return real(folder)

    monkeypatch.setattr(discovery, "listed", failing)
    qemu_host.thread(500, 503, "CPU 1/KVM")
    assert {name: vm.vcpus for name, vm in found().items()} == {"one": 1, "two": 2}


def deep(opened, closed, depth=3000):
    """A program called as QEMU is, with arguments that nothing can parse."""
    value = '{"a":' + opened * depth + closed * depth + "}"
    return b"\0".join([b"kvm", b"-name", b"deep", b"-device", value.encode(), b"-blockdev", value.encode(), b""])


@pytest.mark.parametrize("uid", [0, 65500])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_arguments_that_nothing_can_parse_hide_no_vm(qemu_host, found, caplog, uid, opened, closed):
    qemu_host.process(400, "set below", uid=uid)
    (qemu_host.proc / "400/cmdline").write_bytes(deep(opened, closed))
    qemu_host.process(500, "kvm -name one")
    vms = found()
    assert list(vms) == (["deep", "one"] if uid == 0 else ["one"])
    assert "failed" not in caplog.text


def test_json_of_any_size_costs_little():
    nested = '{"a":' * 40 + "1" + "}" * 40
    long_key = json.dumps({"k" * 300: {"a": 1}, "b": {"c" * 300: 1, "d": 2}})
    too_long = json.dumps({"driver": "x" * (1 << 16)})
    assert [parse_options(text) for text in (nested, long_key, too_long)] == [{}, {"b.d": "2"}, {}]
    assert disk_kind("json:" + "[" * 5000) == disk_kind("json:[1]") == ""


def test_the_arguments_of_someone_who_is_not_trusted_are_not_parsed(qemu_host, found, monkeypatch):
    qemu_host.process(400, "kvm -name theirs", uid=65500)
    qemu_host.process(410, LIBVIRTS.format(name="session", uuid=ONE), uid=65500)
    qemu_host.process(500, "kvm -name one")
    parsed, real = [], discovery.parse_command_line
    monkeypatch.setattr(discovery, "parse_command_line", lambda text: parsed.append(text) or real(text))
    for _ in range(40):
        assert list(found()) == ["one"]
    assert [text.split(b"\0")[2] for text in parsed] == [b"one"]


def test_a_libvirts_of_another_user_is_not_reported_as_left_out_while_libvirt_may_tell_of_it(qemu_host, found, caplog):
    qemu_host.process(500, LIBVIRTS.format(name="theirs", uuid=ONE), uid=65500)
    assert list(found()) == list(found()) == []
    assert caplog.text == ""
    assert list(found(10)) == []
    assert "process 500: a QEMU of user 65500 is not measured" in caplog.text


def test_probe(qemu_host, finder, monkeypatch):
    assert finder.probe().available
    qemu_host.run_dir.mkdir()
    assert f"Proxmox' in {qemu_host.run_dir}" in finder.probe().detail
    missing = QemuFinder(str(qemu_host.folder / "none")).probe()
    assert (missing.available, missing.reason) == (False, Reason.NOT_PRESENT)


def test_the_inventory_reports_libvirts_and_ours(qemu_host, finder, host, caplog):
    host.vm("lib", 800, [801])
    qemu_host.process(500, f"kvm -name bare -uuid {TWO}")
    qemu_host.process(600, f"kvm -name twin -uuid {host.uuid_of('lib')}")
    inventory = Inventory(str(host.state), str(host.proc), [finder])
    for _ in range(2):
        assert [(vm.name, vm.manager) for vm in inventory.vms()] == [("lib", "libvirt"), ("bare", "qemu")]
    twin = f"process 600: QEMU twin has the UUID {host.uuid_of('lib')} of libvirt's VM lib"
    reported = f"{twin} and is not measured; give it its own -uuid"
    assert [record.getMessage() for record in caplog.records] == [reported]
    probe = inventory.probe()
    assert probe.available
    assert "status files" in probe.detail
    assert "QEMU processes without libvirt" in probe.detail


def test_the_inventory_says_which_finder_has_trouble(qemu_host, host):
    dark = QemuFinder(str(qemu_host.folder / "none"))
    probe = Inventory(str(host.state), str(host.proc), [dark]).probe()
    assert (probe.available, probe.reason) == (False, Reason.NOT_PRESENT)
    assert probe.detail == f"{qemu_host.folder / 'none'}: No such file or directory; see sources.procfs.root"


def _key(vm):
    return vm.uuid, vm.epoch
