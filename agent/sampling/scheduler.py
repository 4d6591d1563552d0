"""The tick's absolute schedule: a grid on CLOCK_MONOTONIC that no late tick moves."""

#: What the wall clock gains or loses on the monotonic one between two ticks without being called a step.
CLOCK_STEP_NS = 500_000_000


class TickSchedule:
    """When the next tick is due, and how many were missed.

    `due_ns` advances by whole periods only. After a stall the latest grid point that is due runs, and those before it
    are missed and counted.
    """

    def __init__(self, period_ns: int, first_ns: int) -> None:
        if period_ns <= 0:
            raise ValueError(f"a tick's period must be above 0 (value {period_ns})")
        self.period_ns = period_ns
        self.due_ns = first_ns
        self.ticks = 0
        self.missed = 0

    def advance(self, now_ns: int) -> int | None:
        """Take the tick that is due at `now_ns`; return how late its oldest point is in ns, None where none is due."""
        lateness_ns = now_ns - self.due_ns
        if lateness_ns < 0:
            return None
        missed = lateness_ns // self.period_ns
        self.due_ns += (missed + 1) * self.period_ns
        self.missed += missed
        self.ticks += 1
        return lateness_ns


class ClockSteps:
    """Counts the steps of the wall clock: how far it moved against the monotonic one since the last tick.

    Durations and the schedule feel none of it; windows are named by Unix time, so one may be shorter or come twice.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._offset_ns: int | None = None

    def observe(self, mono_ns: int, unix_ns: int) -> int | None:
        """Take both clocks at a tick; return the step in nanoseconds (negative: set back), None for none."""
        offset_ns = unix_ns - mono_ns
        last_ns, self._offset_ns = self._offset_ns, offset_ns
        if last_ns is None or abs(offset_ns - last_ns) <= CLOCK_STEP_NS:
            return None
        self.steps += 1
        return offset_ns - last_ns


def first_due_ns(mono_ns: int, unix_ns: int, period_ns: int) -> int:
    """Return the first grid point after now for which Unix time is a multiple of the period.

    So ticks meet the borders of the CPI windows. A later step of the Unix clock does not move the grid.
    """
    return mono_ns + period_ns - unix_ns % period_ns
