"""Who already tells a part of a VM, so that a dearer source need not ask for it too."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Coverage"]

_MAX_AGE_NS = 5_000_000_000


class Coverage:
    """VMs, by UUID and epoch, of which a source told a part completely. One per part; safe between threads.

    A source that stops telling covers nothing after five seconds.
    """

    def __init__(self) -> None:
        # Replaced as a whole, never changed: readers need no lock.
        self._told: tuple[int, Mapping[str, str]] = (0, {})

    def tell(self, mono_ns: int, epochs: Mapping[str, str]) -> None:
        """Note what was told at `mono_ns`: the epoch by UUID. What was told before is forgotten."""
        self._told = (mono_ns, dict(epochs))

    def covers(self, uuid: str, epoch: str, mono_ns: int) -> bool:
        """Whether another source tells the part of this VM in this epoch."""
        told_ns, epochs = self._told
        return mono_ns - told_ns <= _MAX_AGE_NS and epochs.get(uuid) == epoch
