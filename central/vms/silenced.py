"""Which VMs and hosts the silences in force match, so that alerts of Prometheus leave them out. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from central.vms.listing import VmEntry
from whitepanda.v1 import fleet_pb2

MAX_VMS = 5000


@dataclass(frozen=True, slots=True)
class Silenced:
    """The VMs (UUIDs), in order and at most `MAX_VMS`, and the hosts that silences in force match.

    `is_any` is whether a silence is in force at all. Only a silence that names nothing else matches a host as a whole.
    """

    is_any: bool = False
    vms: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


def silenced(silences: Iterable[fleet_pb2.Silence], entries: Sequence[VmEntry]) -> Silenced:
    """Match silences with VMs that run: all that a silence names must be true of the VM. Others are passed over."""
    in_force = [one for one in silences if one.in_force]
    by_name: dict[tuple[str, str], list[fleet_pb2.Silence]] = {}
    for one in in_force:
        by_name.setdefault(_narrowest(one), []).append(one)
    vms: set[str] = set()
    for each in entries if by_name else ():
        names = (("vm", each.vm), ("vm", each.name), ("host", each.host), ("job", each.job), ("project", each.project))
        if any(_matches(one, each) for name in names for one in by_name.get(name, ())):
            vms.add(each.vm)
    hosts = {one.host for one in in_force if one.host and not (one.vm or one.job or one.project)}
    return Silenced(bool(in_force), tuple(sorted(vms)[:MAX_VMS]), tuple(sorted(hosts)))


def _narrowest(one: fleet_pb2.Silence) -> tuple[str, str]:
    """Return the name by which the fewest VMs need be compared with a silence."""
    kinds = ("vm", "host", "job", "project")
    return next(((kind, value) for kind in kinds if (value := getattr(one, kind))), ("", ""))


def _matches(one: fleet_pb2.Silence, each: VmEntry) -> bool:
    return (
        one.vm in {"", each.vm, each.name}
        and one.host in {"", each.host}
        and one.job in {"", each.job}
        and one.project in {"", each.project}
    )
