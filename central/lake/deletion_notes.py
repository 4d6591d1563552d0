"""Through which day retention deletes, noted in the lake before anything is deleted."""

import contextlib
import time
from datetime import date
from typing import Literal

import msgspec

from central.lake.segments import Lake

_FOLDER = "retention"
_What = Literal["samples", "slots"]


def note_deletion(lake: Lake, what: _What, until: date) -> None:
    """Note, before anything is deleted, that all through that day may be. Raises OSError."""
    if deleted_through(lake, what) >= until:
        return
    text = msgspec.json.encode({"through": until, "noted_unix_ns": time.time_ns()}) + b"\n"
    with contextlib.suppress(FileExistsError):  # another replica was quicker
        lake.objects.create(f"{_FOLDER}/{what}-through-{until}.json", text)
    for name, day in _notes(lake, what):
        if day < until:
            lake.objects.remove(name)


def deleted_through(lake: Lake, what: _What) -> date:
    """Return the last day through which retention deletes, `date.min` if it never did. Raises OSError."""
    return max((day for _, day in _notes(lake, what)), default=date.min)


def _notes(lake: Lake, what: _What) -> list[tuple[str, date]]:
    start, end = f"{_FOLDER}/{what}-through-", ".json"
    notes = []
    for entry in lake.objects.entries(_FOLDER):
        if entry.name.startswith(start) and entry.name.endswith(end):
            with contextlib.suppress(ValueError):  # not a note
                notes.append((entry.name, date.fromisoformat(entry.name[len(start) : -len(end)])))
    return notes
