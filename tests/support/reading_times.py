"""Whether a source's samples have the moments at which their counters were read. No time is asserted, only order."""

import time
from collections.abc import Callable
from typing import Any

from collector.base import SourceSample, Stamp, VmSample

SLOW_S = 0.05


def _now() -> Stamp:
    return Stamp(time.monotonic_ns(), time.time_ns())


class ReadingTimes:
    """Notes when what comes before reading was done, and when each VM was read. Reading the first VM takes 50 ms."""

    def __init__(self, slow: str) -> None:
        self._slow = slow
        self._begun = _now()
        self._read: dict[str, list[Stamp]] = {}

    def before(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap what has to be done before anything is read, such as listing the VMs."""

        def wrapped(*arguments: Any, **named: Any) -> Any:
            done = work(*arguments, **named)
            self._read.clear()
            self._begun = _now()
            return done

        return wrapped

    def note(self, vm: str) -> None:
        """Note that a file of a VM is being read; of the slow one it takes its time."""
        self._read.setdefault(vm, []).append(_now())
        if vm == self._slow:
            time.sleep(SLOW_S)
            self._read[vm].append(_now())

    def check(self, sample: SourceSample, other: str, *parts: str) -> None:
        """Assert that no counter has a moment before what came before it, nor one after it was read."""
        own = Stamp(sample.mono_ns, sample.unix_ns)
        first = sample.vms[self._slow]
        assert not any(part in first.stamps for part in parts)  # the sampling's own
        _assert_between(self._begun, own, self._read[self._slow][0])
        vm: VmSample = sample.vms[other]
        for part in parts:
            assert getattr(vm, part) is not None
            _assert_between(self._read[self._slow][-1], vm.stamps[part], self._read[other][0])


def _assert_between(earliest: Stamp, moment: Stamp, latest: Stamp) -> None:
    assert earliest.mono_ns <= moment.mono_ns <= latest.mono_ns
    # A source reads one clock right after the other, and may be kept from it in between: so far it may be late.
    assert earliest.unix_ns <= moment.unix_ns
