"""Task slots as columns, from which every method learns. One row is one task in one slot of its machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from central.models.groups import Column, Floats, Ints

SLOT_S = 300
SLOTS_PER_DAY = 86_400 // SLOT_S


@dataclass(frozen=True, slots=True)
class TaskSlots:
    """Columns of equal length (n,); no (machine, slot, task) occurs twice."""

    machine: Column  # where the task ran; any sortable values, as are `task`, `job` and `platform`
    slot: Ints  # floor(start / 300 s)
    task: Column  # distinguishes the tasks of one machine, also across jobs
    job: Column  # the task's job
    platform: Column  # CPU model of the machine
    latency_sensitive: npt.NDArray[np.bool_]  # whether the task's CPI enters mnCPI; the others may be suspects
    usage: Floats  # CPU usage over the slot, in cores or normalised units; NaN if not known
    cpi: Floats  # cycles per instruction over the slot, above 0; NaN if not known

    def __post_init__(self) -> None:
        """Refuse columns of unlike lengths."""
        shapes = {getattr(self, name).shape for name in _NAMES}
        if len(shapes) != 1 or self.machine.ndim != 1:
            raise ValueError(f"columns must be one-dimensional and of one length (shapes {sorted(shapes)})")

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.slot)

    def take(self, index: npt.NDArray[Any]) -> "TaskSlots":
        """Return the rows at `index` (positions or a mask)."""
        return TaskSlots(*(getattr(self, name)[index] for name in _NAMES))

    @classmethod
    def concatenate(cls, parts: "Sequence[TaskSlots]") -> "TaskSlots":
        """Return the rows of several parts (at least one) in one."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES))


_NAMES = tuple(TaskSlots.__dataclass_fields__)
