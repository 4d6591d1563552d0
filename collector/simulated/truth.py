"""The true role of a VM at a moment of a simulation, which detectors are scored by.

Defined before any detector was tuned on it; docs/simulated.md has it in words.
"""

import enum

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_INFLICTS_ABOVE = 1.5  # load over its baseline
_RETURNED = 0.10  # largest distance from the baseline
_STEP = 0.5  # of its baseline, from one tick to the next: a step, not a ramp
_VICTIM_FROM = 1.10  # expected degradation
_DISTURBED_FROM = 1.03
_SETTLING_S = 5.0


class Role(enum.StrEnum):
    """A detector's right answer, or UNSCORED."""

    STEADY = "steady"
    INFLICTING = "inflicting"
    VICTIM = "victim"
    UNSCORED = "unscored"


_ROLES = tuple(Role)
_STEADY, _INFLICTING, _VICTIM, _UNSCORED = range(4)


class RoleTracker:
    """The roles of a host's VMs, tick by tick: `n` VMs, `serves` those that are latency-critical."""

    def __init__(self, serves: NDArray[np.bool_]) -> None:
        self._serves = serves
        count = len(serves)
        self._inflicting = np.zeros(count, dtype=bool)
        self._raw = np.zeros(count, dtype=np.intp)
        self._changed_s = np.full(count, -np.inf)
        self._stepped_s = -np.inf
        self._last: tuple[Array, NDArray[np.intp]] | None = None

    def step(self, at_s: float, ratio: Array, running: NDArray[np.intp], degradation: Array) -> list[Role]:
        """Return the roles of one tick. Arrays have shape (n,); `at_s` rises from tick to tick.

        `ratio` is the offered load over its baseline, without noise; `running` what each runs (a change is a step);
        `degradation` the expected one: of the p95, and of CPI for VMs without requests.
        """
        if self._last is not None:
            last_ratio, last_running = self._last
            if (abs(ratio - last_ratio) > _STEP).any() or (running != last_running).any():
                self._stepped_s = at_s
        self._last = (ratio, running)
        off = abs(ratio - 1) > _RETURNED
        self._inflicting = (self._inflicting & off) | (ratio > _INFLICTS_ABOVE)
        disturbed = degradation >= _DISTURBED_FROM
        victim = self._serves & (degradation >= _VICTIM_FROM)
        raw = np.where(
            self._inflicting,
            _INFLICTING,
            np.where(off, _UNSCORED, np.where(victim, _VICTIM, np.where(disturbed, _UNSCORED, _STEADY))),
        )
        self._changed_s[raw != self._raw] = at_s
        self._raw = raw
        settled = at_s - np.maximum(self._changed_s, self._stepped_s) >= _SETTLING_S
        return [_ROLES[role] if ok else Role.UNSCORED for role, ok in zip(raw.tolist(), settled.tolist(), strict=True)]
