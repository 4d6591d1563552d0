"""`struct perf_event_attr` with its flags by name: what a fake kernel sees of an event, and mutants of it."""

from dataclasses import dataclass

from collector.perf.binding import ATTR, READ_FORMAT
from collector.perf.encoding import Event

# Bit numbers in perf_event_attr's flag word.
_BITS = {
    "disabled": 0,
    "inherit": 1,
    "pinned": 2,
    "exclude_kernel": 5,
    "exclude_hv": 6,
    "exclude_host": 19,
    "exclude_guest": 20,
}


@dataclass(frozen=True, slots=True)
class EventAttr:
    """`struct perf_event_attr`, as far as counting needs it."""

    event: Event
    disabled: bool = False
    inherit: bool = False
    pinned: bool = False
    exclude_kernel: bool = False
    exclude_hv: bool = False
    exclude_host: bool = False
    exclude_guest: bool = False

    @property
    def flags(self) -> int:
        """The word of flag bits."""
        return sum(1 << bit for name, bit in _BITS.items() if getattr(self, name))

    def pack(self) -> bytes:
        """Return the structure's 72 bytes for the kernel."""
        event = self.event
        head = (event.type, ATTR.size, event.config, 0, 0, READ_FORMAT, self.flags, 0, 0)
        return ATTR.pack(*head, event.config1, event.config2)

    @classmethod
    def unpack(cls, data: bytes) -> "EventAttr":
        """Undo `pack`; the event has no name."""
        kind, _, config, _, _, _, flags, _, _, config1, config2 = ATTR.unpack(data)
        bits = {name: bool(flags >> bit & 1) for name, bit in _BITS.items()}
        return cls(Event("", kind, config, config1, config2), **bits)
