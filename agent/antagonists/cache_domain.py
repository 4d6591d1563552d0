"""Contention in one last-level cache's domain of this host: mnCPI of its VMs, its history, and the trigger.

A host whose domains are not known, or that has one, is one domain. Nothing here reads a clock.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from agent.analysis.contention.live_trigger import NoiseScaledTrigger
from agent.analysis.contention.normalised_cpi import CERTAIN_MN_CPI, SlotState, TaskSlot, slot_state
from agent.analysis.contention.slot_trigger import is_triggered, mn_cpi_threshold
from agent.antagonists.vm_slots import MIN_COVERAGE
from agent.config import AnalysisSection
from agent.sampling.windows import CpiWindow

_S = 10**9


class Contention:
    """One domain's state. Single-threaded. `states`: the last slots, oldest first; the last one ends now.

    The history of mnCPI is in memory only: after a restart the configured floor is the threshold until there are enough
    slots again.
    """

    def __init__(self, section: AnalysisSection) -> None:
        self.states: list[SlotState] = []
        self._section = section
        self._history: deque[tuple[int, float]] = deque(maxlen=section.history_slots)  # (slot's end, mnCPI)
        self._recorded_unix_ns = 0
        self._threshold = section.mn_cpi_floor
        self._live: tuple[int, NoiseScaledTrigger] | None = None  # with the windows' length in nanoseconds
        # The last windows with their nCPI, and the version of the statistics that it is by.
        self._seen: tuple[int, list[tuple[CpiWindow, float]]] = (0, [])

    @property
    def mn_cpi(self) -> float | None:
        """Equation (2) over the last slot; None without a latency-sensitive VM whose CPI can be judged."""
        return self.states[-1].mn_cpi if self.states else None

    @property
    def live(self) -> NoiseScaledTrigger | None:
        """The live trigger, if it decides now."""
        return self._live[1] if self._live is not None and self._live[1].is_ready else None

    @property
    def value(self) -> float | None:
        """The value compared with `threshold`: mnCPI of the last slot, or over the live trigger's length of time."""
        return self.live.value if self.live else self.mn_cpi

    @property
    def threshold(self) -> float:
        """The threshold that `value` has to exceed."""
        return self.live.threshold if self.live else self._threshold

    @property
    def triggered(self) -> bool:
        """Whether there is contention now."""
        if self.live is not None:
            return self.live.is_on
        return is_triggered(self.states, self._threshold, self._section.victim_slots)

    @property
    def excess(self) -> tuple[bool, float]:
        """Sort key: greater in the worse of two domains."""
        value = self.value
        return self.triggered, -math.inf if value is None else value - self.threshold

    def forget(self) -> None:
        """Drop the history: slots have another length from here on, whose values vary differently."""
        self._history.clear()
        self._recorded_unix_ns = 0

    def take_slots(self, tasks: Sequence[Sequence[TaskSlot]], now_unix_ns: int, slot_ns: int) -> None:
        """Take the domain's tasks in the last slots, youngest first; keep the youngest in the history once per slot."""
        self.states = [slot_state(each) for each in reversed(tasks)]
        tested = now_unix_ns - self._section.victim_slots * slot_ns
        past = [value for end, value in self._history if end <= tested]
        floor, percentile = self._section.mn_cpi_floor, self._section.mn_cpi_percentile
        if self._section.trigger == "noise_scaled":
            # The live trigger is not ready. With the floor alone, one quiet host in eight triggers
            # (docs/studies/trigger.md), so it takes a rise since the start, or what is certain without one. A
            # percentile of so short a past would be the contention's own.
            rise = max(0.0, min(past)) if past else math.inf
            self._threshold = min(CERTAIN_MN_CPI, floor + rise)
        else:
            self._threshold = mn_cpi_threshold(past, percentile, floor)
        if now_unix_ns // slot_ns != self._recorded_unix_ns // slot_ns:
            self._recorded_unix_ns = now_unix_ns
            if self.mn_cpi is not None:
                self._history.append((now_unix_ns, self.mn_cpi))

    def watch(self, windows: Sequence[CpiWindow], n_cpi: Callable[[CpiWindow], float | None], version: int) -> None:
        """Give the live trigger mnCPI of the domain's windows that have just ended.

        `n_cpi` returns None for a window that does not count; `version` is the version of the statistics behind it.
        """
        if self._section.trigger != "noise_scaled" or not windows:
            return
        step_ns = max(1, round(max(window.duration_ns for window in windows) / _S)) * _S
        if self._live is None or self._live[0] < step_ns:
            # The first windows may be short, with other noise than whole ones.
            self._live = (step_ns, NoiseScaledTrigger(step_ns / _S))
            self._seen = (0, [])
        live, (seen_version, seen) = self._live[1], self._seen
        if seen_version != version:
            # The same windows by the old and the new statistics: this shift is not caused by the VMs.
            shifts = [new - old for w, old in seen if (new := n_cpi(w)) is not None]
            if shifts:
                by = math.fsum(shifts) / len(shifts)
                live.shift(by)
                self._history = deque(((end, value + by) for end, value in self._history), self._history.maxlen)
        by_start: defaultdict[int, list[tuple[CpiWindow, float]]] = defaultdict(list)
        for window in windows:
            value = n_cpi(window)
            if value is not None and window.duration_ns >= MIN_COVERAGE * self._live[0]:
                by_start[window.start_unix_ns].append((window, value))
        for _, values in sorted(by_start.items()):
            live.observe(math.fsum(value for _, value in values) / len(values), len(values))
            self._seen = (version, values)
