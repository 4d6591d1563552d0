"""What a window keeps of its ticks: one row per metric, with its number on the wire and its column in the lake.

The agent's windows, `CpiBatch.metrics`, central's checks, the lake's columns and docs/metrics.md follow from it. A row
has the name of a metric (`agent.sampling.metric_table`), or is of the counters or the verdict.
"""

from dataclasses import dataclass
from typing import Literal

#: How a window sums up its ticks: a mean, weighted by what the word says; the last value; or of its own.
Rule = Literal["time", "cycles", "instructions", "reference_cycles", "last", "own"]

_RULES = {
    "time": "mean over time",
    "cycles": "sum / sum of cycles",
    "instructions": "sum / sum of instructions",
    "reference_cycles": "sum of cycles / sum of reference cycles",
    "last": "last value",
}
#: Significant digits of most metrics: hardware knows hardly more, and others take twice the bytes in the lake.
ROUNDED_DIGITS = 4
_RATIO = 1 + 1e-6  # float32 knows no better
_BYTES, _BYTES_PER_S, _OPS_PER_S = 1e15, 1e14, 1e11
_ADDITIVE = {"cores", "cycles", "instructions", "1e9 instructions/s", "bytes", "bytes/s", "1/s"}


@dataclass(frozen=True, slots=True)
class WindowColumn:
    """One metric of a window.

    `number` is never reused. `largest` is a limit of physics, several times what machines do: central takes a value
    above it, or below 0, as not known. `note` describes `rule` where it is "own". `digits` are the significant ones
    that the agent sends.
    """

    number: int
    name: str
    unit: str
    largest: float
    rule: Rule = "time"
    note: str = ""
    digits: int = ROUNDED_DIGITS

    @property
    def how(self) -> str:
        """How a window sums up its ticks, for people."""
        return self.note or _RULES[self.rule]

    @property
    def adds_up(self) -> bool:
        """Whether several VMs have the sum of their values in all, as of rates and sizes; of others their mean."""
        return self.unit in _ADDITIVE


#: In the order of the lake's columns. The first two have columns of their own on the wire, and limits of their own.
WINDOW_COLUMNS = (
    WindowColumn(1, "cpi", "cycles/instruction", 100.0, "own", "cycles / instructions of the window"),
    WindowColumn(2, "cpu_usage_cores", "cores", 4096.0),
    WindowColumn(3, "cycles", "cycles", 1e18, "own", "sum, scaled for multiplexing", 6),
    WindowColumn(4, "instructions", "instructions", 1e18, "own", "sum, scaled for multiplexing", 6),
    WindowColumn(5, "gips", "1e9 instructions/s", 1e6, "own", "instructions / s of wall time, times 1e-9", 6),
    WindowColumn(6, "frequency_ratio", "ratio", 1000.0, "reference_cycles"),
    WindowColumn(7, "llc_mpki", "1/1000 instructions", 1e4, "instructions"),
    WindowColumn(8, "l2_mpki", "1/1000 instructions", 1e4, "instructions"),
    WindowColumn(9, "memory_stall_ratio", "ratio", _RATIO, "cycles"),
    WindowColumn(10, "total_stall_ratio", "ratio", _RATIO, "cycles"),
    WindowColumn(11, "running_ratio", "ratio", _RATIO, "own", "running time / enabled time"),
    WindowColumn(12, "guest_ratio", "ratio", 2.0),
    WindowColumn(13, "run_queue_wait_ratio", "ratio", 1e6),
    WindowColumn(14, "llc_occupancy_bytes", "bytes", _BYTES),
    WindowColumn(15, "memory_bandwidth_bytes_per_s", "bytes/s", _BYTES_PER_S),
    WindowColumn(16, "memory_bandwidth_local_bytes_per_s", "bytes/s", _BYTES_PER_S),
    WindowColumn(17, "pressure_cpu_some_ratio", "ratio", _RATIO),
    WindowColumn(18, "pressure_memory_some_ratio", "ratio", _RATIO),
    WindowColumn(19, "pressure_io_some_ratio", "ratio", _RATIO),
    WindowColumn(20, "cpu_throttled_ratio", "ratio", 1e6),
    WindowColumn(21, "disk_read_bytes_per_s", "bytes/s", _BYTES_PER_S),
    WindowColumn(22, "disk_write_bytes_per_s", "bytes/s", _BYTES_PER_S),
    WindowColumn(23, "disk_read_ops_per_s", "1/s", _OPS_PER_S),
    WindowColumn(24, "disk_write_ops_per_s", "1/s", _OPS_PER_S),
    WindowColumn(25, "network_receive_bytes_per_s", "bytes/s", _BYTES_PER_S),
    WindowColumn(26, "network_transmit_bytes_per_s", "bytes/s", _BYTES_PER_S),
    WindowColumn(27, "network_receive_packets_per_s", "1/s", _OPS_PER_S),
    WindowColumn(28, "network_transmit_packets_per_s", "1/s", _OPS_PER_S),
    WindowColumn(29, "network_receive_drops_per_s", "1/s", _OPS_PER_S),
    WindowColumn(30, "network_transmit_drops_per_s", "1/s", _OPS_PER_S),
    WindowColumn(31, "memory_charged_bytes", "bytes", _BYTES, "last"),
    WindowColumn(32, "numa_remote_memory_ratio", "ratio", _RATIO, "last"),
    WindowColumn(33, "slow_down_ratio", "ratio", 1e6, "own", "the estimate at the window's end"),
    WindowColumn(34, "slow_down_low_ratio", "ratio", 1e6, "own", "its interval's lower end"),
    WindowColumn(35, "slow_down_high_ratio", "ratio", 1e6, "own", "its interval's upper end"),
    WindowColumn(36, "verdict", "Behaviour", 100.0, "own", "the verdict at the window's end, a number of `Behaviour`"),
    WindowColumn(37, "pressure_memory_full_ratio", "ratio", _RATIO),
    WindowColumn(38, "pressure_io_full_ratio", "ratio", _RATIO),
    WindowColumn(39, "core_stall_ratio", "ratio", _RATIO, "cycles"),
)
#: Those that `CpiBatch.metrics` has, and all by name and by number.
METRIC_COLUMNS = WINDOW_COLUMNS[2:]
BY_NAME = {column.name: column for column in WINDOW_COLUMNS}
BY_NUMBER = {column.number: column for column in WINDOW_COLUMNS}
