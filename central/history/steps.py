"""Steps of a question: how long, on which grid, and whether slots or single windows are read."""

from dataclasses import dataclass

_S_NS = 10**9
_DAY_S = 86_400
_LENGTHS_S = (
    *(1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800),
    *(hours * 3600 for hours in (1, 2, 3, 4, 6, 8, 12)),
    *(days * _DAY_S for days in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)),
)
#: Longer times are read from slots.
MAX_WINDOWS_NS = 2 * 3600 * _S_NS


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of `length_ns` fill [since, until); both, in nanoseconds since 1970, are multiples of it."""

    since: int
    until: int
    length_ns: int
    is_from_slots: bool

    @property
    def count(self) -> int:
        """How many there are."""
        return (self.until - self.since) // self.length_ns


def choose_steps(since: int, until: int, points: int, slot_ns: int, *, has_windows: bool) -> Steps:
    """Return the shortest steps of a usual length of which at most `points` (2 or more) cover [since, until).

    Up to two hours single windows are read, if the lake still has them (`has_windows`). Otherwise slots are, and steps
    are multiples of `slot_ns`.
    """
    is_from_slots = until - since > MAX_WINDOWS_NS or not has_windows
    for seconds in _LENGTHS_S:
        length = seconds * _S_NS
        if is_from_slots:
            length = -(-length // slot_ns) * slot_ns
        found = Steps(since // length * length, -(-until // length) * length, length, is_from_slots)
        if found.count <= points:
            return found
    raise ValueError(f"no steps for {points} points")


def whole_slots(since: int, until: int, slot_ns: int, *, has_windows: bool) -> Steps:
    """Return one step for all of [since, until): of windows up to a few slots, else from the slots that it touches."""
    is_from_slots = until - since > 6 * slot_ns or not has_windows
    if is_from_slots:
        since, until = since // slot_ns * slot_ns, -(-until // slot_ns) * slot_ns
    return Steps(since, until, max(until - since, 1), is_from_slots)
