"""The numbers of a window: the columns of `CpiBatch` on the wire and of the lake's samples, by the same names.

The agent's window (`agent.sampling.windows.CpiWindow`) has these fields too; central refuses gauges above `largest`.
"""

from dataclasses import dataclass
from typing import Literal

from whitepanda.v1 import agent_pb2

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class WindowColumn:
    """One number of a window.

    `cpi` and `cpu_usage_cores` have special rules; an unknown "gauge" is NaN, an unknown "count" 2^64-1. `how` says how
    a window sums up its ticks; `largest` is a limit of physics, for gauges.
    """

    name: str
    kind: Literal["cpi", "usage", "count", "gauge"]
    unit: str
    how: str
    largest: float = 0.0

    @property
    def number(self) -> int:
        """The column's number on the wire."""
        return int(agent_pb2.CpiBatch.DESCRIPTOR.fields_by_name[self.name].number)


#: In the order of the lake's columns.
WINDOW_COLUMNS = (
    WindowColumn("cpi", "cpi", "cycles/instruction", "cycles / instructions of the window"),
    WindowColumn("cpu_usage_cores", "usage", "cores", "mean over time"),
    WindowColumn("cycles", "count", "cycles", "sum, scaled for multiplexing"),
    WindowColumn("instructions", "count", "instructions", "sum, scaled for multiplexing"),
    WindowColumn("running_ratio", "gauge", "ratio", "running time / enabled time", 1 + _ROUNDING),
    WindowColumn("run_queue_wait_ratio", "gauge", "ratio", "mean over time and vCPUs", 1e6),
    WindowColumn("disk_bytes_per_s", "gauge", "bytes/s", "mean over time, read and written", 1e13),
    WindowColumn("network_bytes_per_s", "gauge", "bytes/s", "mean over time, received and sent", 1e13),
    WindowColumn("llc_occupancy_bytes", "gauge", "bytes", "mean over time, 4 digits", 1e12),
    WindowColumn("memory_bandwidth_bytes_per_s", "gauge", "bytes/s", "mean over time, 4 digits", 1e14),
    WindowColumn("memory_stall_ratio", "gauge", "ratio", "stalled cycles / cycles, 4 decimals", 1 + _ROUNDING),
    WindowColumn("io_wait_ratio", "gauge", "ratio", "share of time with PSI `some` of I/O, 4 decimals", 1 + _ROUNDING),
)
#: Names by kind, in the same order.
COUNTS = tuple(column.name for column in WINDOW_COLUMNS if column.kind == "count")
GAUGES = tuple(column.name for column in WINDOW_COLUMNS if column.kind == "gauge")
