"""The groups of a plan on one target (a thread, or a control group on one CPU): exactly one of them is on."""

import contextlib
import os

from collector.base import PerfGroup
from collector.perf import binding
from collector.perf.binding import Group, Kernel, PerfError, perf_error
from collector.perf.plan import Plan


class Slices:
    """Opens the groups of a plan, of which the one of number `turn` counts; the first arguments are `open_group`'s.

    `counters` are the last readings, one per group. A group that is off is not read again: its counts and clocks stand
    still, and its last reading was taken after it was switched off. `guard_fd` is bound to the thread itself and not to
    its number; -1: none. Raises PerfError; nothing stays open then.
    """

    __slots__ = ("_groups", "_kernel", "_raw", "counters", "guard_fd", "opened", "turn")

    def __init__(
        self, plan: Plan, opened: int, pid: int, cpu: int, turn: int, *, kernel: Kernel, flags: int = 0
    ) -> None:
        self._kernel = kernel
        self._groups: list[Group] = []
        self.guard_fd = -1
        self.opened = opened
        self.turn = turn
        try:
            for index, events in enumerate(plan.groups):
                on = index == turn
                self._groups.append(binding.open_group(events, pid, cpu, kernel=kernel, flags=flags, on=on))
        except PerfError:
            self.close()
            raise
        self._raw = [b""] * len(plan.groups)
        self.counters = tuple(PerfGroup(opened, 0, 0, (0,) * len(events)) for events in plan.groups)

    def advance(self, turn: int) -> bool:
        """Read the group that was on, and switch to the one of number `turn`. Raises PerfError.

        Returns whether the group that was on has moved, its clocks included, since it was read last.
        """
        if turn == self.turn:
            return self._read()
        try:
            self._kernel.disable(self._groups[self.turn].fds[0])
            moved = self._read()
            self._kernel.enable(self._groups[turn].fds[0])
        except OSError as error:
            raise perf_error("switching perf events", error) from error
        self.turn = turn
        return moved

    def close(self) -> None:
        """Close everything. Never raises."""
        for group in self._groups:
            with contextlib.suppress(OSError):
                binding.close_group(group, kernel=self._kernel)
        self._groups = []
        if self.guard_fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.guard_fd)
            self.guard_fd = -1

    def _read(self) -> bool:
        turn = self.turn
        group = self._groups[turn]
        data = binding.read_raw(group, kernel=self._kernel)
        if data == self._raw[turn]:
            return False
        new = binding.unpack_reading(group, data, self.opened)
        self._raw[turn] = data
        self.counters = (new,) if len(self._raw) == 1 else (*self.counters[:turn], new, *self.counters[turn + 1 :])
        return True
