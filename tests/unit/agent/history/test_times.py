"""What `--at` takes, and what it says of anything else."""

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from agent.history.times import parse_time
from whitepanda.common.errors import InputError

NOW = datetime(2026, 11, 29, 9, 0, 0, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("03:10", "2026-11-29T03:10:00+01:00"),
        ("3:10", "2026-11-29T03:10:00+01:00"),
        ("03:10:30", "2026-11-29T03:10:30+01:00"),
        ("09:00", "2026-11-29T09:00:00+01:00"),
        ("09:01", "2026-11-28T09:01:00+01:00"),  # still to come today: yesterday's
        ("-30m", "2026-11-29T08:30:00+01:00"),
        ("-1h30m", "2026-11-29T07:30:00+01:00"),
        ("-90s", "2026-11-29T08:58:30+01:00"),
        ("-2d", "2026-11-27T09:00:00+01:00"),
        (" 2026-11-28T03:10 ", "2026-11-28T03:10:00+01:00"),
        ("2026-11-28 03:10:05", "2026-11-28T03:10:05+01:00"),
        ("2026-11-28T03:10Z", "2026-11-28T03:10:00+00:00"),
    ],
)
def test_times(text, found):
    assert parse_time("--at", text, NOW) == datetime.fromisoformat(found)


@pytest.mark.parametrize(
    "text", ["", "-", "noon", "25:00", "03:99", "30m", "-30", "-5x", "2026-13-01", "2026-11-28T99:00"]
)
def test_what_is_no_time_is_one_line_with_the_forms(text):
    with pytest.raises(InputError) as caught:
        parse_time("--at", text, NOW)
    assert str(caught.value).startswith(f"--at: {text!r} is no time")
    assert str(caught.value).endswith("give 03:10, 03:10:30, 2026-11-28T03:10, or -30m (also s, h, d, as in -1h30m)")


def test_the_future_is_refused():
    with pytest.raises(
        InputError, match=r"^--since: 2026-11-30 03:10:00 is in the future; it is 2026-11-29 09:00:00 now$"
    ):
        parse_time("--since", "2026-11-30T03:10", NOW)


def test_too_long_ago_is_no_time():
    with pytest.raises(InputError, match="is no time"):
        parse_time("--at", "-99999d99999h", datetime(100, 1, 1, tzinfo=UTC))


def test_a_time_of_day_has_the_offset_of_that_time(monkeypatch):
    """In the night in which the clocks change the morning's offset is not the night's."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        morning = datetime(2026, 10, 25, 9, 0).astimezone()
        assert parse_time("--at", "01:30", morning) == datetime.fromisoformat("2026-10-25T01:30:00+02:00")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_times_before_1970_are_refused():
    with pytest.raises(InputError, match="1960-01-01 00:00:00 is before 1970"):
        parse_time("--at", "1960-01-01", NOW)
