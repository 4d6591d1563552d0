import gzip
import io
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.traces.google import LatencySensitiveRule, TraceBatch, TraceLimits, read_trace
from whitepanda.common.errors import InputError

FLAT = (
    "collection_id,instance_index,machine_id,start_time,end_time,"
    "avg_cpu,cycles_per_instruction,priority,scheduling_class\n"
)
ROWS = """\
100,0,7,300000000,600000000,0.25,1.5,200,3
100,1,7,300000000,600000000,0.5,,119,3
200,0,8,0,1000000,0,2.5,120,2
"""


def write(path, text):
    path.write_text(text)
    return path


def collect(reader):
    batches = list(reader)
    return TraceBatch.concatenate(batches) if batches else None


def read(path, **options):
    reader = read_trace(path, **options)
    return collect(reader), reader.counts


def test_flattened_csv_gives_numpy_columns(tmp_path):
    rows, counts = read(write(tmp_path / "a.csv", FLAT + ROWS))
    assert rows.collection_id.tolist() == [100, 100, 200]
    assert rows.instance_index.tolist() == [0, 1, 0]
    assert rows.machine_id.tolist() == [7, 7, 8]
    assert rows.start_unix_ns.tolist() == [300_000_000_000, 300_000_000_000, 0]
    assert rows.duration_ns.tolist() == [300_000_000_000, 300_000_000_000, 1_000_000_000]
    assert rows.cpu_usage.tolist() == [0.25, 0.5, 0.0]
    np.testing.assert_array_equal(rows.cpi, [1.5, np.nan, 2.5])
    assert rows.latency_sensitive.tolist() == [True, False, True]
    assert (counts.rows_read, counts.accepted, counts.without_cpi, counts.rejected) == (3, 3, 1, {})


def test_every_spelling_and_format_gives_the_same_rows(tmp_path):
    want, _ = read(write(tmp_path / "flat.csv", FLAT + ROWS))
    flat = pa_csv.read_csv(io.BytesIO((FLAT + ROWS).encode()))
    usage = flat.column("avg_cpu").combine_chunks()
    at = flat.schema.get_field_index("avg_cpu")
    record = pa.StructArray.from_arrays([usage, usage], ["cpus", "memory"])
    as_text = pa.array([f"{{'cpus': {value}, 'memory': 0.1}}" for value in usage.to_pylist()])
    tables = {
        "nested": flat.set_column(at, "average_usage", record),
        "dotted": flat.set_column(at, "average_usage.cpus", usage),
        "underscore": flat.set_column(at, "average_usage_cpus", usage),
        "text": flat.set_column(at, "average_usage", as_text),
        "flat": flat,
    }
    files = []
    for name, table in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
        files.append(tmp_path / f"{name}.parquet")
        if name != "nested":
            pa_csv.write_csv(table, tmp_path / f"{name}.csv")
            files.append(tmp_path / f"{name}.csv")
    packed = tmp_path / "packed.csv.gz"
    packed.write_bytes(gzip.compress((FLAT + ROWS).encode()))
    for file in [*files, packed]:
        got, counts = read(file)
        assert counts.accepted == 3, file
        for name in TraceBatch.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(got, name), getattr(want, name), err_msg=f"{file} {name}")


def test_integers_as_floats_as_pandas_writes_them(tmp_path):
    table = pa.table(
        {
            "collection_id": [100.0, None],
            "instance_index": [0.0, 0.0],
            "machine_id": [17377689713.0, 1.0],
            "start_time": [300000000.0] * 2,
            "end_time": [600000000.0] * 2,
            "avg_cpu": pa.array([0.5, 0.5], pa.float32()),
            "cycles_per_instruction": [1.0, 1.0],
            "priority": [200.0, 200.0],
            "scheduling_class": [3.0, 3.0],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    rows, counts = read(tmp_path / "a.parquet")
    assert rows.machine_id.tolist() == [17377689713]
    assert counts.rejected == {"unknown_task": 1}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,0,-1,1,2,0.5,1.5,200,3", "unknown_machine"),
        ("1,0,,1,2,0.5,1.5,200,3", "unknown_machine"),
        (",0,5,1,2,0.5,1.5,200,3", "unknown_task"),
        ("1,0,5,2,2,0.5,1.5,200,3", "bad_time"),
        ("1,0,5,-2,2,0.5,1.5,200,3", "bad_time"),
        ("1,0,5,,2,0.5,1.5,200,3", "bad_time"),
        ("1,0,5,1,9223372036854775807,0.5,1.5,200,3", "bad_time"),
        ("1,0,5,1,2,-0.1,1.5,200,3", "bad_cpu_usage"),
        ("1,0,5,1,2,NaN,1.5,200,3", "bad_cpu_usage"),
        ("1,0,5,1,2,1e9,1.5,200,3", "bad_cpu_usage"),
        ("1,0,5,1,2,inf,1.5,200,3", "bad_cpu_usage"),
        ("1,0,5,1,2,half,1.5,200,3", "not_a_number"),
        ("1,0,five,1,2,0.5,1.5,200,3", "not_a_number"),
        ("1,0,5,1,2,0.5,1.5,200", "malformed_row"),
        ("1,0,5,1,2,0.5,1.5,200,3,4", "malformed_row"),
    ],
)
def test_a_bad_row_is_counted_and_the_rest_goes_through(tmp_path, row, reason):
    rows, counts = read(write(tmp_path / "a.csv", FLAT + ROWS + row + "\n"))
    assert rows.rows == 3
    assert counts.rejected == {reason: 1}
    assert counts.rows_read == 4 == counts.accepted + sum(counts.rejected.values())


@pytest.mark.parametrize("cpi", ["0", "-3", "inf", "-inf", "105.28", "0.009", "", "NaN"])
def test_a_cpi_that_cannot_be_one_counts_for_nobody_but_its_rows_usage_does(tmp_path, cpi):
    rows, counts = read(write(tmp_path / "a.csv", FLAT + ROWS + f"1,0,5,1,2,0.75,{cpi},200,3\n"))
    assert (rows.rows, rows.cpu_usage[-1], rows.latency_sensitive[-1]) == (4, 0.75, True)
    assert np.isnan(rows.cpi[-1])
    is_bad = cpi not in ("", "NaN")
    assert rows.bad_cpi.tolist() == [False, False, False, is_bad]
    assert (counts.rejected, counts.unusable_cpi, counts.without_cpi) == ({}, 2, 1 if is_bad else 2)
    assert counts.first == ({"unusable_cpi": "row 4 of a.csv"} if is_bad else {})


def test_limits_of_cpi_that_leave_none_are_refused():
    for largest in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match=r"the largest CPI must be above 0.01 \(value "):
            TraceLimits(max_cpi=largest)


def test_a_rule_that_compares_with_no_number_is_refused():
    for what, rule in (("priority", {"priority": float("nan")}), ("scheduling class", {"scheduling_class": np.nan})):
        with pytest.raises(InputError, match=rf"the least {what} of latency-sensitive tasks must be a number"):
            LatencySensitiveRule(**rule)
    LatencySensitiveRule(priority=float("-inf"))  # all are


def test_where_a_reason_came_first_is_reported(tmp_path):
    bad = "1,0,-1,1,2,0.5,1,200,3\n"
    first, second = write(tmp_path / "a.csv", FLAT + ROWS), write(tmp_path / "b.csv", FLAT + ROWS + 2 * bad)
    for batch_rows in (1, 2, 1000):
        _, counts = read([first, second], batch_rows=batch_rows)
        assert counts.rejected == {"unknown_machine": 2, "duplicate": 3}
        assert counts.first == {"unknown_machine": "row 4 of b.csv"}


STAMPED = pa_csv.read_csv(io.BytesIO((FLAT + ROWS).encode()))


def with_times(path, kind, scale):
    """The rows with other times: of an Arrow type, which `scale` makes of microseconds."""
    table = STAMPED
    for name in ("start_time", "end_time"):
        values = [scale(value) for value in table[name].to_pylist()]
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values, kind))
    if path.suffix == ".csv":
        pa_csv.write_csv(table, path)
    else:
        pq.write_table(table, path)
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize(("unit", "per_us"), [("s", 1e-6), ("ms", 1e-3), ("us", 1), ("ns", 1000)])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Paris"])
def test_timestamps_are_read_by_their_unit(tmp_path, suffix, unit, per_us, zone):
    kind = pa.timestamp(unit, zone)
    file = with_times(tmp_path / f"a{suffix}", kind, lambda us: int(us * per_us))
    rows, counts = read(file)
    assert rows.start_us.tolist() == [300_000_000, 300_000_000, 0]
    assert rows.duration_us.tolist() == [300_000_000, 300_000_000, 1_000_000]
    assert counts.accepted == 3


def test_dates_in_a_csv_file_are_utc_unless_they_say_otherwise(tmp_path):
    text = (
        "1,0,5,2019-05-01 00:00:00,2019-05-01T00:05:00.5Z,0.5,1,200,3\n"
        "1,0,5,2019-05-01 02:10:00+02:00,2019-05-01 00:15:00 UTC,0.5,1,200,3\n"
        "1,0,5,yesterday,2019-05-01 00:15:00,0.5,1,200,3\n"
        "1,0,5,,2019-05-01 00:15:00,0.5,1,200,3\n"
    )
    rows, counts = read(write(tmp_path / "a.csv", FLAT + text))
    may = 1_556_668_800 * 10**6
    assert rows.start_us.tolist() == [may, may + 600 * 10**6]
    assert rows.duration_us.tolist() == [300_500_000, 300_000_000]
    assert counts.rejected == {"not_a_number": 1, "bad_time": 1}


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize(
    ("unit", "remedy", "per_us", "lasts"),
    [
        ("seconds", "multiply them by 1,000,000", 1e-6, "0.0003 s"),
        ("milliseconds", "multiply them by 1,000", 1e-3, "0.3 s"),
        ("nanoseconds", "divide them by 1,000", 1000, "3.47 days"),
    ],
)
def test_numbers_in_another_unit_are_refused(tmp_path, suffix, unit, remedy, per_us, lasts):
    file = with_times(tmp_path / f"a{suffix}", pa.int64(), lambda us: int(us * per_us))
    start, end = int(300_000_000 * per_us), int(600_000_000 * per_us)
    with pytest.raises(InputError) as error:
        collect(read_trace(file))
    assert str(error.value) == (
        f"{file}: columns 'start_time' and 'end_time' must be microseconds: the window of row 1, {start} to {end}, "
        f"would last {lasts}; are they {unit}? {remedy}, or write them as TIMESTAMP"
    )


@pytest.mark.parametrize(("window_s", "lasts"), [(1, "1e+03 s"), (86, "8.6e+04 s")])
def test_nanoseconds_of_short_windows_are_refused(tmp_path, window_s, lasts):
    def times(us):  # windows of 300 s made short
        return us * 1000 * window_s // 300

    file = with_times(tmp_path / "a.parquet", pa.int64(), times)
    with pytest.raises(InputError, match=re.escape(f"would last {lasts}; are they nanoseconds? divide")):
        collect(read_trace(file))


def test_nanoseconds_since_1970_are_refused_though_no_such_microsecond_is_known(tmp_path):
    may = 1_556_668_800 * 10**9
    file = with_times(tmp_path / "a.parquet", pa.int64(), lambda us: may + us * 1000)
    with pytest.raises(InputError, match=r"would last 3\.47 days; are they nanoseconds"):
        collect(read_trace(file))


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_times_with_fractions_are_refused(tmp_path, suffix):
    file = with_times(tmp_path / f"a{suffix}", pa.float64(), lambda us: us * 1e-6 + 0.5)
    with pytest.raises(InputError) as error:
        collect(read_trace(file))
    assert str(error.value) == (
        f"{file}: column 'start_time' must be whole microseconds (row 1, value 300.5); are they seconds? multiply "
        "them by 1,000,000 and round, or write them as TIMESTAMP"
    )


def test_timestamps_beside_numbers_are_refused(tmp_path):
    at = STAMPED.schema.get_field_index("end_time")
    stamps = STAMPED["end_time"].cast(pa.timestamp("us"))
    pq.write_table(STAMPED.set_column(at, "end_time", stamps), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="column 'end_time' has timestamps and 'start_time' plain numbers"):
        collect(read_trace(tmp_path / "a.parquet"))


def test_a_date_is_no_number_elsewhere(tmp_path):
    at = STAMPED.schema.get_field_index("priority")
    stamps = STAMPED["end_time"].cast(pa.timestamp("us"))
    pq.write_table(STAMPED.set_column(at, "priority", stamps), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"column 'priority' must be numbers \(type timestamp\[us\]\)"):
        read_trace(tmp_path / "a.parquet")
    text = FLAT + ROWS.replace("0,1000000,", "0,2019-05-01 00:00:00,")
    rows, counts = read(write(tmp_path / "b.csv", text))
    assert (rows.rows, counts.rejected) == (2, {"not_a_number": 1})


def test_a_row_bad_in_several_ways_counts_once(tmp_path):
    _, counts = read(write(tmp_path / "a.csv", FLAT + ROWS + "1,0,-1,5,2,-1,-1,200,3\n"))
    assert counts.rejected == {"unknown_machine": 1}


def test_limits_and_rule_are_settings(tmp_path):
    file = write(tmp_path / "a.csv", FLAT + ROWS + "1,0,5,1,2,0.5,105.28,119,1\n")
    rows, counts = read(
        file, limits=TraceLimits(max_cpi=200), rule=LatencySensitiveRule(priority=119, scheduling_class=1)
    )
    assert counts.rejected == {}
    assert rows.cpi[-1] == 105.28
    assert rows.latency_sensitive.tolist() == [True] * 4


def test_a_task_of_unknown_priority_is_counted_and_not_latency_sensitive(tmp_path):
    rows, counts = read(write(tmp_path / "a.csv", FLAT + ROWS + "1,0,5,1,2,0.5,1.5,,3\n"))
    assert rows.latency_sensitive.tolist()[-1] is False
    assert counts.without_priority == 1
    assert counts.rejected == {}


@pytest.mark.parametrize("cpi_first", [True, False])
def test_of_duplicates_the_one_with_a_cpi_is_kept(tmp_path, cpi_first):
    pair = ["9,0,5,300,600,0.5,1.25,200,3\n", "9,0,5,300,900,0.75,,200,3\n"]
    text = FLAT + (pair[0] if cpi_first else pair[1]) + ROWS + (pair[1] if cpi_first else pair[0])
    rows, counts = read(write(tmp_path / "a.csv", text))
    kept = rows.take(rows.collection_id == 9)
    assert (kept.cpi.tolist(), kept.cpu_usage.tolist()) == ([1.25], [0.5])
    assert counts.rejected == {"duplicate": 1}
    assert counts.without_cpi == 1  # not that of the dropped row


def test_of_duplicates_without_cpi_the_first_is_kept_and_other_keys_are_none(tmp_path):
    text = (
        FLAT
        + "9,0,5,3000000,6000000,0.5,,200,3\n9,0,5,3000000,9000000,0.75,,200,3\n"
        + "9,0,6,3000000,6000000,0.1,,1,1\n9,1,5,3000000,6000000,0.1,,1,1\n"
    )
    rows, counts = read(write(tmp_path / "a.csv", text))
    assert sorted(rows.cpu_usage.tolist()) == [0.1, 0.1, 0.5]
    assert counts.rejected == {"duplicate": 1}


def test_a_rejected_row_takes_no_duplicate_with_it(tmp_path):
    text = FLAT + "9,0,5,3000000,6000000,-0.5,1,200,3\n9,0,5,3000000,9000000,0.75,,200,3\n"
    rows, counts = read(write(tmp_path / "a.csv", text))
    assert rows.cpu_usage.tolist() == [0.75]
    assert counts.rejected == {"bad_cpu_usage": 1}


def test_of_duplicates_the_one_with_a_usable_cpi_is_kept(tmp_path):
    text = FLAT + "9,0,5,3000000,6000000,0.5,500,200,3\n9,0,5,3000000,9000000,0.75,1.5,200,3\n"
    rows, counts = read(write(tmp_path / "a.csv", text))
    assert rows.cpi.tolist() == [1.5]
    assert (counts.rejected, counts.unusable_cpi) == ({"duplicate": 1}, 0)


def test_duplicates_are_found_across_files(tmp_path):
    first, second = write(tmp_path / "a.csv", FLAT + ROWS), write(tmp_path / "b.csv", FLAT + ROWS)
    rows, counts = read([first, second])
    assert rows.rows == 3
    assert counts.rejected == {"duplicate": 3}
    assert counts.rows_read == 6


@settings(max_examples=30, deadline=None)
@given(
    keys=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.booleans()), min_size=1, max_size=40),
    batch_rows=st.integers(1, 7),
)
def test_batches_of_any_size_give_the_same(tmp_path_factory, keys, batch_rows):
    text = FLAT + "".join(
        f"{task},0,5,{start},90000000,{i / 64},{'1.5' if has else ''},200,3\n"
        for i, (task, start, has) in enumerate(keys)
    )
    file = write(tmp_path_factory.mktemp("t") / "a.csv", text)
    pq.write_table(pa_csv.read_csv(file), file.with_suffix(".parquet"))
    best = {}
    for i, (task, start, has) in enumerate(keys):
        if (task, start) not in best or (has and not best[task, start][1]):
            best[task, start] = (i / 64, has)
    for path in (file, file.with_suffix(".parquet")):
        rows, counts = read(path, batch_rows=batch_rows)
        got = {
            (task, start): (usage, not np.isnan(cpi))
            for task, start, usage, cpi in zip(rows.collection_id, rows.start_us, rows.cpu_usage, rows.cpi, strict=True)
        }
        assert got == best
        assert rows.rows == len(best)
        assert counts.rows_read == len(keys) == counts.accepted + sum(counts.rejected.values())


def test_iterating_again_counts_again(tmp_path):
    reader = read_trace(write(tmp_path / "a.csv", FLAT + ROWS))
    collect(reader)
    first = replace(reader.counts)
    collect(reader)
    assert reader.counts == first
    assert reader.total_rows == 3


def test_no_rows_is_no_error(tmp_path):
    rows, counts = read(write(tmp_path / "a.csv", FLAT))
    assert rows is None
    assert (counts.rows_read, counts.accepted) == (0, 0)


def test_missing_columns_are_named_with_what_is_accepted(tmp_path):
    file = write(tmp_path / "a.csv", FLAT.replace("avg_cpu", "cpu").replace("machine_id", "host") + ROWS)
    with pytest.raises(InputError) as caught:
        read_trace(file)
    text = str(caught.value)
    assert str(file) in text
    assert "missing columns 'machine_id', 'average_usage.cpus' or 'average_usage_cpus' or 'avg_cpu'" in text
    assert "it has: collection_id" in text


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_other_separators_are_reported(tmp_path, mark):
    file = write(tmp_path / "a.csv", (FLAT + ROWS).replace(",", mark))
    with pytest.raises(InputError) as error:
        read_trace(file)
    assert str(error.value).endswith(f"; its fields are separated by {mark!r}, must be by commas")


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    text = "".join(f"{line},7\n" for line in (FLAT + ROWS).splitlines())
    file = write(tmp_path / "a.csv", text.replace("class,7", "class,start_time", 1))
    with pytest.raises(InputError, match=r"a\.csv: has 2 columns 'start_time'; leave one"):
        read_trace(file)
    pq.write_table(STAMPED.append_column("start_time", STAMPED["end_time"]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: has 2 columns 'start_time'; leave one"):
        read_trace(tmp_path / "a.parquet")


def test_a_trace_without_priorities_gets_the_remedy(tmp_path):
    file = write(tmp_path / "a.csv", FLAT.replace("priority", "prio") + ROWS)
    with pytest.raises(InputError, match=r"missing column 'priority' .* join by collection_id"):
        read_trace(file)


def test_a_column_of_text_is_no_column_of_numbers(tmp_path):
    text = FLAT + "1,0,5,1,2000001,0.5,high,200,3\n2,0,5,1,2000001,0.5,low,200,3\n"
    with pytest.raises(InputError, match="column 'cycles_per_instruction' must be numbers \\(row 1, value 'high'\\)"):
        collect(read_trace(write(tmp_path / "a.csv", text)))


def test_a_wrong_type_in_parquet_is_refused_at_once(tmp_path):
    table = pa_csv.read_csv(io.BytesIO((FLAT + ROWS).encode()))
    at = table.schema.get_field_index("priority")
    pq.write_table(table.set_column(at, "priority", pa.array([True] * 3)), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="column 'priority' must be numbers \\(type bool\\)"):
        read_trace(tmp_path / "a.parquet")


def test_broken_files_are_one_clear_error(tmp_path):
    table = pa_csv.read_csv(io.BytesIO((FLAT + ROWS).encode()))
    pq.write_table(table, tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cut\.parquet: not readable as Parquet"):
        read_trace(tmp_path / "cut.parquet")
    damaged = bytearray(whole)
    damaged[4:60] = b"\xff" * 56
    (tmp_path / "bad.parquet").write_bytes(damaged)
    with pytest.raises(InputError, match=r"bad\.parquet: broken file"):
        collect(read_trace(tmp_path / "bad.parquet"))
    with pytest.raises(InputError, match=r"nothing\.csv: cannot read: No such file"):
        read_trace(tmp_path / "nothing.csv")
    with pytest.raises(InputError, match=r"empty\.csv: is empty"):
        read_trace(write(tmp_path / "empty.csv", ""))
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress((FLAT + ROWS * 10_000).encode())[:-20])
    with pytest.raises(InputError, match=r"cut\.csv\.gz"):
        collect(read_trace(tmp_path / "cut.csv.gz"))
    with pytest.raises(InputError, match="no trace file"):
        read_trace([])


PLAIN = (FLAT + ROWS).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes(range(256)), "is neither Parquet nor CSV (byte 0x00 in its first line)"),
        (b"\x00" + PLAIN, "is neither Parquet nor CSV (byte 0x00 in its first line)"),
        (b"\xf4\xd2,\x17\n\xff\n", "is neither Parquet nor CSV (byte 0x17 in its first line)"),
        (PLAIN.decode().encode("utf-16"), "is UTF-16 text; convert it to UTF-8 first"),
        (PLAIN.decode().encode("utf-16-le"), "is UTF-16 text; convert it to UTF-8 first"),
        (PLAIN.decode().encode("utf-16-be"), "is UTF-16 text; convert it to UTF-8 first"),
        (gzip.compress(b"PAR1" + b"\x00" * 50), "is a compressed Parquet file; decompress it first"),
        (gzip.compress(PLAIN)[:-30], "not readable as CSV: Truncated compressed stream"),
        (b"PAR1 and nothing else", "not readable as Parquet"),
    ],
)
def test_what_is_no_trace_is_reported_in_one_line(tmp_path, content, message):
    file = tmp_path / "x.csv"
    file.write_bytes(content)
    with pytest.raises(InputError) as error:
        collect(read_trace(file))
    assert str(error.value).startswith(f"{file}: {message}")
    assert "\n" not in str(error.value)


def test_a_folder_is_no_trace(tmp_path):
    with pytest.raises(InputError, match="cannot read: Is a directory"):
        read_trace(tmp_path)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.csv.gz"])
def test_the_content_reports_the_format_not_the_name(tmp_path, name):
    want, _ = read(write(tmp_path / "want.csv", FLAT + ROWS))
    file = tmp_path / name
    buffer = io.BytesIO()
    pq.write_table(pa_csv.read_csv(io.BytesIO(PLAIN)), buffer)
    for content in (PLAIN, b"\xef\xbb\xbf" + PLAIN, gzip.compress(PLAIN), buffer.getvalue()):
        file.write_bytes(content)
        np.testing.assert_array_equal(collect(read_trace(file)).cpi, want.cpi)


def test_bytes_that_are_no_text_cost_their_row_only(tmp_path, capfd):
    file = tmp_path / "a.csv"
    short, garbled, nul = (b"\xff\xfe,1\n", b"\xff,0,8,5,9,0,2.5,1,2\n", b"9,0,8,\x006,9,0,2.5,1,2\n")
    file.write_bytes(FLAT.encode() + short + garbled + nul + ROWS.encode())
    rows, counts = read(file)
    assert rows.rows == 3
    assert counts.rejected == {"malformed_row": 1, "not_a_number": 2}
    assert capfd.readouterr() == ("", "")  # pyarrow would print a traceback


def test_nul_bytes_in_a_parquet_column_cost_their_row_only(tmp_path):
    table = pa_csv.read_csv(io.BytesIO(PLAIN))
    text = pa.array(["1.5", "\x001.5", None])
    index = table.schema.get_field_index("cycles_per_instruction")
    pq.write_table(table.set_column(index, "cycles_per_instruction", text), tmp_path / "a.parquet")
    rows, counts = read(tmp_path / "a.parquet")
    assert rows.cpi.tolist()[0] == 1.5
    assert (counts.accepted, counts.rejected) == (2, {"not_a_number": 1})


def test_names_found_in_a_file_are_shown_printable_and_cut(tmp_path):
    with pytest.raises(InputError) as error:
        read_trace(write(tmp_path / "a.csv", "a\x9b31m," + "b" * 5000 + "\n"))
    assert "(it has: a\u00c2?31m, bbb" in str(error.value)
    assert len(str(error.value)) < 1200
