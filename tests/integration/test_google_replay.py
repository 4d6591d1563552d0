"""The real rows of the Google trace through `whitepanda replay`, gRPC and central, compared with the file itself."""

import collections
import json
import os
import signal
import subprocess
import sys
import time

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.central_process import MAIN, ROOT, CentralProcess
from whitepanda.common.tls import channel_credentials
from whitepanda.v1 import fleet_pb2, fleet_pb2_grpc

pytestmark = pytest.mark.integration

SLOT_US = 300_000_000  # build.slot_s


@pytest.fixture
def trace(data_dir):
    file = data_dir / "google2019" / "instance_usage.parquet"
    if not file.exists():
        pytest.skip(f"no real data at {file}; set WHITEPANDA_DATA")
    return file


@pytest.fixture
def central(tmp_path):
    # The trace has 32 days, and a build may begin amid it. Compacted segments stay beside the new one for a while, and
    # rows are counted in files here.
    build = "interval_s = 0.5\ndays = 40\nlate_interval_s = 0\n[lake]\ncompact = false"
    process = CentralProcess(tmp_path, ingest="roll_interval_s = 0.5", build=build)
    process.start()
    process.client("importer")
    yield process
    process.end()


BUILD_WAITS_S = 1200  # builds give way to whatever else runs


def command(central, trace, *more):
    where = ["--central", central.address, "--tls", str(central.pki)]
    return [sys.executable, *MAIN, "replay", str(trace), *where, "--json", *more]


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}


def replay(central, trace, *more):
    done = subprocess.run(command(central, trace, *more), capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lake(central, rows):
    """All rows of the segment files themselves (a view would hide what is there twice), once there are so many."""
    deadline = time.monotonic() + BUILD_WAITS_S
    while True:
        files = sorted((central.lake_dir / "samples").glob("*/*.parquet"))
        if sum(pq.read_metadata(file).num_rows for file in files) >= rows:
            return pa.concat_tables(pq.ParquetFile(file).read() for file in files)
        assert time.monotonic() < deadline, "the journal was not rolled"
        time.sleep(0.2)


def by_job(jobs, cpi):
    """Per job n, mean and population standard deviation of the CPI, straight from numpy."""
    known = ~np.isnan(cpi)
    jobs, cpi = jobs[known], cpi[known]
    order = np.argsort(jobs, kind="stable")
    names, first = np.unique(jobs[order], return_index=True)
    parts = np.split(cpi[order], first[1:])
    return {str(name): (len(part), part.mean(), part.std()) for name, part in zip(names, parts, strict=True)}


def usable(table):
    """CPI of each row: an absurd one is none."""
    cpi = table.column("cycles_per_instruction").to_numpy()
    return np.where((cpi >= 0.01) & (cpi <= 100), cpi, np.nan)


def expected(trace):
    """What of the file is good, computed without any of our code; and how many rows are bad, by reason."""
    table = pq.read_table(trace)
    columns = {name: table.column(name).to_numpy() for name in ("collection_id", "instance_index", "machine_id")}
    start, end = table.column("start_time").to_numpy(), table.column("end_time").to_numpy()
    cpi = usable(table)
    lost = collections.Counter()
    kept = {}
    for i in range(len(cpi)):
        if columns["machine_id"][i] < 0:
            lost["unknown_machine"] += 1
        elif end[i] <= start[i]:
            lost["bad_time"] += 1
        else:
            key = (*(int(columns[name][i]) for name in columns), int(start[i]))
            if key in kept:
                lost["duplicate"] += 1
                if not np.isnan(cpi[kept[key]]) or np.isnan(cpi[i]):
                    continue
            kept[key] = i
    index = np.fromiter(kept.values(), np.int64)
    return len(cpi), index, columns["collection_id"][index], cpi[index], dict(lost)


def expected_statistics(trace):
    """Equation (1) per job, straight from numpy: n, mean and std over task slots, records weighted by duration."""
    _, index, _, _, _ = expected(trace)
    table = pq.read_table(trace).take(index)
    start, end = table.column("start_time").to_numpy(), table.column("end_time").to_numpy()
    sensitive = (table.column("priority").to_numpy() >= 120) & (table.column("scheduling_class").to_numpy() >= 2)
    cpi = usable(table)
    known = ~np.isnan(cpi)
    names = ("collection_id", "instance_index", "machine_id")
    task = np.stack([*(table.column(name).to_numpy() for name in names), sensitive, start // SLOT_US], axis=1)
    slots, of_slot = np.unique(task[known], axis=0, return_inverse=True)
    seconds = (end - start)[known] / 1e6
    of_slot = of_slot.reshape(-1)
    merged = np.bincount(of_slot, cpi[known] * seconds) / np.bincount(of_slot, seconds)
    assert 0 < len(slots) <= known.sum()
    return by_job(slots[:, 0], merged)


def statistics_of(central, rows):
    """What central's fleet API says of all jobs, once its version is of so many rows."""
    tls = channel_credentials(central.client("operator"))
    with grpc.secure_channel(central.address, tls) as channel:
        fleet = fleet_pb2_grpc.FleetStub(channel)
        deadline = time.monotonic() + BUILD_WAITS_S
        while True:
            status = fleet.GetFleetStatus(fleet_pb2.GetFleetStatusRequest(), timeout=20)
            in_force = status.coefficient_version
            manifests = sorted((central.lake_dir / "versions").glob(f"{in_force:08d}/manifest.json"))
            if manifests and json.loads(manifests[0].read_text())["rows"] == rows:
                break
            assert time.monotonic() < deadline, "no version of all rows"
            time.sleep(0.2)
        assert (status.days_left_out, status.rows_left_out, status.last_build_error) == (0, 0, "")
        found, token = {}, ""
        while True:
            request = fleet_pb2.ListJobStatisticsRequest(page_size=1000, page_token=token)
            page = fleet.ListJobStatistics(request, timeout=20)
            assert not {row.job for row in page.statistics} & found.keys(), "a job has one platform here"
            found |= {row.job: (row.samples, row.mean_cpi, row.std_cpi) for row in page.statistics}
            token = page.next_page_token
            if not token:
                return found


def assert_statistics_are_the_files(got, trace):
    want = expected_statistics(trace)
    assert got.keys() == want.keys()
    counts, means, stds = (np.array([[want[job][i], got[job][i]] for job in want]) for i in range(3))
    np.testing.assert_array_equal(counts[:, 1], counts[:, 0])
    np.testing.assert_allclose(means[:, 1], means[:, 0], rtol=1e-9, atol=0)
    np.testing.assert_allclose(stds[:, 1], stds[:, 0], rtol=1e-9, atol=1e-9)
    assert (stds[:, 1] > 0).sum() > 300  # the other jobs' CPI does not vary in this part of the trace


def assert_lake_is_the_file(found, trace):
    rows, index, jobs, cpi, lost = expected(trace)
    assert rows == len(index) + sum(lost.values())
    assert found.num_rows == len(index)
    want = by_job(jobs, cpi)
    got = by_job(
        found.column("job").to_numpy(zero_copy_only=False).astype(str),
        found.column("cpi").to_numpy(zero_copy_only=False),
    )
    assert got.keys() == want.keys()
    counts, means, stds = (np.array([[want[job][i], got[job][i]] for job in want]) for i in range(3))
    np.testing.assert_array_equal(counts[:, 0], counts[:, 1])
    np.testing.assert_allclose(means[:, 1], means[:, 0], rtol=1e-9, atol=0)
    np.testing.assert_allclose(stds[:, 1], stds[:, 0], rtol=1e-9, atol=1e-12)
    # And row by row: each task's usage is where and when the trace has it.
    table = pq.read_table(trace).take(index)
    names = zip(table.column("collection_id").to_pylist(), table.column("instance_index").to_pylist(), strict=True)
    want_rows = sorted(
        zip(
            [f"{collection}-{instance}" for collection, instance in names],
            map(str, table.column("machine_id").to_pylist()),
            (start * 1000 for start in table.column("start_time").to_pylist()),
            table.column("avg_cpu").to_pylist(),
            strict=True,
        )
    )
    columns = ("vm", "machine", "start_unix_ns", "cpu_usage_cores")
    assert sorted(zip(*(found.column(name).to_pylist() for name in columns), strict=True)) == want_rows
    sensitive = (table.column("priority").to_numpy() >= 120) & (table.column("scheduling_class").to_numpy() >= 2)
    assert found.column("latency_sensitive").to_numpy(zero_copy_only=False).sum() == sensitive.sum()


@pytest.mark.long
def test_every_real_row_arrives_once_and_statistics_equal_the_files(central, trace):
    result = replay(central, trace)
    rows, index, _, cpi, lost = expected(trace)
    print(f"{result['rows_per_s']} rows/s end to end, {result['seconds']:.2f} s, {result['batches_sent']} batches")
    assert result["rows_read"] == rows == 325_611
    assert result["rejected_by_reader"] == lost == {"unknown_machine": 13, "duplicate": 7}
    assert result["rows_sent"] == result["rows_acknowledged"] == result["rows_accepted"] == len(index) == 325_591
    assert result["without_cpi"] == np.isnan(cpi).sum() == 95_602
    assert result["rejected_by_central"] == result["rejected_batches"] == {}
    assert (result["rows_already_there"], result["adds_up"], result["streams"]) == (0, True, 1)
    assert_lake_is_the_file(lake(central, len(index)), trace)
    assert_statistics_are_the_files(statistics_of(central, len(index)), trace)

    again = replay(central, trace)
    assert (again["rows_accepted"], again["rows_already_there"]) == (0, 325_591)
    time.sleep(1.5)  # longer than a roll
    assert lake(central, len(index)).num_rows == 325_591


def connections(central):
    return central.log.read_text().count('event="host connected"')


@pytest.mark.long
def test_both_ends_killed_in_the_middle_and_every_row_is_still_there_once(central, trace):
    for patience_s in (0.4, 0.9):
        process = subprocess.Popen(
            command(central, trace, "--rate", "60000"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )
        time.sleep(1.0 + patience_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = connections(central)
    process = subprocess.Popen(
        command(central, trace, "--rate", "100000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    for _ in range(2):
        deadline = time.monotonic() + BUILD_WAITS_S
        while connections(central) == before:
            assert time.monotonic() < deadline, "the importer does not connect"
            time.sleep(0.02)
        time.sleep(0.3)  # rows are on their way
        central.kill()
        before = connections(central)
        central.start()
    output, problems = process.communicate(timeout=90)
    assert process.returncode == 0, problems
    result = json.loads(output)
    assert result["rows_acknowledged"] == result["rows_sent"] == 325_591
    assert result["streams"] >= 2
    assert result["rows_accepted"] + result["rows_already_there"] == 325_591
    assert_lake_is_the_file(lake(central, 325_591), trace)
