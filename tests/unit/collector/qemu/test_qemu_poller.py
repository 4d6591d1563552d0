import itertools
import logging
import threading
import time

import pytest

import collector.qemu.poller as poller_module
from collector.base import DiskCounters, DiskDevice, Reason, Stamp
from collector.qemu.poller import DiskReading, Poller
from collector.qemu.proxmox import ProxmoxConfig
from collector.qemu.qmp import QmpError

S = 1_000_000_000


def stats(name, written):
    numbers = {"rd_bytes": 1, "wr_bytes": written, "rd_operations": 3, "wr_operations": 4}
    return {"device": f"drive-{name}", "qdev": name, "node-name": f"#{name}", "stats": numbers}


def counters(written):
    return DiskCounters(1, written, 3, 4)


class Asker:
    """Stands in for `qmp.ask`: what each socket answers, and when it was asked."""

    def __init__(self, host):
        self.host = host
        self.asked = []
        self.answers = {}
        self.errors = {}
        self.takes_s = 0.0

    def __call__(self, path, commands, *, pid, uid, deadline_s):
        self.asked.append((self.host.now_ns, path, tuple(commands), pid))
        self.host.later(self.takes_s)
        if path in self.errors:
            raise self.errors[path]
        status = {"query-status": {"status": "running"}, "query-blockstats": [stats("scsi0", 100)]}
        known = {**status, **self.answers.get(path, {})}
        return {command: known[command] for command in commands if command in known}


@pytest.fixture
def asker(qemu_host):
    return Asker(qemu_host)


@pytest.fixture
def finder(qemu_host):
    return qemu_host.finder()


@pytest.fixture
def poller(qemu_host, finder, asker):
    config = ProxmoxConfig(str(qemu_host.folder / "pve"))
    return Poller(finder, config, 10 * S, asker=asker, clocks=qemu_host.clocks)


@pytest.fixture
def run(qemu_host, finder, poller):
    """Let time pass as the thread does, sampling each half second; returns the VMs by name."""

    def pass_by(seconds):
        until_ns = qemu_host.now_ns + round(seconds * S)
        while qemu_host.now_ns < until_ns:
            poller.watch(finder.vms(()))
            pause_ns = min(poller.step(), S // 2)
            qemu_host.now_ns = min(qemu_host.now_ns + max(pause_ns, 1000), until_ns)
        return {vm.name: vm for vm in finder.vms(())}

    return pass_by


def bare(qemu_host, pid, name, extra="", **arguments):
    command = f"kvm -name {name},debug-threads=on -qmp unix:/run/{name},server=on {extra}"
    qemu_host.process(pid, command, **arguments)


def reading(poller, vm, not_before_ns=0):
    return poller.reading(vm.uuid, vm.epoch, not_before_ns)


def test_each_vm_is_asked_once_per_period_and_the_polls_are_spread(qemu_host, asker, run):
    for number in range(10):
        bare(qemu_host, 500 + 10 * number, f"vm{number}")
    run(10)
    asker.asked.clear()
    started_ns = qemu_host.now_ns
    run(60)
    for number in range(10):
        times = [at for at, path, _, _ in asker.asked if path == f"/run/vm{number}"]
        assert len(times) == 6
        assert all(abs(b - a - 10 * S) <= S for a, b in itertools.pairwise(times))
    busiest = max(
        sum(start <= at < start + S for at, *_ in asker.asked) for start in range(started_ns, qemu_host.now_ns, S)
    )
    assert busiest <= 3  # ten of them in ten seconds


def test_disks_with_the_moment_at_which_they_were_read(qemu_host, asker, poller, run):
    bare(qemu_host, 500, "one")
    asker.takes_s = 0.25
    vm = run(1)["one"]
    at_ns = asker.asked[0][0] + S // 4
    assert reading(poller, vm) == DiskReading(Stamp(at_ns, at_ns + 7), {"scsi0": counters(100)})


def test_what_is_asked(qemu_host, asker, run):
    bare(qemu_host, 500, "named")
    qemu_host.process(600, "kvm -name dark -qmp unix:/run/dark,server=on", threads=("q", "q", "q"))
    asker.answers["/run/dark"] = {"query-cpus-fast": [{"cpu-index": 0, "thread-id": 602}]}
    asker.answers["/run/named"] = {
        "query-status": {"status": "paused"},
        "query-block": [{"qdev": "scsi0", "inserted": {"file": "rbd:p/i"}}],
    }
    vms = run(30)
    often = ("query-status", "query-blockstats")
    for name, slow in (("named", ("query-block",)), ("dark", ("query-block", "query-cpus-fast"))):
        assert [what for _, path, what, _ in asker.asked if path == f"/run/{name}"] == [often + slow, often, often]
    assert {pid for *_, pid in asker.asked} == {500, 600}
    assert (vms["named"].state, vms["named"].disks) == ("paused", (DiskDevice("scsi0", "network"),))
    assert (vms["dark"].state, vms["dark"].vcpu_tids) == ("running", (602,))
    asker.answers["/run/dark"] = {
        "query-cpus-fast": [{"cpu-index": 0, "thread-id": 602}, {"cpu-index": 1, "thread-id": 601}]
    }
    assert run(40)["dark"].vcpu_tids == (602, 601)  # plugged, seen within a minute


def test_a_held_socket_costs_its_vm_alone_and_is_tried_less_and_less(qemu_host, asker, poller, run, caplog):
    caplog.set_level(logging.INFO)
    bare(qemu_host, 500, "held")
    bare(qemu_host, 600, "free")
    vms = run(3)
    asker.errors["/run/held"] = QmpError("/run/held: no answer", Reason.STUCK)
    asker.takes_s = 0.2
    run(1000)
    tries = [at for at, path, *_ in asker.asked if path == "/run/held"]
    gaps = [round((b - a) / S) for a, b in itertools.pairwise(tries)]
    assert gaps[:6] == pytest.approx([10, 20, 40, 80, 160, 300], abs=1)
    assert len([1 for _, path, *_ in asker.asked if path == "/run/free"]) >= 95
    stale_ns = qemu_host.now_ns - 25 * S
    assert reading(poller, vms["held"], stale_ns) is Reason.STUCK
    assert isinstance(reading(poller, vms["free"], stale_ns), DiskReading)
    assert caplog.text.count("VM held (process 500): /run/held: no answer") == 1
    del asker.errors["/run/held"]
    run(301)
    assert isinstance(reading(poller, vms["held"], stale_ns), DiskReading)
    assert caplog.text.count("VM held: QMP answers again") == 1


@pytest.mark.parametrize(
    ("reason", "at_once"), [(Reason.NOT_VISIBLE, False), (Reason.STUCK, False), (Reason.NO_PERMISSION, True)]
)
def test_what_starts_or_ends_is_not_warned_of(qemu_host, asker, run, caplog, reason, at_once):
    """A socket that is not there yet or any more says nothing of the VM; the second failure is no such moment."""
    caplog.set_level(logging.INFO)
    bare(qemu_host, 500, "one")
    run(3)
    asker.errors["/run/one"] = QmpError("/run/one: gone", reason)
    run(10)
    assert len(asker.asked) == 2
    assert caplog.text.count("VM one (process 500): /run/one: gone") == at_once
    if at_once:
        return
    del asker.errors["/run/one"]
    run(30)
    assert caplog.text == ""  # nor that it answers again, as nobody heard that it did not
    asker.errors["/run/one"] = QmpError("/run/one: gone", reason)
    run(100)
    assert caplog.text.count("VM one (process 500): /run/one: gone") == 1
    qemu_host.end(500)
    run(1000)
    assert len(caplog.records) == 1


def test_a_reading_is_handed_on_until_it_is_too_old(qemu_host, asker, poller, run):
    bare(qemu_host, 500, "one")
    vm = run(1)["one"]
    taken = reading(poller, vm)
    asker.errors["/run/one"] = QmpError("held", Reason.STUCK)
    run(20)
    assert reading(poller, vm, taken.stamp.mono_ns) == taken
    assert reading(poller, vm, taken.stamp.mono_ns + 1) is Reason.STUCK


def test_with_two_sockets_the_other_is_tried(qemu_host, asker, poller, run):
    bare(qemu_host, 500, "one", "-qmp unix:/run/second,server=on")
    asker.errors["/run/one"] = QmpError("held", Reason.STUCK)
    vm = run(30)["one"]
    assert isinstance(reading(poller, vm), DiskReading)


@pytest.mark.parametrize(
    ("answers", "extra", "reason"),
    [
        ({"query-blockstats": []}, "", Reason.NOT_PRESENT),
        ({"query-blockstats": []}, "-device vhost-user-blk-pci,chardev=c,id=d", Reason.NOT_VISIBLE),
        ({"query-blockstats": [{"node-name": 1}]}, "", Reason.INVALID_VALUE),
        ({"query-blockstats": None}, "", Reason.INVALID_VALUE),
    ],
)
def test_why_there_are_no_disks(qemu_host, asker, poller, run, answers, extra, reason):
    bare(qemu_host, 500, "one", extra)
    asker.answers["/run/one"] = answers
    assert reading(poller, run(1)["one"]) is reason


def test_beside_a_vhost_user_disk_the_others_are_not_the_vms_disks(qemu_host, asker, poller, run):
    """A sum over those that QEMU counts would look like a quieter VM; the identity names both."""
    bare(qemu_host, 500, "one", "-drive file=/a,id=scsi0 -device vhost-user-blk-pci,chardev=c,id=d")
    asker.answers["/run/one"] = {"query-block": [{"qdev": "scsi0", "inserted": {"file": "/a"}}]}
    vm = run(30)["one"]
    assert reading(poller, vm) is Reason.NOT_VISIBLE
    assert vm.disks == (DiskDevice("scsi0", "file"), DiskDevice("d", "vhostuser"))


def test_a_vhost_user_disk_that_qemu_itself_drives_is_counted(qemu_host, asker, poller, run):
    drive = "-blockdev driver=virtio-blk-vhost-user,node-name=n,path=/s -device virtio-blk-pci,drive=n,id=scsi0"
    bare(qemu_host, 500, "one", drive)
    assert isinstance(reading(poller, run(1)["one"]), DiskReading)


def test_a_vm_without_a_socket(qemu_host, asker, poller, run, caplog):
    qemu_host.process(500, "kvm -name one")
    assert reading(poller, run(100)["one"]) is Reason.NOT_VISIBLE
    assert asker.asked == []
    assert caplog.text.count("no QMP socket") == 1


def test_the_socket_of_another_libvirt_is_left_alone(qemu_host, asker, poller, run, caplog):
    bare(qemu_host, 500, "pod", "-object secret,file=/var/lib/libvirt/qemu/domain-1-pod/master-key.aes")
    vm = run(100)["pod"]
    assert (reading(poller, vm), vm.state) == (Reason.NOT_VISIBLE, "running")
    assert asker.asked == []
    (record,) = caplog.records
    assert record.getMessage().startswith("VM pod (process 500): of a libvirt that has no status file here")


def test_a_stopped_process_is_not_connected_to(qemu_host, asker, poller, run):
    bare(qemu_host, 500, "one", state="T")
    assert reading(poller, run(1)["one"]) is Reason.STUCK
    assert asker.asked == []


def test_proxmoxs_configuration(qemu_host, asker, run):
    qemu_host.proxmox(101, 500)
    folder = qemu_host.folder / "pve" / "qemu-server"
    folder.mkdir(parents=True)
    (folder / "101.conf").write_text("name: web\ntags: a;b\n")
    vm = run(1)["web"]
    assert dict(vm.facts) == {"pve:vmid": "101", "pve:tags": "a;b"}
    assert asker.asked[0][1] == f"{qemu_host.run_dir}/101.qmp"


def test_a_new_epoch_begins_without_the_last_ones_counters(qemu_host, asker, poller, run):
    bare(qemu_host, 500, "one", "-uuid 57500000-0000-4000-8000-000000000001")
    first = run(3)["one"]
    qemu_host.state(500, "S", start=2000)
    second = run(3)["one"]
    assert (first.uuid, first.epoch != second.epoch) == (second.uuid, True)
    assert reading(poller, first) is Reason.VM_STARTING
    assert isinstance(reading(poller, second), DiskReading)
    qemu_host.end(500)
    run(3)
    assert reading(poller, second) is Reason.VM_STARTING


def test_before_the_first_poll_a_vm_is_starting(qemu_host, finder, poller):
    bare(qemu_host, 500, "one")
    poller.watch(finder.vms(()))
    assert reading(poller, finder.vms(())[0]) is Reason.VM_STARTING
    assert poller.step() > 0


def test_without_vms_nothing_is_asked(poller, asker):
    poller.watch([])
    assert poller.step() == 60 * S
    assert asker.asked == []


def test_the_thread_survives_a_defect_and_ends(qemu_host, finder, caplog):
    asked = threading.Event()
    calls = []

    def broken(*_arguments, **_keywords):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a defect")
        asked.set()
        return {"query-blockstats": [stats("scsi0", 5)]}

    for pid in (500, 600):
        bare(qemu_host, pid, f"vm{pid}")
    poller = Poller(finder, ProxmoxConfig(str(qemu_host.folder)), 10 * S, asker=broken)
    poller.start()
    poller.watch(finder.vms(()))
    assert asked.wait(20)
    poller.stop()
    poller.stop()
    assert "asking it failed: RuntimeError('a defect'); please report this" in caplog.text
    assert not [t for t in threading.enumerate() if t.name == "qemu-qmp"]
    poller.start()  # a source may be opened again
    poller.stop()


def test_a_poll_that_hangs_does_not_hold_up_the_end(qemu_host, finder):
    hangs = threading.Event()
    inside = threading.Event()

    def ask(*_arguments, **_keywords):
        inside.set()
        hangs.wait(30)
        return {}

    bare(qemu_host, 500, "one")
    poller = Poller(finder, ProxmoxConfig(str(qemu_host.folder)), 10 * S, asker=ask, deadline_s=0.05)
    poller.start()
    poller.watch(finder.vms(()))
    assert inside.wait(20)
    before = time.monotonic()
    poller.stop()
    assert time.monotonic() - before < 20
    hangs.set()


def test_a_vm_that_comes_while_the_thread_decides_to_pause_is_asked_at_once(qemu_host, finder):
    """It decided on what it saw before; the wake-up must not be lost between that and the pause."""
    asked = threading.Event()

    def ask(*_arguments, **_keywords):
        asked.set()
        return {"query-blockstats": []}

    poller = Poller(finder, ProxmoxConfig(str(qemu_host.folder)), 10 * S, asker=ask)
    bare(qemu_host, 500, "one")
    step = poller.step
    steps = []

    def slow_step():
        pause_ns = step()
        steps.append(1)
        if len(steps) == 1:
            poller.watch(finder.vms(()))
            return 3600 * S
        return pause_ns

    poller.step = slow_step
    poller.start()
    try:
        assert asked.wait(20)
    finally:
        poller.stop()


def test_a_wake_up_between_pause_and_step_is_not_lost(qemu_host, finder):
    """Of a pause that ended by time: what comes before the flag is lowered is seen by the step that follows."""
    poller = Poller(finder, ProxmoxConfig(str(qemu_host.folder)), 10 * S)
    order = []

    class Wake(threading.Event):
        def clear(self):
            order.append("clear")
            super().clear()

        def wait(self, timeout=None):
            order.append("wait")
            turn.ended.set()
            return True

    turn = poller_module._Turn(wake=Wake())
    poller.step = lambda: order.append("step") or 0
    poller._run(turn)
    assert order == ["clear", "step", "wait", "clear"]


def test_after_a_hung_poll_a_new_start_asks_again(qemu_host, finder):
    goes_on, inside, asked = threading.Event(), threading.Event(), threading.Event()

    def ask(*_arguments, **_keywords):
        if not inside.is_set():
            inside.set()
            goes_on.wait(30)
        else:
            asked.set()
        return {"query-blockstats": []}

    for pid in (500, 600):
        bare(qemu_host, pid, f"vm{pid}")
    poller = Poller(finder, ProxmoxConfig(str(qemu_host.folder)), S // 10, asker=ask, deadline_s=0.05)
    poller.start()
    poller.watch(finder.vms(()))
    assert inside.wait(20)
    poller.stop()
    poller.start()
    assert asked.wait(20)
    goes_on.set()
    poller.stop()
    for thread in threading.enumerate():
        if thread.name == "qemu-qmp":
            thread.join(20)
            assert not thread.is_alive()
