"""Loading vectors of the live fleet: from the lake's windows, by the API and the command line."""

import asyncio
import json
import math
import sys

import numpy as np
import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from agent.sampling.windows import CpiWindow
from agent.uplink.batches import encode
from central.cli import place as place_cli
from central.config import PlacementSection
from central.lake.schema import SAMPLES
from central.lake.segments import Lake, segment_stem
from central.own_threads import SharedAnswer
from central.placement.capacity import Capacity, HostSize, Room, Sizes, VmSize
from central.placement.live import LiveFleet
from central.validation.samples import StoredBatch, samples_tables
from collector.base import Reason
from tests.unit.central.web.test_http_api import get, local, served  # noqa: F401 - fixtures
from whitepanda.common import fleets
from whitepanda.common.errors import InputError
from whitepanda.common.tls import TlsFiles

S = 10**9
NOW = 1_800_000_000 * S
CONFIG = PlacementSection(cpu_cores=4, disk_bytes_per_s=100.0, window_s=600, gone_s=120, refresh_s=30)


def window(host, vm, job, cpu, disk=None, *, ago_s=20, sequence=1):
    row = dict.fromkeys(SAMPLES.names)
    return row | {
        "host": host,
        "spool_id": f"spool-{host}",
        "sequence": sequence,
        "machine": host,
        "vm": vm,
        "epoch": "1",
        "job": job,
        "platform": "p",
        "latency_sensitive": False,
        "start_unix_ns": NOW - ago_s * S,
        "duration_ns": 10 * S,
        "cpu_usage_cores": cpu,
        "disk_read_bytes_per_s": disk if disk is None else disk / 4,
        "disk_write_bytes_per_s": disk if disk is None else disk * 3 / 4,
    }


# web: two VMs, one of them seen twice; one has no disk value. db runs on h2 alone, old has left, moved went h1 -> h2.
ROWS = [
    window("h1", "w1", "web", 1.0, 20.0, ago_s=40),
    window("h1", "w1", "web", 2.0, 40.0),
    window("h2", "w2", "web", 0.5),
    window("h2", "d1", "db", 0.25, 80.0),
    window("h1", "o1", "old", 4.0, 0.0, ago_s=400),
    window("h1", "m1", "moved", 1.0, 0.0, ago_s=90),
    window("h2", "m1", "moved", 1.0, 0.0),
    window("h1", "x1", "ancient", 9.0, 0.0, ago_s=700),
]


@pytest.fixture
def lake(tmp_path):
    made = Lake(tmp_path / "windows")
    made.write_segment(pa.Table.from_pylist(ROWS, SAMPLES), segment_stem("central-0", "0badcafe", 1))
    return made


def live(lake, config=CONFIG, clock=lambda: NOW):
    return LiveFleet(lake, config, lambda: ["h3", "h1"], clock)


def test_a_snapshot_by_hand(lake):
    found = live(lake).snapshot()
    assert (found.resources, found.hosts.names, found.vms) == (("cpu", "disk"), ("h1", "h2", "h3"), (1, 3, 0))
    assert found.hosts.units.tolist() == [[4.0, 1.0]] * 3
    # h1: w1 of 1.5 cores and 30 of 100 bytes per second; moved counts where it was last
    assert found.hosts.totals.tolist() == [[1.5, 0.3], [1.75, 0.8], [0.0, 0.0]]
    assert list(found.jobs) == ["db", "moved", "old", "web"]
    web = found.jobs["web"]
    assert (web.vms, web.windows) == (2, 3)
    assert web.loading.tolist() == [1.0, 0.3]  # means of VMs 1.5 and 0.5 cores; the disk of the one that has a value
    assert web.standard_error[0] == pytest.approx(0.5, rel=1e-12)
    assert math.isnan(web.standard_error[1])
    assert (found.since_unix_ns, found.until_unix_ns) == (NOW - 600 * S, NOW)


def test_ranking_by_hand(lake):
    found = live(lake).snapshot()
    ranking = found.rank(np.array([0.4, 0.5]), 10)
    assert [found.hosts.names[k] for k in ranking.order] == ["h3", "h1", "h2"]
    assert ranking.added == pytest.approx([0.4 * 1.5 / 4 + 0.5 * 0.3, 0.4 * 1.75 / 4 + 0.5 * 0.8, 0.0])
    # A VM of two busy cores suffers with shares of its time; the order stays.
    wide = found.rank(np.array([2.0, math.nan]), 10)
    assert wide.added == pytest.approx([1.5 / 4, 1.75 / 4, 0.0])


def test_an_answer_is_kept_for_a_while_and_resources_are_those_that_are_set(lake):
    times = iter([NOW, NOW + 29 * S, NOW + 31 * S])
    fleet = live(lake, clock=lambda: next(times))
    first = fleet.snapshot()
    assert fleet.snapshot() is first
    assert fleet.snapshot() is not first
    only_cpu = live(lake, PlacementSection()).snapshot()
    assert (only_cpu.resources, only_cpu.hosts.units.tolist()) == (("cpu",), [[32.0]] * 3)


def sent(host, *windows):
    """What central stores of windows that an agent sends."""
    batch = encode(windows, spool_id=f"spool-{host}", sequence=1)
    return StoredBatch(host, "p", batch.spool_id, 1, batch.SerializeToString())


def cpi_window(vm, job, cores, **metrics):
    at = NOW - (20 + len(vm)) * S  # a longer name is another, earlier window of the VM with its first letters
    return CpiWindow(vm[:2], "1", vm, job, False, at, 10 * S, cores, metrics=metrics)


# h2 counts no stalls, and its kernel has no PSI.
WAITED = [
    sent(
        "h1",
        cpi_window("w1", "web", 1.0, memory_stall_ratio=0.5, pressure_io_some_ratio=0.25),
        cpi_window("w1+", "web", 3.0, memory_stall_ratio=0.1, pressure_io_some_ratio=0.75),
        cpi_window("w1++", "web", 2.0, memory_stall_ratio=Reason.STALE),
        cpi_window("i1", "idle", 0.0, pressure_io_some_ratio=0.0),
    ),
    sent("h2", cpi_window("w2", "web", 1.0)),
]


@pytest.fixture
def waited(tmp_path):
    made = Lake(tmp_path / "waits")
    made.write_segment(next(samples_tables(WAITED, sys.maxsize)), segment_stem("central-0", "0badcafe", 1))
    return made


def test_shares_of_time_from_an_agents_windows_by_hand(waited):
    found = live(waited, PlacementSection(cpu_cores=8, memory_units=4, disk_units=2)).snapshot()
    assert found.resources == ("cpu", "memory_stall", "disk_wait")
    assert found.hosts.units.tolist() == [[8.0, 4.0, 2.0]] * 3
    assert list(found.unmeasured) == ["network_wait"]
    # w1: 2 cores in the mean; of 4 core windows that say it, 0.5 + 0.3 waited for memory: a fifth
    assert found.hosts.totals == pytest.approx(np.array([[1.6, 0.4, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    web, idle = found.jobs["web"], found.jobs["idle"]
    assert web.loading == pytest.approx([1.3, 0.4, 0.5])  # what w2 does not tell it is not 0 in
    assert (web.measured, web.vms, web.windows) == ((2, 1, 1), 2, 4)
    assert web.standard_error[0] == pytest.approx(0.3)
    assert np.isnan(web.standard_error[1:]).all()
    assert (idle.loading[[0, 2]].tolist(), math.isnan(idle.loading[1])) == ([0.0, 0.0], True)
    ranking = found.rank(web.loading, 3)
    assert [found.hosts.names[k] for k in ranking.order] == ["h3", "h2", "h1"]
    assert ranking.added == pytest.approx([(1.3 * 0.2 + 0.4 * 0.1 + 0.5 * 0.25) / 2.2, 1.3 / 8 / 2.2, 0.0])


def test_what_the_configuration_knows_rates_of_is_not_reported_by_waits(waited):
    config = PlacementSection(cpu_cores=8, memory_bytes_per_s=1e9, disk_bytes_per_s=1e6)
    found = live(waited, config).snapshot()
    assert (found.resources, found.hosts.units.tolist()) == (("cpu", "memory", "disk"), [[8.0, 1.0, 1.0]] * 3)
    assert found.jobs["web"].loading[0] == 1.5  # all cores: the bandwidth reports memory
    assert np.isnan(found.jobs["web"].loading[1:]).all()  # which nobody has measured, and the answer says so
    assert list(found.unmeasured) == ["memory", "disk", "network_wait"]
    assert found.unmeasured["memory"] == (
        "no window has memory_bandwidth_bytes_per_s, which needs the agents' source resctrl or pqos; unset "
        "placement.memory_bytes_per_s to use measured waits"
    )
    # Memory serves as many as there are cores.
    assert live(waited, PlacementSection(cpu_cores=4)).snapshot().hosts.units.tolist() == [[4.0, 4.0, 1.0]] * 3


def test_the_bandwidth_of_an_agents_windows_is_the_share_of_what_the_host_can_do(tmp_path):
    made = Lake(tmp_path / "bandwidth")
    windows = (
        cpi_window("w1", "web", 1.0, memory_bandwidth_bytes_per_s=2e8),
        cpi_window("w1+", "web", 1.0, memory_bandwidth_bytes_per_s=4e8),
        cpi_window("d1", "db", 1.0, memory_bandwidth_bytes_per_s=1e8),
    )
    made.write_segment(
        next(samples_tables([sent("h1", *windows)], sys.maxsize)), segment_stem("central-0", "0badcafe", 1)
    )
    found = live(made, PlacementSection(cpu_cores=4, memory_bytes_per_s=1e9)).snapshot()
    assert found.resources == ("cpu", "memory")
    assert found.jobs["web"].loading == pytest.approx([1.0, 0.3])
    assert found.hosts.totals[0] == pytest.approx([2.0, 0.4])
    assert list(found.unmeasured) == ["disk_wait", "network_wait"]


def test_windows_without_shares_leave_them_out(tmp_path):
    made = Lake(tmp_path / "old")
    table = next(samples_tables(WAITED, sys.maxsize))
    for name in ("memory_stall_ratio", "pressure_io_some_ratio"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, SAMPLES.field(name), pa.nulls(len(table), pa.float32()))
    made.write_segment(table, segment_stem("central-0", "0badcafe", 1))
    found = live(made, PlacementSection()).snapshot()
    assert (found.resources, found.jobs["web"].loading.tolist()) == (("cpu",), [1.5])
    assert found.unmeasured == {
        "memory_stall": "no window has memory_stall_ratio, which needs the agents' source perf and a CPU with the "
        "event; set placement.memory_bytes_per_s to use rates (host facts have no memory bandwidth)",
        "disk_wait": "no window has pressure_io_some_ratio, which needs the agents' source cgroup and a kernel with "
        "PSI; "
        "set placement.disk_bytes_per_s to use rates (host facts have no bandwidth of disks)",
        "network_wait": "no agent measures it, and no host's facts have the speed of a NIC; set "
        "placement.network_bytes_per_s to use rates",
    }


GIB = 1 << 30
SIZES = Sizes(
    {
        "h1": HostSize(cpus=2, memory_bytes=8 * GIB, network_bytes_per_s=1e9, disks=3),
        "h2": HostSize(cpus=8, memory_bytes=8 * GIB, network_bytes_per_s=2e9),
    },
    {"w1": VmSize(2, 2 * GIB), "w2": VmSize(4, 4 * GIB), "d1": VmSize(2, 1 * GIB), "m1": VmSize(2, 1 * GIB)},
)


def sized(lake, sizes=SIZES, **settings):
    return LiveFleet(lake, PlacementSection(**settings), lambda: ["h3", "h1"], lambda: NOW, lambda _: sizes).snapshot()


def test_full_hosts_come_last_with_the_reason_and_unknown_capacity_is_not_full(lake):
    found = sized(lake)
    # h1 has 2 CPUs, of which 4 times as many may be given away; w1 has two of these 8. h3 has no facts.
    ranking = found.rank(np.array([1.0]), 10, VmSize(4, 2 * GIB))
    assert [found.hosts.names[k] for k in ranking.order] == ["h3", "h2", "h1"]
    assert ranking.rooms == {
        2: Room(unknown="no facts of the host's cpus, no facts of the host's memory"),
        1: Room(),
        0: Room(),
    }
    ranking = found.rank(np.array([1.0]), 10, VmSize(7, 2 * GIB))
    assert [found.hosts.names[k] for k in ranking.order] == ["h3", "h2", "h1"]
    assert ranking.rooms[0] == Room(full="2 of 8 vCPUs taken")
    # h2 would disturb less than h1 if memory did not count: 4 + 1 + 1 of 8 GiB are taken there.
    ranking = found.rank(np.array([1.0]), 10, VmSize(1, 3 * GIB))
    assert [found.hosts.names[k] for k in ranking.order] == ["h3", "h1", "h2"]
    assert ranking.rooms[1] == Room(full="6 of 8 GiB of memory taken")
    assert [found.hosts.names[k] for k in found.rank(np.array([1.0]), 2, VmSize(1, 3 * GIB)).order] == ["h3", "h1"]
    # What just fits has room, as has any with more overcommit, or none that counts.
    assert found.rank(np.array([1.0]), 10, VmSize(6, 2 * GIB)).rooms[0] == Room()
    for settings in ({"memory_overcommit": 1.5}, {"memory_overcommit": 0}):
        rooms = sized(lake, **settings).rank(np.array([1.0]), 10, VmSize(1, 3 * GIB)).rooms
        assert (rooms[1], bool(rooms[2].unknown)) == (Room(), True)


def test_the_mutant_that_ignores_memory_is_noticed(lake, monkeypatch):
    monkeypatch.setattr(Capacity, "full", lambda self, size: self.amounts[0].is_full(size.vcpus))
    with pytest.raises(AssertionError):
        test_full_hosts_come_last_with_the_reason_and_unknown_capacity_is_not_full(lake)


def test_the_mutant_that_takes_unknown_capacity_for_full_is_noticed(lake, monkeypatch):
    honest = Capacity.full
    monkeypatch.setattr(Capacity, "full", lambda self, size: honest(self, size) | np.isnan(self.amounts[0].limit))
    with pytest.raises(AssertionError):
        test_full_hosts_come_last_with_the_reason_and_unknown_capacity_is_not_full(lake)


def test_nobody_can_tell_without_the_sizes_of_the_vm_or_of_those_there(lake):
    vms = {**SIZES.vms, "w2": VmSize(4)}
    found = sized(lake, Sizes(SIZES.hosts, vms))
    assert found.rank(np.array([1.0]), 10, VmSize(1, GIB)).rooms[1] == Room(
        unknown="no facts of the GiB of memory of 1 VMs there"
    )
    # 1 + 1 of 8 GiB are known to be taken, and 7 more exceed it whatever w2 has.
    assert found.rank(np.array([1.0]), 10, VmSize(1, 7 * GIB)).rooms[1] == Room(full="2 of 8 GiB of memory taken")
    assert found.rank(np.array([1.0]), 10).rooms[0] == Room(
        unknown="the new VM's vCPUs are not known, the new VM's GiB of memory are not known"
    )
    assert sized(lake, cpu_overcommit=1).rank(np.array([1.0]), 10).rooms[0] == Room(full="2 of 2 vCPUs taken")


def test_a_jobs_vm_is_as_large_as_its_largest(lake):
    found = sized(lake)
    assert (found.sizes["web"], found.sizes["old"]) == (VmSize(4, 4 * GIB), VmSize())


def test_facts_have_the_cpus_and_disks_of_each_host(waited):
    found = sized(waited)
    assert found.resources == ("cpu", "memory_stall", "disk_wait", "network")
    # h3 has no facts: the settings' defaults, and the usual NIC; h2's is a third faster than the median of 1.5e9.
    assert found.hosts.units == pytest.approx(
        np.array([[2.0, 2.0, 3.0, (1 / 1.5) ** 2], [8.0, 8.0, 1.0, (2 / 1.5) ** 2], [32.0, 32.0, 1.0, 1.0]])
    )
    fixed = sized(waited, memory_units=5, disk_units=2).hosts.units
    assert fixed[:, 1:3].tolist() == [[5.0, 2.0]] * 3


def test_the_network_is_a_share_of_the_nics_without_a_setting(tmp_path):
    rows = [window("h1", "a", "web", 1.0) | {"network_receive_bytes_per_s": 1e8, "network_transmit_bytes_per_s": 4e8}]
    rows += [window("h2", "b", "db", 1.0) | {"network_receive_bytes_per_s": 0.0, "network_transmit_bytes_per_s": 1e9}]
    made = Lake(tmp_path / "windows")
    made.write_segment(pa.Table.from_pylist(rows, SAMPLES), segment_stem("central-0", "0badcafe", 1))
    found = sized(made, Sizes({"h1": HostSize(network_bytes_per_s=1e9), "h2": HostSize(network_bytes_per_s=1e9)}))
    assert (found.resources, found.jobs["web"].loading.tolist()) == (("cpu", "network"), [1.0, 0.5])
    # On a host with a NIC twice as fast both need half of the time: a quarter of what they wait for each other.
    faster = sized(made, Sizes({"h1": HostSize(network_bytes_per_s=1e9), "h2": HostSize(network_bytes_per_s=2e9)}))
    share = 5e8 / 2e9 * 1e9 / 2e9  # of web and db, on h2
    loading = np.array([0.0, faster.jobs["web"].loading[1]])
    assert faster.by_resource(loading, 1)[1] == pytest.approx(share)
    # A setting is for hosts without facts.
    one = sized(made, Sizes({"h1": HostSize(network_bytes_per_s=1e9)}), network_bytes_per_s=4e9)
    assert one.hosts.units[:, 1] == pytest.approx(np.array([1 / 16, 1.0, 1.0]))


def test_vms_that_idle_are_there_and_disturb_nobody(tmp_path):
    made = Lake(tmp_path / "windows")
    rows = [window("h1", "a", "web", 0.05), window("h1", "b", "idle", 0.049), window("h1", "c", "db", 1.0)]
    made.write_segment(pa.Table.from_pylist(rows, SAMPLES), segment_stem("central-0", "0badcafe", 1))
    found = live(made).snapshot()
    assert (found.hosts.names, found.vms, found.running) == (("h1", "h3"), (3, 0), (("db", "web"), ()))


def test_an_empty_lake(tmp_path):
    found = live(Lake(tmp_path / "empty")).snapshot()
    assert (found.jobs, found.hosts.names, found.vms) == ({}, ("h1", "h3"), (0, 0))


@pytest.fixture
def asked(served, lake):  # noqa: F811 - the fixture
    served.fleet.snapshot = SharedAnswer(live(lake).snapshot)
    return served


async def test_by_http(asked, local):  # noqa: F811 - the fixture
    status, page = await get(local, "/v1/job-loadings?page_size=3")
    assert status == 200
    assert page["resources"] == ["cpu", "disk"]
    assert [row["job"] for row in page["loadings"]] == ["db", "moved", "old"]
    assert page["loadings"][0] == {
        "job": "db",
        "loading": [0.25, 0.8],
        "standard_error": [None, None],
        "measured_vms": [1, 1],
        "vms": 1,
        "windows": 1,
    }
    assert [row["resource"] for row in page["unmeasured"]] == ["memory_stall", "network_wait"]
    _, rest = await get(local, f"/v1/job-loadings?page_size=3&page_token={page['next_page_token']}")
    assert ([row["job"] for row in rest["loadings"]], rest["next_page_token"]) == (["web"], "")
    _, one = await get(local, "/v1/job-loadings?job=web")
    assert [row["job"] for row in one["loadings"]] == ["web"]
    status, found = await get(local, "/v1/placement?job=db&top=2")
    assert status == 200
    assert [row["host"] for row in found["hosts"]] == ["h3", "h1"]
    h1 = found["hosts"][1]
    assert (h1["vms"], h1["total"]) == (1, [1.5, 0.3])
    assert h1["by_resource"] == pytest.approx([0.25 / 1.05 * 1.5 / 4, 0.8 / 1.05 * 0.3])
    assert h1["added"] == pytest.approx(sum(h1["by_resource"]))
    assert (found["hosts_in_all"], found["until_unix_ns"]) == (3, NOW)
    assert found["unmeasured"] == page["unmeasured"]


async def test_full_hosts_by_http(asked, local, lake):  # noqa: F811 - the fixture
    asked.fleet.snapshot = SharedAnswer(lambda: sized(lake, disk_bytes_per_s=100.0))
    _, found = await get(local, f"/v1/placement?job=db&memory_bytes={3 * GIB}")
    assert [row["host"] for row in found["hosts"]] == ["h3", "h1", "h2"]
    assert [(row["full"], bool(row["room_unknown"])) for row in found["hosts"]] == [
        ("", True),
        ("", False),
        ("6 of 8 GiB of memory taken", False),
    ]
    assert (found["vcpus"], found["memory_bytes"]) == (2.0, 3 * GIB)  # the vCPUs are d1's
    status, found = await get(local, "/v1/placement?job=db&vcpus=10001")
    assert (status, found["error"][:25]) == (400, "vcpus must be 0 to 10000,"[:25])


@pytest.mark.long
@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/v1/placement", 400, "give either the VM's job, or its loading as cpu=0.5,disk=0.2"),
        ("/v1/placement?job=a&loading=cpu%3D1", 400, "give either the VM's job"),
        ("/v1/placement?job=db&top=1001", 400, "top must be an integer from 0 to 1000 (value '1001')"),
        ("/v1/placement?job=none", 404, "no VM of job 'none' was seen in the last 600 s; give its loading instead"),
        ("/v1/placement?loading=cpu%3D5", 400, "loading cpu=5: must be within 0..1, the share of the VM's time at cpu"),
        ("/v1/placement?loading=cpu%3D-0.1", 400, "loading cpu=-0.1: must be within 0..1"),
        ("/v1/placement?loading=cpu%3Dnan", 400, "loading cpu=nan: must be within 0..1"),
        ("/v1/placement?loading=cpu", 400, "loading cpu: must be NAME=NUMBER, as in cpu=0.5"),
        ("/v1/placement?loading=gpu%3D1", 400, "loading gpu: no resource 'gpu' here; there are cpu, disk"),
        (
            "/v1/placement?loading=network_wait%3D1",
            400,
            "loading network_wait: no resource 'network_wait' here; it is not measured: no agent measures it,",
        ),
        ("/v1/job-loadings?page_size=1001", 400, "page_size must be an integer from 0 to 1000"),
    ],
)
async def test_wrong_requests(asked, local, path, status, said):  # noqa: F811 - the fixture
    found, answer = await get(local, path)
    assert (found, answer["error"][: len(said)]) == (status, said)


app = typer.Typer()
app.command()(place_cli.place)


def run(*words):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_on_the_command_line(asked, lake, monkeypatch):
    def asking(address, _deadline_s):
        assert address.central == "central:7443"

        class Asking:
            def __enter__(self):
                return lambda method, request: asyncio.run(asked.fleet.answer(method, request))

            def __exit__(self, *_error):
                return None

        return Asking()

    monkeypatch.setattr(place_cli, "asking", asking)
    monkeypatch.setattr(fleets, "files_in", lambda _sources: TlsFiles())
    shown = run("--central", "central:7443", "--loading", "cpu=0.4,disk=0.5").stdout
    assert "h3" in shown and "1.3000" in shown and "3 of 3 hosts" in shown
    assert "left out: network_wait: no agent measures it, and no host's facts have the speed" in shown
    reported = run("--central", "central:7443", "--job", "web", "--json", "--top", "1").stdout
    assert '"host": "h3"' in reported and '"hosts_in_all": 3' in reported
    assert "cannot tell whether there is room on 3 hosts: no facts of the host's cpus, no facts of" in shown
    asked.fleet.snapshot = SharedAnswer(lambda: sized(lake, disk_bytes_per_s=100.0))
    words = ("--central", "central:7443", "--job", "web", "--json", "--memory-gib", "3", "--vcpus", "1")
    rows = json.loads(run(*words).stdout)["ranked"]
    assert [(row["host"], row["full"]) for row in rows] == [
        ("h3", ""),
        ("h1", ""),
        ("h2", "6 of 8 GiB of memory taken"),
    ]
    everywhere = Sizes({name: HostSize(1, GIB) for name in ("h1", "h2", "h3")})
    asked.fleet.snapshot = SharedAnswer(lambda: sized(lake, everywhere))
    assert run(*words).exit_code == 1  # full everywhere
    monkeypatch.setenv(fleets.CENTRAL, "central:7443")
    assert "3 of 3 hosts" in run("--job", "web").stdout  # without files there is nothing else to ask
    monkeypatch.delenv(fleets.CENTRAL)
    assert set(json.loads(reported)["unmeasured"]) == {"memory_stall", "network_wait"}
    for words, line in (
        (["--central", "c:1", "vms.csv"], "--central or --fleet asks for the live fleet; omit VMS.csv and --hosts"),
        (["v.csv", "--hosts", "h.csv", "--vcpus", "2"], "--vcpus: is for the live fleet; the VMs are those of VMS.csv"),
        ([], "VMS.csv and --hosts HOSTS.csv are needed, or --job or --loading for the live fleet"),
    ):
        with pytest.raises(InputError) as refused:
            run(*words)
        assert str(refused.value) == line
