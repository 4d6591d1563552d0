import contextlib
import errno
import logging
import os
import threading
import time
from pathlib import Path

import pytest

from collector.base import Reason, SourceError
from collector.inventory.inventory import Inventory
from tests.support.waiting import wait_until


@pytest.fixture
def inventory(host):
    return Inventory(str(host.state), str(host.proc))


def names(inventory):
    return [vm.name for vm in inventory.vms()]


def test_vms_by_name_with_epochs_of_their_process(host, inventory):
    host.vm("b", 20, [21, 22], start=500)
    host.vm("a", 10, [11], kind="qemu", state="paused")
    a, b = inventory.vms()
    assert (a.name, a.uuid, a.pid, a.vcpus, a.state, a.accelerator) == ("a", host.uuid_of("a"), 10, 1, "paused", "tcg")
    assert (b.name, b.vcpu_tids, b.accelerator) == ("b", (21, 22), "kvm")
    assert (a.epoch, b.epoch) == ("111111112222-1000", "111111112222-500")


def test_a_vm_of_openstack_nova_is_known_from_one_of_libvirt_alone(host, inventory):
    nova = "<metadata><n:instance xmlns:n='http://openstack.org/xmlns/libvirt/nova/1.1'/></metadata>"
    host.vm("a", 10, [11], extra=nova)
    host.vm("b", 20, [21])
    assert [(vm.manager, vm.by_libvirt) for vm in inventory.vms()] == [("nova", True), ("libvirt", True)]


def test_an_unknown_type_of_domain_is_recognised_by_its_threads_names(host, inventory):
    host.vm("a", 10, [11], kind="xen")
    (host.proc / "10/task/11/comm").write_text("CPU 0/TCG\n")
    assert inventory.vms()[0].accelerator == "tcg"


def test_a_restart_is_a_new_epoch_even_with_the_same_process_id(host, inventory):
    host.vm("a", 10, [11], start=1000)
    first = inventory.vms()[0].epoch
    host.stat(host.proc / "10/stat", pid=10, comm="qemu", start=2000)
    assert inventory.vms()[0].epoch != first
    host.vm("a", 30, [31], start=3000)
    assert len({first, inventory.vms()[0].epoch, "111111112222-2000"}) == 3


def test_a_reboot_of_the_host_is_a_new_epoch(host):
    host.vm("a", 10, [11])
    before = Inventory(str(host.state), str(host.proc)).vms()[0].epoch
    (host.proc / "sys/kernel/random/boot_id").write_text("99999999-2222-3333-4444-555555555555\n")
    assert Inventory(str(host.state), str(host.proc)).vms()[0].epoch != before


def test_stale_files_are_no_vms(host, inventory):
    host.vm("alive", 10, [11])
    host.status("dead", 40)  # no such process
    host.vm("zombie", 50)
    host.stat(host.proc / "50/stat", pid=50, comm="qemu", state="Z")
    host.status("reused", 10)  # the process is another VM's
    assert names(inventory) == ["alive"]


def test_a_vm_that_dies_is_gone_and_comes_back(host, inventory):
    host.vm("a", 10, [11])
    assert names(inventory) == ["a"]
    (host.proc / "10/stat").unlink()
    assert names(inventory) == []
    host.vm("a", 60, [61])
    assert names(inventory) == ["a"]
    (host.state / "a.xml").unlink()
    assert names(inventory) == []


def test_a_vm_that_is_starting_has_no_vcpu_threads_yet(host, inventory):
    host.vm("a", 10)
    assert inventory.vms()[0].vcpus == 0
    host.status("a", 10, [11, 12])
    assert inventory.vms()[0].vcpu_tids == (11, 12)


def test_hotplug_changes_the_threads_and_not_the_epoch(host, inventory):
    host.vm("a", 10, [11])
    first = inventory.vms()[0]
    host.status("a", 10, [11, 15])
    second = inventory.vms()[0]
    assert (first.vcpu_tids, second.vcpu_tids) == ((11,), (11, 15))
    assert first.epoch == second.epoch


def test_a_malformed_file_costs_only_its_vm_and_one_warning(host, inventory, caplog):
    host.vm("good", 10, [11])
    (host.state / "bad.xml").write_text("<domstatus")
    with caplog.at_level(logging.WARNING, "whitepanda"):
        for _ in range(5):
            assert names(inventory) == ["good"]
    assert [record.getMessage().split(": ")[0] for record in caplog.records] == [str(host.state / "bad.xml")]
    host.vm("bad", 20, [21])
    assert names(inventory) == ["bad", "good"]


def test_a_file_that_cannot_be_read_warns_once_and_is_tried_again(host, inventory, monkeypatch, caplog):
    host.vm("a", 10, [11])

    def denied(path, _most):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "whitepanda"):
        patch.setattr("collector.inventory.inventory.read_bounded", denied)
        for _ in range(3):
            assert inventory.vms() == ()
    said = f"{host.state / 'a.xml'}: Permission denied; this VM is not measured"
    assert [record.getMessage() for record in caplog.records] == [said]
    assert names(inventory) == ["a"]


def test_an_unchanged_file_is_not_parsed_again(host, inventory, monkeypatch):
    host.vm("a", 10, [11])
    first = inventory.vms()[0]
    parsed = []
    monkeypatch.setattr("collector.inventory.inventory.parse_status", parsed.append)
    assert inventory.vms()[0] is first
    assert parsed == []


def test_a_folder_that_does_not_exist_yet_is_a_host_without_vms(host, tmp_path):
    inventory = Inventory(str(tmp_path / "none"), str(host.proc))
    assert inventory.vms() == ()
    assert inventory.probe().available


def test_probe_says_what_cannot_be_read(host, inventory, monkeypatch):
    host.vm("a", 10, [11])
    assert inventory.probe().available

    def denied(path, _most):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("collector.inventory.inventory.read_bounded", denied)
    probe = inventory.probe()
    assert (probe.available, probe.reason) == (False, Reason.NO_PERMISSION)
    assert probe.detail == f"{host.state / 'a.xml'}: Permission denied; run the agent as root"


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.EACCES, Reason.NO_PERMISSION), (errno.EMFILE, Reason.FD_LIMIT), (errno.EIO, Reason.SOURCE_FAILED)],
)
def test_a_folder_that_cannot_be_listed_is_an_error_not_a_host_without_vms(inventory, monkeypatch, number, reason):
    def fail(_path):
        raise OSError(number, "said so")

    monkeypatch.setattr(Path, "iterdir", fail)
    with pytest.raises(SourceError, match="said so; run the agent as root") as caught:
        inventory.vms()
    assert caught.value.reason is reason


def test_lack_of_file_descriptors_makes_no_vm_vanish(host, inventory, monkeypatch):
    host.vm("a", 10, [11])
    before = inventory.vms()

    def fail(_path):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", fail)
    assert inventory.vms() == before


@pytest.fixture
def wedge(host):
    """Make the command line of a process one that cannot be read: a pipe that nobody writes."""
    pipes = []

    def make(pid):
        pipe = host.proc / str(pid) / "cmdline"
        text = pipe.read_bytes()
        pipe.unlink()
        os.mkfifo(pipe)
        pipes.append(pipe)

        def go_on():
            pipe.write_bytes(text)

        return go_on

    yield make
    for pipe in pipes:
        with contextlib.suppress(OSError):  # its reader is gone
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


def test_a_wedged_process_costs_only_its_vm_until_it_continues(host, inventory, wedge, caplog):
    host.vm("good", 10, [11])
    host.vm("hung", 20, [21])
    host.vm("later", 30, [31])
    go_on = wedge(20)
    assert names(inventory)[0] == "good"
    wait_until(lambda: names(inventory) == ["good", "later"])
    assert caplog.text.count("20/cmdline: reading it hangs; this VM is not measured until it continues") == 1
    host.status("hung", 20, [21, 22])  # libvirt replaces the file: it continues waiting for the same answer
    assert names(inventory) == ["good", "later"]
    assert len([t for t in threading.enumerate() if t.name == "cmdline"]) == 1
    go_on()
    wait_until(lambda: len(names(inventory)) == 3)
    assert [vm.vcpu_tids for vm in inventory.vms() if vm.name == "hung"] == [(21, 22)]


def test_a_known_vm_that_becomes_wedged_stays_even_when_its_file_changes(host, inventory, wedge):
    host.vm("a", 10, [11])
    assert names(inventory) == ["a"]
    wedge(10)
    host.status("a", 10, [11, 12])
    assert inventory.vms()[0].vcpu_tids == (11, 12)
    assert not [t for t in threading.enumerate() if t.name == "cmdline"]


def test_so_many_may_hang(host, inventory, wedge, monkeypatch, caplog):
    monkeypatch.setattr("collector.inventory.inventory._PATIENCE_S", 0.05)
    monkeypatch.setattr("collector.inventory.inventory._MAX_HUNG", 2)
    for number in range(4):
        host.vm(f"vm{number}", 10 + number, [])
        wedge(10 + number)
    for _ in range(2):
        assert names(inventory) == []
    assert len([t for t in threading.enumerate() if t.name == "cmdline"]) == 2
    assert caplog.text.count("cmdline: not read, because reading others hangs; this VM is not measured") == 2


def test_without_a_thread_left_known_vms_stay(host, inventory, monkeypatch, caplog):
    host.vm("a", 10, [11])
    assert names(inventory) == ["a"]

    def full(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    host.vm("b", 20, [21])
    for _ in range(2):
        assert names(inventory) == ["a"]
    assert caplog.text.count("20/cmdline: can't start new thread; raise the agent's TasksMax") == 1
    monkeypatch.undo()
    assert names(inventory) == ["a", "b"]


def test_a_quiet_folder_that_could_not_be_listed_is_an_error_again(host, inventory, monkeypatch):
    """Never the old list, nor that of a host without VMs, for as long as a quiet folder is believed."""
    host.vm("a", 10, [11])
    os.utime(host.state, ns=(0, time.time_ns() - 5 * 10**9))

    def fail(_path):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "iterdir", fail)
    for _ in range(2):
        with pytest.raises(SourceError, match="Too many open files"):
            inventory.vms()
    monkeypatch.undo()
    assert names(inventory) == ["a"]


def test_threads_may_ask_at_once(host, inventory):
    for number in range(10):
        host.vm(f"vm{number}", 100 + number, [200 + number])
    found = []
    threads = [threading.Thread(target=lambda: found.extend(inventory.vms() for _ in range(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    assert len(set(map(len, found))) == 1


def test_a_young_list_is_given_again(host, monkeypatch):
    now_ns = 10**12
    monkeypatch.setattr("collector.inventory.inventory.time.monotonic_ns", lambda: now_ns)
    inventory = Inventory(str(host.state), str(host.proc), fresh_s=0.04)
    assert inventory.vms() == ()
    host.vm("a", 10, [11])
    now_ns += 39_999_999
    assert inventory.vms() == ()
    now_ns += 1
    listed = inventory.vms()
    assert [vm.name for vm in listed] == ["a"]
    assert inventory.vms() is listed


def test_a_quiet_folder_is_not_read_again_until_it_changes(host, inventory, monkeypatch):
    host.vm("a", 10, [11])
    os.utime(host.state, ns=(0, time.time_ns() - 5 * 10**9))
    scans = []
    scan = inventory._state_files
    monkeypatch.setattr(inventory, "_state_files", lambda: scans.append(1) or scan())
    for _ in range(5):
        assert names(inventory) == ["a"]
    assert len(scans) == 1
    host.vm("b", 20, [21])  # the folder's mtime is now: read at each call for a second
    assert names(inventory) == ["a", "b"]
    host.vm("c", 30, [31])
    assert names(inventory) == ["a", "b", "c"]
    (host.proc / "10/stat").unlink()  # that a process lives is looked at whether or not the folder changed
    os.utime(host.state, ns=(0, time.time_ns() - 5 * 10**9))
    assert names(inventory) == ["b", "c"]
    inventory._scanned_ns -= 11 * 10**9
    done = len(scans)
    names(inventory)
    assert len(scans) == done + 1  # once in ten seconds whatever the mtime says
