"""Placement: the paper's schedule, ranking by p'.P against a naive loop, limits, ties, and what each choice says."""

import json

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from central.cli import place as place_cli
from central.cli.place import place
from central.placement.fleet import RULES, Fleet, Hosts, Request
from central.placement.plots import plot_added
from central.placement.schedule import NOWHERE, Vm, place_all
from whitepanda.common.errors import InputError

app = typer.Typer()
app.command()(place)
NOTHING = np.zeros(0)
# Table 3 of the paper, W1 + W2 and W3 where the paper has them, W4 at 60 s.
TABLE_3 = """job,cpu,disk,tau_s,start_s,host
W1,1,0,110.56,0,machine-1
W2,0,1,115.83,0,machine-1
W3,1,0,180,0,machine-2
W4,1,0,110.56,60,
"""


def hosts_of(totals, limit=np.inf, units=1.0):
    totals = np.asarray(totals, dtype=float)
    n, r = totals.shape
    names = tuple(f"h{k}" for k in range(n))
    resources = tuple(f"r{k}" for k in range(r))
    return Hosts(names, resources, totals, np.full(r, units), np.full(totals.shape, limit))


def vm(name, loading, tau_s=0.0, start_s=0.0, host=NOWHERE):
    return Vm(name, Request(np.array(loading, dtype=float), NOTHING, tau_s), start_s, host)


W = [
    vm("W1", (1, 0), 110.56, 0, 0),
    vm("W2", (0, 1), 115.83, 0, 0),
    vm("W3", (1, 0), 180.0, 0, 1),
    vm("W4", (1, 0), 110.56, 60),
]


def test_the_papers_schedule_by_both_rules():
    machines = hosts_of(np.zeros((2, 2)))
    ours = place_all(machines, W, "dfactor")
    assert ours.host == (0, 0, 1, 0)
    assert ours.end_s == pytest.approx([161.12, 115.83, 180.0, 221.12], rel=1e-14)
    graham = place_all(machines, W, "graham")
    assert graham.host == (0, 0, 1, 1)
    assert graham.makespan_s == pytest.approx(290.56, rel=1e-14)
    assert round(100 * (1 - ours.makespan_s / graham.makespan_s), 1) == 23.9
    assert ours.added == 2.0


def test_who_has_ended_is_not_in_the_way():
    jobs = [vm("a", (1, 0), 10), vm("b", (1, 0), 10, 5), vm("c", (1, 0), 10, 9.5), vm("d", (1, 0), 10, 30)]
    found = place_all(hosts_of(np.zeros((2, 2))), jobs)
    # c: a tie, so the first; d comes when all have ended: the first again
    assert found.host == (0, 1, 0, 0)
    assert found.end_s == pytest.approx([10.5, 15.0, 20.0, 40.0])


def test_a_vm_without_an_end_stays():
    jobs = [vm("stays", (1, 0), 0, 5), vm("a", (1, 0), 10), vm("b", (1, 0), 10, 100)]
    found = place_all(hosts_of(np.zeros((1, 2))), jobs)
    # a is alone for 5 s, then half as fast; b beside the one that stays
    assert found.end_s.tolist() == [np.inf, 15.0, 120.0]
    assert found.makespan_s == 120.0


@given(st.integers(1, 12), st.integers(1, 4), st.data())
def test_ranking_is_what_a_loop_over_hosts_finds(n, r, data):
    # Few values, so that there are ties.
    value = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0])
    totals = np.array([[data.draw(value) for _ in range(r)] for _ in range(n)])
    loading = np.array([data.draw(st.sampled_from([0.0, 0.25, 0.5])) for _ in range(r)])
    limit = data.draw(st.sampled_from([1.0, 2.0, np.inf]))
    fleet = Fleet(hosts_of(totals, limit, units=2.0))
    costs = [sum(loading[k] * row[k] / 2.0 for k in range(r)) for row in totals]
    room = [all(row + loading <= limit) for row in totals]
    expected = sorted((k for k in range(n) if room[k]), key=lambda k: (costs[k], k))
    found = fleet.rank(Request(loading, NOTHING))
    assert found.order.tolist() == expected
    assert found.added == pytest.approx(costs, abs=1e-12)
    assert sum(found.full.values()) == n - len(expected)
    top = data.draw(st.integers(1, n))
    assert fleet.rank(Request(loading, NOTHING), top=top).order.tolist() == expected[:top]


def test_rounding_does_not_break_ties():
    fleet = Fleet(hosts_of(np.zeros((2, 1))))
    for share in (0.1, 0.2, 0.3):
        fleet.put(0, Request(np.array([share]), NOTHING))
    for share in (0.3, 0.1, 0.2):
        fleet.take(0, Request(np.array([share]), NOTHING))
    assert fleet.totals[0, 0] != 0
    assert fleet.rank(Request(np.array([1.0]), NOTHING)).order.tolist() == [0, 1]


def test_rules():
    hosts = hosts_of([(2.0, 0.0), (0.0, 1.5), (0.0, 1.0)])
    request = Request(np.array([0.2, 0.8]), NOTHING)
    assert {rule: Fleet(hosts).rank(request, rule).order.tolist() for rule in RULES} == {
        "dfactor": [0, 2, 1],
        "graham": [0, 1, 2],
        "first-fit": [0, 1, 2],
        "least-loaded": [2, 1, 0],
    }


def test_largest_first_among_those_of_one_moment():
    jobs = [vm("small", (0.1, 0)), vm("large", (1, 0)), vm("late", (1, 0), 0, 1)]
    hosts = hosts_of(np.zeros((2, 2)))
    assert place_all(hosts, jobs).host == (0, 1, 0)
    assert place_all(hosts, jobs, largest_first=True).host == (1, 0, 1)


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture
def files(tmp_path):
    def write(vms=TABLE_3, hosts="host\nmachine-1\nmachine-2\n"):
        (tmp_path / "vms.csv").write_text(vms, encoding="utf-8")
        (tmp_path / "hosts.csv").write_text(hosts, encoding="utf-8")
        return tmp_path / "vms.csv", "--hosts", tmp_path / "hosts.csv"

    return write


def placed(*words, code=0):
    result = run(*words, "--json")
    assert result.exit_code == code
    return json.loads(result.stdout)


def test_the_papers_schedule_on_the_command_line(files):
    found = placed(*files(), "--compare")
    assert found["makespan_s"] == pytest.approx(221.12)
    (w4,) = found["placements"]
    assert (w4["job"], w4["host"], w4["dilation"], w4["by_resource"]) == (
        "W4",
        "machine-1",
        2.0,
        {"cpu": 1.0, "disk": 0.0},
    )
    assert w4["why"] == "machine-1: 2 times as long as alone (cpu 1); ties with machine-2; the first in the file"
    assert found["compare"]["graham"]["makespan_s"] == pytest.approx(290.56)
    assert found["compare"]["dfactor"]["makespan_s"] == pytest.approx(221.12)
    assert found["compare"]["dfactor"]["mean_dilation"] == pytest.approx(
        (161.12 / 110.56 + 1 + 1 + 161.12 / 110.56) / 4
    )


def test_limits_amounts_units_and_reasons(files):
    words = files(
        "job,cpu,disk,memory_gib\nnew,0.6,0.4,8\n",
        "host,cpu,disk,memory_gib,units.cpu,limit.cpu,limit.memory_gib\n"
        "a,3.5,0,10,4,4,64\nb,1,0.5,60,4,4,64\nc,1,1,0,4,4,64\nd,2,0.2,0,8,,\n",
    )
    found = placed(*words, "--fit", "memory_gib=32", "--top", 0)
    (new,) = found["placements"]
    # a has no CPU left, b no memory; c: 0.6 * 1 / 4 + 0.4, d: 0.6 * 2 / 8 + 0.4 * 0.2
    assert [(row["host"], round(row["dilation"], 12)) for row in new["ranked"]] == [("d", 1.23), ("c", 1.55)]
    assert new["full"] == {"cpu": 1, "memory_gib": 1}
    assert new["why"] == (
        "d: 1.23 times as long as alone (cpu 0.15, disk 0.08); next is c with 1.55; "
        "no room on 2 hosts: 1 lack cpu, 1 lack memory_gib"
    )
    full = placed(*words, "--fit", "memory_gib=4", "--limit", "disk=0.1", code=1)
    assert (full["placements"][0]["host"], full["added_dilation"]) == (None, 0)
    assert full["placements"][0]["why"] == "no host has room: 1 lack cpu, 3 lack disk"


def test_ties_are_reported_of_dfactor_only(files):
    three = "job,cpu,disk\nv,1,0\n"
    hosts = "host,cpu,disk\na,0.5,0\nb,0.3,0\nc,0.3,0.9\nd,0.1,0\n"
    for held, words in (
        (hosts.replace("d,0.1", "d,0.3"), "b: 1.3 times as long as alone (cpu 0.3); ties with c and others; the first"),
        (
            hosts.replace("d,0.1", "d,0.4"),
            "b: 1.3 times as long as alone (cpu 0.3); ties with c; the first in the file",
        ),
        (hosts, "d: 1.1 times as long as alone (cpu 0.1); next is b with 1.3"),
    ):
        shown = run(*files(three, held)).stdout
        assert words in shown
    assert "ties" not in run(*files(three, hosts), "--rule", "first-fit").stdout


def test_a_batch_takes_what_was_placed_before_into_account(files):
    words = files("job,cpu,disk\nx,1,0\ny,1,0\nz,0,1\n", "host\na\nb\n")
    found = placed(*words)
    assert [row["host"] for row in found["placements"]] == ["a", "b", "a"]
    assert found["placements"][2]["why"] == "a: no VM there competes with it; ties with b; the first in the file"
    shown = run(*words, "--compare").stdout
    assert "3 of 3 placed; added dilation 0 (over 1" in shown
    assert "least-loaded" in shown and "graham" not in shown


def test_the_status_says_that_not_all_have_a_host_and_the_json_is_whole(files):
    words = files("job,cpu\nx,0.6\ny,0.6\n", "host\na\n")
    done = run(*words, "--limit", "cpu=1", "--json")
    assert done.exit_code == 1
    assert [row["host"] for row in json.loads(done.stdout)["placements"]] == ["a", None]
    assert run(*words, "--limit", "cpu=0.5").exit_code == 1
    assert run(*words, "--limit", "cpu=1.2").exit_code == 0


@pytest.mark.parametrize(
    ("option", "value"), [("--fit", "a=1"), ("--units", "cpu=2"), ("--limit", "cpu=2"), ("--compare", None)]
)
def test_what_is_for_files_is_refused_for_the_live_fleet(option, value):
    with pytest.raises(InputError, match=f"^{option}: is for files"):
        run("--central", "127.0.0.1:1", "--job", "web", option, *([value] if value else []))


def test_the_vm_of_the_live_fleet_is_named_once():
    with pytest.raises(InputError, match="name the VM's job or its loading, not both"):
        run("--job", "web", "--loading", "cpu=5")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"vms": "job,cpu,memory_gib\na,1,8\n"},
            (
                "FOLDER/vms.csv: column memory_gib must be numbers from 0 to 1 (row 1: 8); if it is an amount "
                "that must fit, not a share of time, add --fit memory_gib=CAPACITY"
            ),
        ),
        (
            {"vms": "job,cpu,memory_gib\na,1,8\n", "words": ["--fit", "mem=4"]},
            "FOLDER/vms.csv: has no column mem; it has job, cpu, memory_gib",
        ),
        ({"words": ["--job", "web"]}, "--job: is for the live fleet; the VMs are those of VMS.csv"),
        ({"words": ["--loading", "cpu=1"]}, "--loading: is for the live fleet; the VMs are those of VMS.csv"),
        ({"words": ["--rule", "best"]}, "--rule best: must be one of dfactor, graham, first-fit, least-loaded"),
        ({"words": ["--order", "any"]}, "--order any: must be given or largest"),
        ({"words": ["--limit", "gpu=1"]}, "--limit gpu: the VMs have no such resource; they have cpu, disk"),
        (
            {"words": ["--fit", "gib=1"]},
            "FOLDER/vms.csv: has no column gib; it has job, cpu, disk, tau_s, start_s, host",
        ),
        ({"hosts": "name\na\n"}, "FOLDER/hosts.csv: has no column host; it has name"),
        ({"hosts": "host\na\n"}, "FOLDER/vms.csv: W1 runs on machine-1, which is not a host of the other file"),
        ({"hosts": "host\na\na\n"}, "FOLDER/hosts.csv: host a appears more than once; remove the repeated rows"),
        (
            {"hosts": "host,units.cpu\na,0\n"},
            "FOLDER/hosts.csv: column units.cpu must be numbers of 1 or more (row 1: 0)",
        ),
        (
            {"hosts": "host,gpu\na,1\n"},
            (
                "FOLDER/hosts.csv: column gpu: is not a resource of the VMs (cpu, disk), --fit, host, "
                "units.NAME or limit.NAME"
            ),
        ),
        (
            {"vms": "job,cpu,host\na,1,machine-1\n"},
            "FOLDER/vms.csv: every row has a host; leave it empty in those to place",
        ),
        (
            {"vms": "job,cpu\na,1\n", "words": ["--rule", "graham"]},
            "FOLDER/vms.csv: --rule graham needs the column tau_s, above 0 in every row",
        ),
    ],
)
def test_faults(files, tmp_path, change, line):
    words = files(**{name: text for name, text in change.items() if name != "words"})
    with pytest.raises(InputError) as refused:
        run(*words, *change.get("words", []))
    assert str(refused.value) == line.replace("FOLDER", str(tmp_path))


def test_a_placement_as_a_picture_and_as_bars(files, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(place_cli, "plot_added", lambda path, rows: drawn.append((path, rows)))
    vms, _, hosts = files()
    shown = run(vms, "--hosts", hosts, "--plot", tmp_path / "p.png").stdout
    assert drawn == [(tmp_path / "p.png", [("W4 on machine-1", {"cpu": 1.0, "disk": 0.0})])]
    assert [line.count("█") for line in shown.splitlines() if line.startswith(" machine-")] == [20, 20]
    monkeypatch.undo()
    run(vms, "--hosts", hosts, "--plot", tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r"vms.csv: --plot is VMS itself; give the name of another file$"):
        run(vms, "--hosts", hosts, "--plot", vms)


def test_a_picture_of_nothing_placed_is_one(tmp_path):
    plot_added(tmp_path / "none.png", [])
    assert (tmp_path / "none.png").read_bytes().startswith(b"\x89PNG")
