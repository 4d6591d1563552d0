"""What a VM, or somebody with its rights, can write where the agent reads: it costs that VM at most."""

import contextlib
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.base import MAX_PID
from collector.inventory.inventory import Inventory
from collector.inventory.process_watch import ProcessWatch
from collector.inventory.status_file import StatusError, parse_status
from collector.qemu.qmp import parse_blockstats, parse_devices, parse_state, parse_tids
from whitepanda.common.files.bounded import read_bounded

STATUS = (
    "<domstatus pid='{pid}'><vcpus><vcpu id='0' pid='{tid}'/></vcpus>"
    "<domain type='kvm'><name>a</name><uuid>u</uuid></domain></domstatus>"
)
NUMBERS = {"rd_bytes": 1, "wr_bytes": 2, "rd_operations": 3, "wr_operations": 2**64 - 1}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@pytest.fixture
def inventory(host):
    return Inventory(str(host.state), str(host.proc))


@pytest.mark.parametrize("number", [MAX_PID + 1, 2**31, 2**63, 2**70, -1])
def test_an_absurd_process_or_thread_id_is_none(number):
    for fields in ({"pid": number, "tid": 2}, {"pid": 1, "tid": number}):
        with pytest.raises(StatusError, match="is invalid"):
            parse_status(STATUS.format(**fields).encode())
    assert parse_status(STATUS.format(pid=MAX_PID, tid=MAX_PID).encode()).vcpu_tids == (MAX_PID,)


def test_a_number_that_no_process_can_have_is_not_watched():
    assert ProcessWatch().add(2**70) is None


def test_a_status_file_that_is_absurd_or_none_costs_no_other_vm(host, inventory):
    host.vm("a", 10, [11])
    (host.state / "absurd.xml").write_text(STATUS.format(pid=2**70, tid=1))
    os.mkfifo(host.state / "pipe.xml")
    (host.state / "folder.xml").mkdir()
    with (host.state / "large.xml").open("wb") as file:
        file.truncate(1 << 40)
    status = STATUS.format(pid=12, tid=13).encode()
    (host.state / "a_byte_more.xml").write_bytes(status.ljust((2 << 20) + 1))
    (host.state / "ring.xml").symlink_to("ring.xml")
    assert inventory.probe().available
    assert [vm.name for vm in inventory.vms()] == ["a"]
    assert parse_status(status.ljust(2 << 20)).pid == 12


@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: f"<domstatus>{text}</domstatus>".encode()))
def test_any_bytes_are_a_status_or_a_clear_error(content):
    with contextlib.suppress(StatusError):
        parse_status(content)


@pytest.mark.parametrize("encoding", ["x-none", "utf-7", "utf-32", "cp037", "shift_jis"])
def test_a_status_file_of_a_strange_encoding_is_a_clear_error(encoding):
    with pytest.raises(StatusError):
        parse_status(f"<?xml version='1.0' encoding='{encoding}'?><domstatus/>".encode())


@pytest.mark.parametrize(
    "wrong", ["1e400", "NaN", "-Infinity", "-1", str(2**64), "1.5", "true", "null", '"7"', "[]", "9" * 300]
)
def test_a_counter_of_qmp_that_is_none_is_a_clear_error(wrong):
    good = json.dumps([{"node-name": "n", "device": "d", "stats": NUMBERS}])
    assert parse_blockstats(json.loads(good))["d"].write_ops == 2**64 - 1
    with pytest.raises(ValueError, match="rd_bytes is not a counter"):
        parse_blockstats(json.loads(good.replace('"rd_bytes": 1', f'"rd_bytes": {wrong}')))


@given(ANYTHING)
def test_any_answer_of_qmp_is_used_or_a_clear_error(answer):
    parse_state(answer)
    parse_devices(answer)
    assert all(0 < tid <= MAX_PID for tid in parse_tids(answer))
    with contextlib.suppress(ValueError):
        parse_blockstats(answer)


def test_a_thread_of_qmp_that_no_thread_can_be_is_left_out():
    cpus = [{"cpu-index": 0, "thread-id": 2**70}, {"cpu-index": 1, "thread-id": MAX_PID}]
    assert parse_tids(cpus) == (MAX_PID,)


def test_only_a_regular_file_within_the_bound_is_read(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    assert read_bounded(file, 100) == b"x" * 100
    with pytest.raises(OSError, match="larger than"):
        read_bounded(file, 99)
    with pytest.raises(OSError, match="larger than"):
        read_bounded("/proc/self/status", 10)
    for path in (tmp_path, "/dev/zero"):
        with pytest.raises(OSError, match=r"directory|regular"):
            read_bounded(path, 10)
