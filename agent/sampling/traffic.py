"""What a VM has moved so far, for Prometheus' counters: no scrape misses what lay between. Pure: no I/O, no clocks.

A total grows by what its devices' own counters grew, over whatever time, so a rate that could not be made costs it
nothing. It begins at 0 when the agent first sees the VM, and continues through the VM's epochs.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent.sampling.changes import DiskDelta, JoinedVm, NetworkDelta, ProcessDelta, Reading, VmDelta
from agent.sampling.metric_table import TRAFFIC_METRICS, TrafficTotals
from collector.base import VM_PARTS, Reason

_S = 1_000_000_000
_MAX_PER_S = 1e12  # what no device does: such a reading is left out

#: Per device its incarnation and its counters. Those of another incarnation began at 0.
_Devices = Mapping[str, tuple[object, tuple[int | None, ...]]]


class _Part:
    """A part of a VM by its place in `VM_PARTS`, and the places of its totals: from `first` to `end`.

    Its difference `kind` has the counts from the place `begin`, named as the devices' counters and ordered as the
    totals. `devices` are in a reading's value, and `incarnation` is that of one of them in an epoch.
    """

    def __init__(
        self,
        name: str,
        kind: type[Any],
        first_count: str,
        incarnation: Callable[[Any, str], object],
        devices: Callable[[Any], Mapping[str, Any]] = lambda devices: devices,
    ) -> None:
        places = [place for place, metric in enumerate(TRAFFIC_METRICS) if metric.part == name]
        self.place, self.first, self.end = VM_PARTS.index(name), places[0], places[-1] + 1
        begin = kind._fields.index(first_count)
        self.counts = slice(begin, begin + len(places))
        self._counters = operator.attrgetter(*kind._fields[self.counts])
        self._incarnation, self._devices = incarnation, devices

    def devices(self, value: Any, epoch: str) -> _Devices:
        return {key: (self._incarnation(one, epoch), self._counters(one)) for key, one in self._devices(value).items()}


_PARTS = (
    _Part("disks", DiskDelta, "read_bytes", lambda _, epoch: epoch),
    # Not of the epoch: a tap that is kept counts on when the VM restarts.
    _Part("interfaces", NetworkDelta, "receive_bytes", lambda port, _: port.opened),
    _Part(
        "process",
        ProcessDelta,
        "storage_read_bytes",
        lambda process, epoch: (epoch, process.start_ticks),
        lambda process: {"": process},
    ),
)
_READINGS = JoinedVm._fields.index("threads")  # the parts' readings begin there


class Traffic:
    """One VM's totals."""

    __slots__ = ("_last", "_totals")

    def __init__(self) -> None:
        self._totals: list[int | None] = [None] * len(TRAFFIC_METRICS)
        self._last: list[tuple[Reading[Any], str] | None] = [None] * len(_PARTS)

    def count(self, now: JoinedVm, change: VmDelta) -> None:
        """Add what was moved since the last reading of each part. A reading that was there before adds nothing.

        `change` has the differences to the readings before; where there is none, the counters themselves are compared.
        """
        epoch, totals = now.epoch, self._totals
        for index, part in enumerate(_PARTS):
            reading, last = now[_READINGS + part.place], self._last[index]
            if reading.__class__ is not Reading or (last is not None and reading is last[0]):
                continue
            delta: Any = change[part.place]
            if last is None:
                moved = _moved(part.devices(reading.value, epoch), {}, part.end - part.first)
            elif delta.__class__ is not Reason and Reason not in map(type, delta[part.counts]):
                moved = delta[part.counts]
            else:
                found = part.devices(reading.value, epoch)
                # Two sources' counters of one thing need not have one zero: with the other's it begins again.
                before = part.devices(last[0].value, last[1]) if last[0].source == reading.source else {}
                moved = _moved(found, before, part.end - part.first)
                most = _MAX_PER_S * (reading.mono_ns - last[0].mono_ns) / _S * len(found)
                if any(value is not None and value > most for value in moved):
                    continue  # if the next reading continues from there, its difference is taken
            self._last[index] = (reading, epoch)
            for total, value in enumerate(moved, part.first):
                totals[total] = None if value is None else (totals[total] or 0) + value

    def known(self, now: JoinedVm) -> TrafficTotals:
        """Return the totals; None where a part has no reading now, or is not counted."""
        found = list(self._totals)
        for part in _PARTS:
            if now[_READINGS + part.place].__class__ is not Reading:
                found[part.first : part.end] = [None] * (part.end - part.first)
        return TrafficTotals._make(found)


def _moved(devices: _Devices, before: _Devices, width: int) -> Sequence[int | None]:
    """Return what all devices moved, counter by counter; None where there is none, or one of them does not count it.

    A device that was not there before adds nothing: its past may be long.
    """
    moved: list[int | None] = [0 if devices else None] * width
    for name, (incarnation, counts) in devices.items():
        old = before.get(name)
        for place, count in enumerate(counts):
            so_far = moved[place]
            if count is None or so_far is None:
                moved[place] = None
            elif old is not None:
                base = old[1][place]
                if base is None:
                    continue
                # One that has less than before was set back to 0, as Prometheus takes it.
                is_reset = incarnation != old[0] or count < base
                moved[place] = so_far + (count if is_reset else count - base)
    return moved
