import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.proc_parse import (
    NS_PER_TICK,
    parse_cpu_list,
    parse_flat,
    parse_host_stat,
    parse_io_stat,
    parse_life,
    parse_pressure,
    parse_process_io,
    parse_runs,
    parse_schedstat,
    parse_task_stat,
)

# A QEMU vCPU thread of a KVM guest: utime 6847, stime 214, start 154917, guest_time 6800.
FIELDS = (
    "21734 ({comm}) {state} 1 21727 21727 0 -1 138412224 7278 0 0 0 {utime} {stime} 0 0 20 0 6 0 {start} 1749921792 "
    "61625 18446744073709551615 94120495415296 94120501275733 140720 0 0 0 268444224 4096 16963 0 0 0 -1 1 0 0 0 "
    "{guest} 0 94120503 94120504 94120505 140720 140721 140722 140723 0\n"
)
TICKS = st.integers(0, 2**64 - 1)


def line(*, comm="CPU 0/KVM", state="S", utime=6847, stime=214, start=154917, guest=6800) -> bytes:
    text = FIELDS.format(comm=comm, state=state, utime=utime, stime=stime, start=start, guest=guest)
    return text.encode("utf-8", "surrogateescape")


def test_task_stat():
    stat = parse_task_stat(line())
    assert stat.comm == "CPU 0/KVM"
    assert (stat.utime_ticks, stat.stime_ticks, stat.start_ticks, stat.guest_ticks) == (6847, 214, 154917, 6800)
    assert stat.alive


@pytest.mark.parametrize(("state", "alive"), [("R", True), ("D", True), ("Z", False), ("X", False)])
def test_zombies_are_not_alive(state, alive):
    assert parse_task_stat(line(state=state)).alive is alive


@given(
    comm=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=15),
    utime=TICKS,
    stime=TICKS,
    start=TICKS,
    guest=TICKS,
)
def test_any_command_name_leaves_the_numbers_alone(comm, utime, stime, start, guest):
    stat = parse_task_stat(line(comm=comm, utime=utime, stime=stime, start=start, guest=guest))
    assert stat.comm == comm
    assert (stat.utime_ticks, stat.stime_ticks, stat.start_ticks, stat.guest_ticks) == (utime, stime, start, guest)


@pytest.mark.parametrize("comm", [") S 1 (", "a b) R 9 9", "((", "))", ""])
def test_parentheses_and_spaces_in_the_name(comm):
    assert parse_task_stat(line(comm=comm)).start_ticks == 154917


@given(st.binary(max_size=400))
def test_anything_else_is_a_value_error(text):
    with contextlib.suppress(ValueError):
        parse_task_stat(text)


@given(st.integers(1, 40))
def test_a_cut_line_is_a_value_error(fields):
    with pytest.raises(ValueError, match="fields, 43 are needed"):
        parse_task_stat(b" ".join(line().split(b" ")[: fields + 2]))  # the name has a space


@given(TICKS, TICKS, TICKS)
def test_schedstat(cpu_ns, wait_ns, slices):
    assert parse_schedstat(f"{cpu_ns} {wait_ns} {slices}\n".encode()) == (cpu_ns, wait_ns)


@pytest.mark.parametrize("text", [b"", b"1 2\n", b"1 2 3 4\n", b"a b c\n"])
def test_malformed_schedstat(text):
    with pytest.raises(ValueError):  # noqa: PT011 - the number's own message
        parse_schedstat(text)


HOST = b"""cpu  101053 30 12675 330435 1038 7 8 121 9000 20
cpu0 50000 15 6000 165000 500 3 4 60 4500 10
cpu1 51053 15 6675 165435 538 4 4 61 4500 10
intr 123 4 5
ctxt 99
"""


def test_host_stat_takes_the_guests_time_out_of_the_users():
    host = parse_host_stat(HOST)
    assert host.cpus == 2
    assert host.user_ns == (101053 + 30 - 9000 - 20) * NS_PER_TICK
    assert host.guest_ns == 9020 * NS_PER_TICK
    assert host.system_ns == (12675 + 7 + 8) * NS_PER_TICK
    assert (host.idle_ns, host.iowait_ns) == (330435 * NS_PER_TICK, 1038 * NS_PER_TICK)
    assert host.steal_ns == 121 * NS_PER_TICK


def test_host_stat_of_an_old_kernel_has_fewer_columns():
    host = parse_host_stat(b"cpu 10 0 20 30\ncpu0 10 0 20 30\n")
    assert (host.user_ns, host.guest_ns, host.steal_ns) == (10 * NS_PER_TICK, 0, 0)


@pytest.mark.parametrize("text", [b"", b"intr 1\n", b"cpu 1 2\n", b"cpu a b c d\n"])
def test_malformed_host_stat(text):
    with pytest.raises(ValueError):  # noqa: PT011 - as above
        parse_host_stat(text)


PRESSURE = "some avg10=0.00 avg60=0.12 avg300=0.02 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"


@given(TICKS, TICKS)
def test_pressure(some_us, full_us):
    assert parse_pressure(PRESSURE.format(some_us, full_us).encode()) == (some_us * 1000, full_us * 1000)


def test_pressure_of_a_kernel_that_has_some_only():
    assert parse_pressure(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n") == (7000, None)
    assert parse_pressure(b"") == (None, None)


@pytest.mark.parametrize("text", [b"some\n", b"some total=x\n", b"\n"])
def test_malformed_pressure(text):
    with pytest.raises(ValueError):  # noqa: PT011 - as above
        parse_pressure(text)


def test_flat():
    assert parse_flat(b"nr_periods 5\nthrottled_time 60\n") == {b"nr_periods": 5, b"throttled_time": 60}
    for text in (b"nr_periods\n", b"a b\n", b"a 1 2\n"):
        with pytest.raises(ValueError):  # noqa: PT011 - as above
            parse_flat(text)


def test_process_io():
    text = b"rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\ncancelled_write_bytes: 7\n"
    assert parse_process_io(text) == (5, 6)
    for bad in (b"", text.replace(b"read_bytes", b"other"), text[:60]):
        with pytest.raises(ValueError, match="not a process's io"):
            parse_process_io(bad)


def test_io_stat():
    text = b"8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n253:0 cost.usage=3\n7:1\n"
    assert parse_io_stat(text) == {"8:0": (10, 20), "253:0": (0, 0), "7:1": (0, 0)}
    with pytest.raises(ValueError):  # noqa: PT011 - as above
        parse_io_stat(b"8:0 rbytes=x\n")


def test_the_last_cpu_is_field_39():
    assert parse_task_stat(line()).last_cpu == 1


@given(st.text(max_size=20), st.sampled_from("RSDZTtXxI"), st.integers(0, 1 << 63))
def test_the_short_look_at_a_process_reports_what_the_long_one_does(comm, state, start):
    text = f"7 ({comm}) {state} {'1 ' * 18}{start} {'2 ' * 30}\n".encode()
    whole = parse_task_stat(text)
    assert parse_life(text) == (whole.alive, str(whole.start_ticks).encode())


@pytest.mark.parametrize("text", [b"", b"nonsense", b"7 (qemu) S 1 1", b"7 (qemu) S " + b"x " * 40])
def test_the_short_look_refuses_what_is_no_stat_line(text):
    with pytest.raises(ValueError, match="not a stat line"):
        parse_life(text)


@given(st.text(st.characters(max_codepoint=127, exclude_characters="\0"), max_size=15), st.sampled_from("RSDZTtXxI"))
def test_the_state_alone_is_what_the_whole_line_reports(comm, state):
    text = line(comm=comm, state=state)
    assert parse_runs(text[:128]) == parse_runs(text) == (parse_task_stat(text).state == "R")


def test_a_name_cannot_pass_for_the_state():
    assert parse_runs(b"11 (a) S) R 1 1 1 0") is True
    assert parse_runs(b"11 (a) R) S 1 1 1 0") is False


@pytest.mark.parametrize("text", [b"", b"R", b"nonsense", b"11 (CPU 0/KVM", b"11 (CPU 0/KVM) ", b"11 (CPU 0/KVM) 1"])
def test_a_line_without_a_state_is_refused(text):
    with pytest.raises(ValueError, match="no state"):
        parse_runs(text)


@given(st.sets(st.integers(0, 4095), max_size=50))
def test_cpu_lists(cpus):
    assert parse_cpu_list(",".join(map(str, sorted(cpus)))) == sorted(cpus)
    assert parse_cpu_list("0-3,8\n") == [0, 1, 2, 3, 8]
    with pytest.raises(ValueError, match="invalid literal"):
        parse_cpu_list("0-x")
