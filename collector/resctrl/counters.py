"""resctrl's value files: text in, typed values out. Pure.

The kernel widens the hardware's 24 to 62 bits of bandwidth to 64 bits, though with faults, and a counter that lost its
hardware begins again: a value that falls must never become a rate.
"""

from collections.abc import Iterable, Mapping, Sequence

from collector.base import NS_PER_S, RdtDomain, Reason

#: The value files of a domain, in the order of `RdtDomain`'s fields.
EVENTS = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")

_STATES = {
    b"Unavailable": Reason.RDT_UNAVAILABLE,
    b"Unassigned": Reason.RDT_UNASSIGNED,
    b"Error": Reason.RDT_UNAVAILABLE,
}
#: How long after threads moved into a group its occupancy is not theirs: lines loaded before stay charged to the old
#: group. A VM that loads 10 MB/s or more refills its part of a cache within seconds; an idler one reads too low longer.
SETTLE_NS = 5 * NS_PER_S

# From here on a value is a small negative number without its sign, after a faulty wrap.
_NEGATIVE = 1 << 63
_MAX_BYTES_PER_S = 10**12  # more than any memory moves


def parse_value(text: bytes) -> int | Reason:
    """Return the value of a file in mon_data, in bytes, or why it is absent."""
    word = text.strip()
    if not word.isdigit():
        return _STATES.get(word, Reason.INVALID_VALUE)
    value = int(word)
    return value if value < _NEGATIVE else Reason.INVALID_VALUE


def unbroken(before: Mapping[str, RdtDomain], now: Mapping[str, RdtDomain], dt_ns: int) -> bool:
    """Whether all bandwidth counters continued from `before` to `now`: none fell, none grew beyond belief."""
    most = _MAX_BYTES_PER_S * dt_ns // NS_PER_S
    for name, new in now.items():
        old = before.get(name)
        if old is None:
            continue
        for earlier, later in ((old.mbm_total_bytes, new.mbm_total_bytes), (old.mbm_local_bytes, new.mbm_local_bytes)):
            if earlier is not None and later is not None and not 0 <= later - earlier <= most:
                return False
    return True


def make_domain(values: Sequence[int | Reason], *, settling: bool = False) -> RdtDomain:
    """Make a domain of its values (bytes, or why there are none) in the order of `EVENTS`.

    `settling`: the threads were moved into the group less than `SETTLE_NS` ago, so the occupancy is not theirs.
    """
    occupancy, total, local = values
    if settling and not isinstance(occupancy, Reason):
        occupancy = Reason.VM_STARTING
    reason = Reason.UNSPECIFIED
    for value in (occupancy, total, local):
        # There is room for one reason: a passing one counts more than an event that this CPU never has.
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
