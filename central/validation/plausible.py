"""Physical limits of what a host can measure in a window. Arrays only, no loop per row.

The limits are wide: several times what machines on the market do, so they are not settings; docs/security.md has the
same table. The limits that are settings (`ingest.max_cpi`, `ingest.max_cpu_usage_cores`) are in `central.config`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from whitepanda.common.window_columns import WINDOW_COLUMNS

_ROUNDING = 1e-9

#: Cycles of a vCPU in a nanosecond: 10 GHz.
MAX_CYCLES_PER_NS = 10.0
#: A counter and the CPU time are not read at the same moment: so many vCPUs may have run beyond what the usage says.
SPARE_CORES = 1.0
#: Instructions that a core retires in a cycle.
MAX_INSTRUCTIONS_PER_CYCLE = 8.0
_FEW_CYCLES = 1e6  # the two counters are read one after the other
#: So a CPI is at least this.
MIN_CPI = 1 / MAX_INSTRUCTIONS_PER_CYCLE - _ROUNDING
#: Twice the longest window that an agent's `agent.window_s` can ask for, an hour. Not the length that the Hello names:
#: a spool may hold windows from before `agent.window_s` was changed.
MAX_HOST_WINDOW_NS = 2 * 3600 * 10**9

#: Columns whose values are nice to have: a value that cannot be is stored as not known. The largest one allowed.
LARGEST_GAUGES = {column.name: column.largest for column in WINDOW_COLUMNS if column.kind == "gauge"}

_Array = npt.NDArray[Any]


def absurd_counters(
    duration_ns: _Array, cores: _Array | float, cycles: _Array | None, instructions: _Array | None
) -> npt.NDArray[np.bool_]:
    """Return which rows have impossible counters: above 10 GHz x vCPU time, or 8 instructions per cycle.

    `cores` is the CPU usage. Counters are signed, negative where unknown; None where no row has them.
    """
    absurd = np.zeros(len(duration_ns), dtype=np.bool_)
    with np.errstate(invalid="ignore"):  # a usage that is not a number has its own reason
        most = duration_ns * ((cores + SPARE_CORES) * MAX_CYCLES_PER_NS)
        if cycles is not None:
            absurd = cycles > most
        if instructions is not None:
            if cycles is not None:
                most = np.where(cycles < 0, most, cycles + _FEW_CYCLES)
            absurd |= instructions > most * MAX_INSTRUCTIONS_PER_CYCLE
    return absurd


def clearly_possible(duration_ns: _Array, cycles: _Array | None, instructions: _Array | None) -> bool:
    """Return whether the extremes show that `absurd_counters` finds none: the usual case, at half its cost.

    Arguments are those of `absurd_counters`.
    """
    if cycles is None or instructions is None or np.minimum.reduce(cycles) < 0:
        return False
    if np.maximum.reduce(cycles) > np.minimum.reduce(duration_ns) * (SPARE_CORES * MAX_CYCLES_PER_NS):
        return False
    # In whole numbers, which cannot overflow: cycles are few by now.
    return bool(np.maximum.reduce(instructions - cycles * int(MAX_INSTRUCTIONS_PER_CYCLE)) <= 0)
