"""`whitepanda fleet compare`: files and sides of the lake, and what is refused."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from central.cli.shared import fleet_tables
from central.lake.segments import Lake
from central.plotting.figures import bar, signed_bar
from central.upgrades.lake_rows import Side, known_quotas, quota_shares, read_side
from tests.support.fleet_cli import rows_file, write
from whitepanda.common.errors import InputError


def test_compare_reports_the_difference_and_what_it_is_of(run, tmp_path) -> None:
    now, new = (rows_file(tmp_path / "now.parquet"), rows_file(tmp_path / "new.parquet", 1, 1.05, range(100, 140)))
    code, out, _ = run("compare", now, new, "--json", "--plot", tmp_path / "c.png")
    found = json.loads(out)
    assert code == 0
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"
    change = found["difference_percent"]
    assert change["low"] < 5 < change["high"]
    assert change["low"] > 1.5
    assert found["p"] < 1e-3
    assert (found["metric"], found["weighed_by"], found["coverage"]) == ("ipc", "instances", 1.0)
    assert found["machines"] == {"current": 30, "new": 40}
    assert [row["verdict"] for row in found["jobs"]] == ["gain", "gain"]
    for width in (80, 140):
        out = run("compare", now, new, width=width)[1]
        assert "2 jobs up, 0 down (at most 5 % of these are expected to be false), 0 unclear" in out
        assert max(map(len, out.split("fleet:")[0].splitlines())) <= width
    code, _, err = run("compare", now, now)
    assert code == 0 and "warning: CURRENT and NEW are the same file" in err
    shown = [fleet_tables._percents(share) for share in (-1e-9, 0.0, 1e-9, -0.012)]
    assert shown == ["+0.00", "+0.00", "+0.00", "-1.20"]
    n = found["jobs"][0]["instances"]
    assert f"{n['current']:,}/{n['new']:,} " in out


def test_weights_are_the_jobs_and_quotas_the_instances(run, tmp_path) -> None:
    new = rows_file(tmp_path / "new.parquet", 1, machines=range(100, 140))

    def weights(name, values):
        path = rows_file(tmp_path / f"{name}.parquet", extra=lambda job: {name: [values[each] for each in job]})
        return {row["job"]: row["weight"] for row in json.loads(run("compare", path, new, "--json")[1])["jobs"]}

    assert weights("weight", {"a": 3.0, "b": 1.0}) == pytest.approx({"a": 0.75, "b": 0.25})
    assert weights("quota", {"a": 2.0, "b": 8.0}) == pytest.approx({"a": 0.2, "b": 0.8})
    mixed = write(tmp_path / "m.csv", "machine,job,ipc,weight\nx,a,1,1\ny,a,1,2\n")
    code, _, err = run("compare", mixed, new)
    assert code == 3
    assert "job a has weights 1 and 2; weight is the job's" in err


def test_too_little_in_common_is_refused(run, tmp_path) -> None:
    now = rows_file(tmp_path / "now.parquet")
    rng = np.random.default_rng(0)
    lines = ["machine,job,ipc", *(f"n{i},a,{rng.uniform(1, 2)}" for i in range(9)), *(f"n{i},b,1" for i in range(3))]
    new = write(tmp_path / "new.csv", "\n".join(lines) + "\n")
    code, _, err = run("compare", now, new)
    assert code == 3
    assert "1 job has 4 instances on two machines of both sides, 50.0% of CURRENT's weight, less than 80%" in err
    assert run("compare", now, new, "--min-coverage", 0.5)[0] == 0
    other = write(tmp_path / "other.csv", "machine,job,ipc\nn,z,1\n")
    code, _, err = run("compare", now, other, "--min-coverage", 0)
    assert (code, "0 jobs have" in err) == (3, True)
    for text, message in (
        ("machine,job\nx,a\n", "no column ipc"),
        ("job,ipc\na,1\n", "no column machine"),
        ("machine,job,ipc\nx,a,0\n", "column ipc must be numbers above 0 (row 1: 0"),
    ):
        code, _, err = run("compare", now, write(tmp_path / "bad.csv", text))
        assert (code, message in err) == (3, True)
    code, _, err = run("compare", write(tmp_path / "bad.csv", "machine,job,cpi\nx,a,1\n"), now)
    assert (code, "no column value, ipc or mips; name the metric's with --metric" in err) == (3, True)


def test_values_beyond_all_measure_are_refused(run, tmp_path) -> None:
    now = rows_file(tmp_path / "now.parquet")
    for many in (1, 4):
        table = pq.read_table(now).to_pydict()
        table["ipc"][5 : 5 + many] = [1e308] * many
        pq.write_table(pa.table(table), tmp_path / "new.parquet")
        code, out, err = run("compare", now, tmp_path / "new.parquet")
        assert (code, out, err.count("\n")) == (3, "", 1)
        assert "column ipc must be numbers from 1e-30 to 1e+30 (row 6: 1e+308)" in err
    # What is just allowed is reckoned with, without a warning.
    for column, low, high in (("a", 1e-30, 1e30), ("b", 1e30, 1e-30)):
        sides = []
        for side, scale in (("x", low), ("y", high)):
            values = pq.read_table(now).to_pydict()
            values["ipc"] = [min(max(value * scale, 1e-30), 1e30) for value in values["ipc"]]
            sides.append(tmp_path / f"{column}{side}.parquet")
            pq.write_table(pa.table(values), sides[-1])
        assert run("compare", *sides)[0] == 0


@pytest.mark.long
def test_sides_of_the_lake(run, lake) -> None:
    hosts = lake.parent / "test.csv"

    def percent(current, new, *arguments):
        code, out, err = run("compare", current, new, "--lake", lake, "--weigh-by", "use", "--json", *arguments)
        assert (code, err) == (0, "")
        return json.loads(out)

    by_hosts = percent("rest,from=1970-01-02", f"hosts={hosts},from=1970-01-02T00:00Z")
    assert by_hosts["difference_percent"]["value"] == pytest.approx(10, abs=1.5)
    assert by_hosts["machines"] == {"current": 30, "new": 10}
    assert by_hosts["weighed_by"] == "use"
    assert [(row["job"], row["weight"]) for row in by_hosts["jobs"]] == [
        ("b", pytest.approx(2 / 3)),
        ("a", pytest.approx(1 / 3)),
    ]
    by_time = percent(f"hosts={hosts},until=1970-01-02", f"hosts={hosts},from=1970-01-02")
    assert by_time["difference_percent"]["value"] == pytest.approx(10, abs=1.5)
    assert by_time["machines"] == {"current": 10, "new": 10}
    alike = percent("platform=P,until=1970-01-02", "platform=Q,until=1970-01-02")
    assert alike["difference_percent"]["low"] < 0 < alike["difference_percent"]["high"]
    assert percent("until=1970-01-02", "from=1970-01-02", "--metric", "cpi")["current"]["value"] == pytest.approx(
        1, abs=0.01
    )
    # 1e9 instructions in 10 s
    assert percent("until=1970-01-02", "from=1970-01-02", "--metric", "mips")["current"]["value"] == pytest.approx(
        100, abs=1
    )


def test_quotas_by_hand():
    job, vm = np.array(["a", "a", "a", "b", "c", "a"]), np.array(["v1", "v2", "v3", "w1", "x1", "v1"])
    time_ns = np.array([3.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    # v1 moved: 4 cores, counted once. v3 counts as the mean of v1 and v2; nothing is known of c.
    found = quota_shares(job, vm, time_ns, {"v1": 4.0, "v2": 1.0, "w1": 2.0, "other": 9.0})
    assert (found.job.tolist(), found.weight.tolist()) == (["a", "b"], [7.5, 2.0])
    assert not len(quota_shares(job, vm, time_ns, {}).job)


def test_use_does_not_stand_for_unknown_quotas(run, lake) -> None:
    sides = ("until=1970-01-02", "from=1970-01-02", "--lake", lake)
    code, out, err = run("compare", *sides)
    said = "--lake: a lake has no CPU quotas, central knows them: ask with --central, or --weigh-by use"
    assert (code, out, err) == (3, "", f"error: {said}\n")
    assert run("compare", *sides, "--weigh-by", "cores")[2] == "error: --weigh-by cores: must be quota or use\n"
    code, _, err = run("compare", lake.parent / "test.csv", lake.parent / "test.csv", "--weigh-by", "use")
    assert (code, "--weigh-by: is for a lake; a file has a column weight or quota" in err) == (3, True)
    with pytest.raises(InputError, match="side 'all': no CPU quota of any of its VMs is known, by facts from agents"):
        read_side(Lake(lake), Side("all"), "ipc", lambda _unix_ns: {})
    found = read_side(Lake(lake), Side("all"), "ipc", lambda _unix_ns: {"h01-b": 1.0})
    assert (found.weighed_by, found.weights.job.tolist(), found.weights.weight.tolist()) == ("quota", ["b"], [40.0])


def test_the_last_quota_in_the_time_counts_also_of_vms_that_are_gone() -> None:
    asked = []

    def quotas(unix_ns):
        asked.append(unix_ns)
        return {"stays": float(unix_ns), "other": 9.0} | ({"gone": 2.0} if unix_ns < 300 else {})

    assert known_quotas(quotas, {"stays", "gone"}, 0, 800) == {"stays": 799.0, "gone": 2.0}
    assert asked == [799, 699, 599, 499, 399, 299]
    assert known_quotas(quotas, {"nobody"}, 0, 800) == {}


def test_sides_that_are_none_get_one_line(run, lake) -> None:
    hosts = f"hosts={lake.parent / 'test.csv'}"
    for current, new, code, message in (
        ("x", "from=1970-01-02", 3, "side 'x': must be hosts=..."),
        ("rest", "from=1970-01-02", 3, "side 'rest': rest is for the hosts that the other side's file does not name"),
        ("from=yesterday", "rest", 3, "invalid time yesterday; such as"),
        ("hosts", hosts, 3, "side 'hosts': hosts needs a value"),
        ("rest=1", hosts, 3, "side 'rest=1': rest takes no value"),
        ("platform=", hosts, 3, "platform needs a value"),
        ("from=1970-01-02,from=1970-01-03", hosts, 3, "a key is given twice"),
        (hosts, hosts, 3, "are the same samples"),
        ("platform=Z", hosts, 3, "side 'platform=Z': no task of the lake has ipc there"),
    ):
        found, _, err = run("compare", current, new, "--lake", lake, "--weigh-by", "use")
        assert (found, message in err, err.count("\n")) == (code, True, 1), err
    code, _, err = run("compare", "rest", hosts, "--lake", lake, "--weigh-by", "use", "--metric", "nonsense")
    assert (code, "metric nonsense is not in the lake; it has ipc, mips, cpi" in err) == (3, True)
    (lake.parent / "empty").mkdir()
    code, _, err = run("compare", "rest", hosts, "--weigh-by", "use", "--lake", lake.parent / "empty")
    assert (code, "empty: has no samples; is it central.lake_dir" in err) == (4, True)
    code, _, err = run("compare", "rest", hosts, "--weigh-by", "use", "--lake", lake / "no")
    assert (code, "no such folder" in err) == (4, True)


def test_bars() -> None:
    assert bar(1.0, 2.0, 4) == "██"
    assert bar(1.0, 8.0, 1) == "▏"
    assert bar(0.0, 2.0, 4) == ""
    assert signed_bar(-1.0, 2.0, 2) == " █│"
    assert signed_bar(2.0, 2.0, 2) == "  │██"
