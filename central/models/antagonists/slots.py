"""Task slots as columns: what every method learns from. One row is one task in one slot of its machine."""

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
    """Columns of equal length (n,); no (machine, slot, task) occurs twice.

    Attributes:
        machine: where the task ran; any sortable values, as are `task`, `job` and `platform`.
        slot: floor(start / 300 s).
        task: which task; unlike tasks of one machine have unlike values, also those of unlike jobs.
        job: what the task is one of.
        platform: CPU model of the machine.
        latency_sensitive: whether the task's CPI enters mnCPI; the others may be suspects.
        usage: CPU usage over the slot, in cores or normalised units; NaN where not known.
        cpi: cycles per instruction over the slot, above 0; NaN where not known.

    """

    machine: Column
    slot: Ints
    task: Column
    job: Column
    platform: Column
    latency_sensitive: npt.NDArray[np.bool_]
    usage: Floats
    cpi: Floats

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
