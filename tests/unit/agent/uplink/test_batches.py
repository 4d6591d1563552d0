import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config import WindowClass, WindowsSection
from agent.sampling.windows import CpiWindow
from agent.uplink.batches import encode, pieces, problem_of
from agent.uplink.outgoing import Outgoing
from collector.base import Reason
from whitepanda.common.protocol import or_nan
from whitepanda.common.window_columns import BY_NUMBER
from whitepanda.v1 import agent_pb2


def window(**changes):
    values = {
        "vm": "u1",
        "epoch": "e1",
        "name": "web-1",
        "job": "web",
        "latency_sensitive": True,
        "start_unix_ns": 1_700_000_000_000_000_000,
        "duration_ns": 10_000_000_000,
        "cpu_usage_cores": 1.5,
        "cpi": 1.25,
    }
    return CpiWindow(**(values | changes))


def test_columns_and_tasks():
    batch = encode([window(), window(vm="u2", job="db"), window(start_unix_ns=7)], spool_id="s", sequence=3)
    assert (batch.spool_id, batch.sequence, batch.backlog) == ("s", 3, False)
    assert [(t.vm, t.epoch, t.name, t.job, t.latency_sensitive) for t in batch.tasks] == [
        ("u1", "e1", "web-1", "web", True),
        ("u2", "e1", "web-1", "db", True),
    ]
    assert list(batch.task_index) == [0, 1, 0]
    assert list(batch.start_unix_ns) == [1_700_000_000_000_000_000, 1_700_000_000_000_000_000, 7]
    assert list(batch.duration_ns) == [10_000_000_000]  # of all rows
    assert list(batch.cpu_usage_cores) == [1.5] * 3
    assert list(batch.cpi) == [1.25] * 3


def test_what_nobody_measured_has_no_column():
    batch = encode([window(cpi=None), window(cpi=None)], spool_id="s", sequence=1)
    assert (len(batch.cpi), len(batch.metrics.numbers), len(batch.reasons)) == (0, 0, 0)


def test_a_single_unknown_value_is_not_zero():
    rows = [
        window(metrics={"cycles": 5, "disk_read_bytes_per_s": 0.0}),
        window(vm="u2", cpi=None, metrics={"disk_read_bytes_per_s": Reason.STALE, "memory_stall_ratio": 0.25}),
    ]
    batch = encode(rows, spool_id="s", sequence=1)
    columns = columns_of(batch)
    assert batch.cpi[0] == 1.25
    assert math.isnan(batch.cpi[1])
    nan = pytest.approx(math.nan, nan_ok=True)
    assert columns == {"cycles": [5, nan], "memory_stall_ratio": [nan, 0.25], "disk_read_bytes_per_s": [0, nan]}


def columns_of(batch):
    """The columns of a batch's metrics by name."""
    rows, values = len(batch.task_index), list(batch.metrics.values)
    assert len(values) == rows * len(batch.metrics.numbers)
    return {
        BY_NUMBER[number].name: values[place * rows : (place + 1) * rows]
        for place, number in enumerate(batch.metrics.numbers)
    }


def told(windows, outgoing):
    batch = encode(outgoing.prepare(windows), spool_id="s", sequence=1)
    return {
        (batch.tasks[one.task_index].vm, BY_NUMBER[number].name): one.reason
        for one in batch.reasons
        for number in one.metrics
    }


def test_reasons_are_sent_when_they_change_and_all_after_a_restart():
    outgoing = Outgoing(WindowsSection())
    idle = window(cpi=None, cpi_reason=Reason.IDLE, metrics={"gips": 0.1, "llc_occupancy_bytes": Reason.NO_RDT})
    first = {("u1", "cpi"): Reason.IDLE, ("u1", "llc_occupancy_bytes"): Reason.NO_RDT}
    assert told([idle], outgoing) == first
    assert told([idle], outgoing) == {}
    busy = window(metrics={"gips": 0.1, "llc_occupancy_bytes": Reason.NO_RMID})
    assert told([busy], outgoing) == {("u1", "cpi"): 0, ("u1", "llc_occupancy_bytes"): Reason.NO_RMID}
    assert told([idle], outgoing) == first
    outgoing.restart()
    assert told([idle], outgoing) == first
    assert told([replace(idle, epoch="e2")], outgoing) == first  # it began anew


def test_only_chosen_metrics_are_sent_by_class():
    section = WindowsSection(
        batch=WindowClass(metrics=("gips", "cpi")), latency_sensitive=WindowClass(metrics=("gips",))
    )
    outgoing = Outgoing(section)
    values = {"gips": 0.1, "llc_mpki": 1.0, "l2_mpki": Reason.NO_EVENT}
    both = [window(metrics=values), window(vm="u2", latency_sensitive=False, metrics=values)]
    sensitive, batch = outgoing.prepare(both)
    assert (sensitive.cpi, sensitive.metrics, sensitive.new_reasons) == (None, {"gips": 0.1}, {})
    assert (batch.cpi, batch.metrics, batch.new_reasons) == (1.25, {"gips": 0.1}, {})


def test_no_windows_is_an_empty_batch():
    assert len(encode([], spool_id="s", sequence=1).task_index) == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.none() | st.floats(0.1, 50),
            st.just(Reason.STALE) | st.floats(0, 2.0**40, width=32),
            st.just(Reason.STALE) | st.floats(0, 2.0**40, width=32),
        ),
        max_size=20,
    )
)
def test_every_column_has_a_value_per_row_and_none_is_lost(rows):
    windows = [window(vm=vm, cpi=cpi, metrics={"gips": gips, "verdict": verdict}) for vm, cpi, gips, verdict in rows]
    batch = type(encode([], spool_id="s", sequence=1)).FromString(
        encode(windows, spool_id="s", sequence=1).SerializeToString()
    )
    columns = columns_of(batch)
    for index, (vm, cpi, gips, verdict) in enumerate(rows):
        assert batch.tasks[batch.task_index[index]].vm == vm
        assert (batch.cpi[index] if len(batch.cpi) else math.nan) == pytest.approx(or_nan(cpi), nan_ok=True)
        for name, value in (("gips", gips), ("verdict", verdict)):
            expected = math.nan if isinstance(value, Reason) else value
            assert columns.get(name, [math.nan] * len(rows))[index] == pytest.approx(expected, nan_ok=True)


def test_facts_go_along_once_with_the_first_batch():
    vm, host = agent_pb2.VmFacts(vm="u1", vcpus=2), agent_pb2.HostFacts(cpus=8)
    made = [
        agent_pb2.CpiBatch.FromString(data)
        for _, _, data in pieces([[window()], [window()]], "s", 1, 10**6, [vm, host])
    ]
    assert [list(batch.vm_facts) for batch in made] == [[vm], []]
    assert [batch.HasField("host_facts") for batch in made] == [True, False]
    assert made[0].host_facts == host
    assert not problem_of(vm)
    assert not problem_of(host)
