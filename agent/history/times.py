"""Times as people write them for `--at` and `--since`."""

import re
from datetime import datetime, timedelta

from whitepanda.common.errors import InputError

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_AGO = re.compile(r"-(?:(\d{1,5})d)?(?:(\d{1,5})h)?(?:(\d{1,5})m)?(?:(\d{1,6})s)?")
_FORMS = "03:10, 03:10:30, 2026-11-28T03:10, or -30m (also s, h, d, as in -1h30m)"


def parse_time(option: str, text: str, now: datetime) -> datetime:
    """Return the moment that a text says; `now` has the time zone that it counts in.

    A time of day is the last one: today's, or yesterday's where today's is still to come. InputError: it is no time, or
    in the future; `option` is named.
    """
    text = text.strip()
    try:
        found = _parse(text, now)
    except (ValueError, OverflowError) as error:
        why = "" if str(error) == "form" else f" ({error})"
        raise InputError(f"{option}: {text[:40]!r} is no time{why}; give {_FORMS}") from None
    if found.timestamp() < 0:
        raise InputError(f"{option}: {shown(found)} is before 1970")
    if found > now:
        raise InputError(f"{option}: {shown(found)} is in the future; it is {shown(now)} now")
    return found


def _parse(text: str, now: datetime) -> datetime:
    if ago := _AGO.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in ago.groups())
        if not any(ago.groups()):
            raise ValueError("form")
        return now - timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if clock := _CLOCK.fullmatch(text):
        hour, minute, second = (int(part or 0) for part in clock.groups())
        today = now.replace(hour=hour, minute=minute, second=second, microsecond=0, fold=0, tzinfo=None)
        wanted = _local(today, now)
        return wanted if wanted <= now else _local(today - timedelta(days=1), now)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("form") from None
    return found if found.tzinfo else _local(found, now)


def _local(naive: datetime, now: datetime) -> datetime:
    """Give a time the zone of `now`; where that is this machine's own, with the offset of that day."""
    if now.tzinfo is not None and now.utcoffset() == now.astimezone().utcoffset():
        return naive.astimezone()
    return naive.replace(tzinfo=now.tzinfo)


def shown(moment: datetime) -> str:
    """Return a moment as people read it."""
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def shown_ns(unix_ns: int) -> str:
    """Return a Unix time in this machine's time zone."""
    return shown(datetime.fromtimestamp(unix_ns / 1e9).astimezone())
