"""Physical limits of what a host can measure in a window. Arrays only, no loop per row.

The limits are wide: several times what machines on the market do, so they are not settings; docs/security.md has the
same table. The limits that are settings (`ingest.max_cpi`, `ingest.max_cpu_usage_cores`) are in `central.config`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

_ROUNDING = 1e-9
_ROUNDED = 1 + 1e-5  # counters come with six digits

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

_Array = npt.NDArray[Any]


def absurd_counters(
    duration_ns: _Array, cores: _Array | float, cycles: _Array | None, instructions: _Array | None
) -> npt.NDArray[np.bool_]:
    """Return which rows have impossible counters: above 10 GHz x vCPU time, or 8 instructions per cycle.

    `cores` is the CPU usage. Counters are NaN where unknown; None where no row has them. All shapes go together.
    """
    absurd = np.zeros(1, dtype=np.bool_)
    with np.errstate(invalid="ignore"):  # a usage that is not a number has its own reason
        most = duration_ns * ((cores + SPARE_CORES) * MAX_CYCLES_PER_NS)
        if cycles is not None:
            absurd = cycles > most
        if instructions is not None:
            if cycles is not None:
                most = np.where(np.isnan(cycles), most, cycles + _FEW_CYCLES)
            absurd = absurd | (instructions > most * (MAX_INSTRUCTIONS_PER_CYCLE * _ROUNDED))
    return absurd
