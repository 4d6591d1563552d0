"""Watches of real processes."""

import errno
import os
import subprocess
import sys

import pytest

from collector.inventory.inventory import Inventory
from collector.inventory.process_watch import ProcessWatch
from tests.support.open_files import open_files
from tests.support.waiting import wait_until


@pytest.fixture
def sleeper():
    """Start processes that sleep; their first argument is given."""
    started = []

    def start(argument: str) -> subprocess.Popen:
        program = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()", argument]
        process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == b"up\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_process_that_ended_is_reported_until_it_is_dropped(sleeper):
    watch = ProcessWatch()
    one, other = sleeper("one"), sleeper("other")
    watches = [watch.add(one.pid), watch.add(other.pid)]
    assert None not in watches
    assert watch.ended() == frozenset()
    one.kill()
    wait_until(lambda: watch.ended() == {watches[0]})  # a zombie: nobody has waited for it
    assert watch.ended() == {watches[0]}
    watch.drop(watches[0])
    watch.drop(None)
    assert watch.ended() == frozenset()


def test_what_cannot_be_watched_has_to_be_looked_at(sleeper, monkeypatch):
    one = sleeper("one")
    assert ProcessWatch("/elsewhere").add(one.pid) is None
    watch = ProcessWatch()
    assert watch.add(2**22 + 1) is None  # nobody's number
    watch._most = 1
    assert watch.add(one.pid) is not None
    assert watch.add(one.pid) is None

    def refuse(_pid):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert ProcessWatch().add(one.pid) is None


def test_a_watched_vm_costs_no_reading_and_is_gone_at_once(host, sleeper, monkeypatch):
    process = sleeper(host.uuid_of("a"))
    host.status("a", process.pid, [process.pid])
    inventory = Inventory(str(host.state), "/proc")
    (first,) = inventory.vms()
    reads = []
    monkeypatch.setattr("collector.inventory.inventory.read_once", lambda path, _size: reads.append(path))
    assert inventory.vms() == (first,)
    assert reads == []
    process.kill()
    monkeypatch.undo()
    wait_until(lambda: inventory.vms() == ())


def test_a_watch_is_of_the_process_in_the_newest_file_and_closed_with_it(host, sleeper):
    before = open_files()
    one, other = sleeper(host.uuid_of("a")), sleeper(host.uuid_of("a"))
    pipes = len(open_files() - before)
    inventory = Inventory(str(host.state), "/proc")
    host.status("a", one.pid, [one.pid])
    assert [vm.pid for vm in inventory.vms()] == [one.pid]
    host.status("a", other.pid, [other.pid])
    assert [vm.pid for vm in inventory.vms()] == [other.pid]
    one.kill()
    assert [vm.pid for vm in inventory.vms()] == [other.pid]
    (host.state / "a.xml").unlink()
    assert inventory.vms() == ()
    assert len(open_files() - before) - pipes <= 1  # the epoll set


def test_a_process_of_someone_else_is_not_watched(host, sleeper):
    process = sleeper("not the VM")
    host.status("a", process.pid, [process.pid])
    inventory = Inventory(str(host.state), "/proc")
    assert inventory.vms() == ()
    assert all(entry.watch is None for entry in inventory._entries.values())
