"""What resctrl's value files say: text in, typed values out. Pure.

Hardware counts bandwidth in 24 to 62 bits. The kernel widens that to 64 bits, but not without faults, and a counter
that lost its hardware begins anew; a value that falls is never to become a rate.
"""

from collections.abc import Iterable, Mapping, Sequence

from collector.base import RdtDomain, Reason

#: The value files of a domain, in the order of `RdtDomain`'s fields.
EVENTS = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")

_STATES = {
    b"Unavailable": Reason.RDT_UNAVAILABLE,
    b"Unassigned": Reason.RDT_UNASSIGNED,
    b"Error": Reason.RDT_UNAVAILABLE,
}
#: How long the occupancy of threads that were moved into a group is not theirs. Lines that they had loaded before are
#: charged where they were, and the group's rises from what its id's last user left (a few lines to all, as the kernel
#: has it) as fast as they load new ones: a VM that is not idle, at 10 MB/s and more, has its part of a cache of some
#: tens of megabytes anew within seconds. One that loads less is told too low for longer: there is no knowing.
SETTLE_NS = 5_000_000_000

# No counter is there at once: it is a small negative number, of a wrap that went wrong, as 64 bits without a sign.
_NEGATIVE = 1 << 63
# What no memory does.
_MAX_BYTES_PER_S = 10**12
_S = 1_000_000_000


def parse_value(text: bytes) -> int | Reason:
    """Return the value of a file in mon_data, in bytes, or why there is none."""
    word = text.strip()
    if not word.isdigit():
        return _STATES.get(word, Reason.INVALID_VALUE)
    value = int(word)
    return value if value < _NEGATIVE else Reason.INVALID_VALUE


def unwrap(before: int, now: int, *, width_bits: int | None = None, scale: int = 1) -> int | None:
    """Return by how many bytes a counter grew between two readings, less than one turn apart.

    Args:
        before: the earlier reading, in bytes.
        now: the later one.
        width_bits: how many bits the hardware counts with; None: not known, as in resctrl.
        scale: bytes per unit that the hardware counts.

    Returns:
        The growth; None where it cannot be told.

    """
    if now >= before:
        return now - before
    if width_bits is None:
        return None
    turn = scale << width_bits
    return None if before >= turn else now - before + turn


def unbroken(before: Mapping[str, RdtDomain], now: Mapping[str, RdtDomain], dt_ns: int) -> bool:
    """Say whether all bandwidth counters went on from `before` to `now`: none fell, none grew beyond belief."""
    most = _MAX_BYTES_PER_S * dt_ns // _S
    for name, new in now.items():
        old = before.get(name)
        if old is None:
            continue
        for earlier, later in ((old.mbm_total_bytes, new.mbm_total_bytes), (old.mbm_local_bytes, new.mbm_local_bytes)):
            if earlier is None or later is None:
                continue
            grown = unwrap(earlier, later)
            if grown is None or grown > most:
                return False
    return True


def make_domain(values: Sequence[int | Reason], *, settling: bool = False) -> RdtDomain:
    """Make a domain of its values in the order of `EVENTS`.

    Args:
        values: bytes or why there is no value.
        settling: the threads were moved into the group less than `SETTLE_NS` ago: its occupancy is not theirs.

    """
    occupancy, total, local = values
    if settling and not isinstance(occupancy, Reason):
        occupancy = Reason.VM_STARTING
    reason = Reason.UNSPECIFIED
    for value in (occupancy, total, local):
        # There is room for one reason: what passes is worth more than what this CPU never has.
        if isinstance(value, Reason) and reason in {Reason.UNSPECIFIED, Reason.NO_EVENT}:
            reason = value
    return RdtDomain(_bytes(occupancy), _bytes(total), _bytes(local), reason)


def _bytes(value: int | Reason) -> int | None:
    return None if isinstance(value, Reason) else value


def add_up(groups: Iterable[Mapping[str, RdtDomain]]) -> dict[str, RdtDomain]:
    """Add the domains of several groups that a VM's threads are spread over."""
    total: dict[str, RdtDomain] = {}
    for domains in groups:
        for name, domain in domains.items():
            total[name] = domain if name not in total else _plus(total[name], domain)
    return total


def _plus(one: RdtDomain, other: RdtDomain) -> RdtDomain:
    return RdtDomain(
        _sum(one.llc_occupancy_bytes, other.llc_occupancy_bytes),
        _sum(one.mbm_total_bytes, other.mbm_total_bytes),
        _sum(one.mbm_local_bytes, other.mbm_local_bytes),
        one.reason or other.reason,
    )


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
