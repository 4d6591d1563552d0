"""The paper's trigger: victims in consecutive slots, and mnCPI above the machine's own percentile.

Source: "PANDA", section 5.2. `agent.analysis.contention.live_trigger` is the default on hosts.
"""

import math
from collections.abc import Sequence

from agent.analysis.contention.normalised_cpi import CERTAIN_MN_CPI, SlotState

#: With fewer slots, a high percentile is practically their maximum, so the floor is used.
MIN_HISTORY_SLOTS = 100


def mn_cpi_threshold(history: Sequence[float], percentile: float, floor: float) -> float:
    """Return what mnCPI has to exceed: the host's own percentile (0 to 100) of `history`, at least `floor`.

    `history`: mnCPI of past slots in any order, without those under test. Interpolates linearly between the closest
    ranks. With fewer than `MIN_HISTORY_SLOTS` slots it is the floor; it is never above `CERTAIN_MN_CPI`. The paper
    takes 99.
    """
    if len(history) < MIN_HISTORY_SLOTS:
        return min(CERTAIN_MN_CPI, floor)
    ordered = sorted(history)
    position = (len(ordered) - 1) * percentile / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    own = ordered[below] + (ordered[above] - ordered[below]) * (position - below)
    return min(CERTAIN_MN_CPI, max(floor, own))


def is_triggered(slots: Sequence[SlotState], threshold: float, victim_slots: int) -> bool:
    """Whether each of the last `victim_slots` slots has a victim, and mnCPI is above `threshold` now.

    `slots`: consecutive slots of one machine, oldest first, the present one last. The paper uses 3 victim slots. Never
    triggers with fewer than `victim_slots` slots, or with `victim_slots` below 1.
    """
    if victim_slots < 1 or len(slots) < victim_slots:
        return False
    now = slots[-1].mn_cpi
    return now is not None and now > threshold and all(slot.victims for slot in slots[-victim_slots:])
