"""Whether an action is within the limits of the configuration. Pure."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from agent.act.records import AMOUNTS, Apply, Limits, Record, RefusedError
from whitepanda.common.texts import several_named

_MAX_WHY = 300
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAX = {"cap-cpu": 4096.0, "limit-bandwidth": 100.0, "limit-cache": 64.0}
_LEAST = {"cap-cpu": "min_cores", "limit-bandwidth": "min_bandwidth_percent", "limit-cache": "min_ways"}


def refusal(
    asked: Apply, limits: Limits, in_force: Iterable[Record], ended_s: Mapping[str, float], running: Callable[[], int]
) -> str:
    """Return why an action (with UUIDs) is refused, with the setting to change; "": it is not.

    `ended_s`: how many seconds ago the last action on a VM ended, by UUID. `running` returns how many VMs this host
    has; called only when it matters. The request itself comes first: senseless ones are answered without libvirt.
    """
    return _senseless(asked) or _too_much(asked, limits) or _too_many(asked, limits, list(in_force), ended_s, running)


class Named(NamedTuple):
    """A VM that a name may mean; `where` distinguishes VMs of one name."""

    uuid: str
    name: str
    where: str


def is_uuid(value: str) -> bool:
    """Whether a VM is given by its UUID, not by its name."""
    return _UUID.fullmatch(value) is not None


def uuid_of(value: str, named: Callable[[str], Iterable[Named]]) -> str:
    """Return the UUID of a VM that is given by UUID or name; RefusedError: no VM has this name, or several have.

    A UUID is taken as it is, even if it is also some VM's name. `named` returns the candidates; called only for a name.
    """
    if is_uuid(value):
        return value
    found = {one.uuid: one for one in named(value) if one.name == value}
    if not found:
        raise RefusedError(f"no VM named {value[:80]!r} runs here; `whitepanda vms` lists those that do")
    if len(found) > 1:
        raise RefusedError(several_named(value, [f"{one.uuid} ({one.where})" for one in found.values()]))
    return next(iter(found))


def _senseless(asked: Apply) -> str:
    if asked.vm == asked.victim:
        return f"the victim itself would be limited (value {asked.vm})"
    if not math.isfinite(asked.amount) or not 0 < asked.amount <= _MAX[asked.action]:
        return f"{AMOUNTS[asked.action]} must be above 0 and at most {_MAX[asked.action]:g} (value {asked.amount})"
    if not math.isfinite(asked.seconds) or asked.seconds < 1:
        return f"seconds must be at least 1 (value {asked.seconds})"
    if len(asked.why) > _MAX_WHY or not asked.why.isprintable():
        return f"why must be one line of at most {_MAX_WHY} printable characters"
    return ""


def _too_much(asked: Apply, limits: Limits) -> str:
    key = _LEAST[asked.action]
    least = getattr(limits, key)
    if asked.amount < least:
        return f"{asked.amount:g} {AMOUNTS[asked.action]} is below act.{key} ({least:g})"
    if asked.seconds > limits.max_seconds:
        return f"{asked.seconds:g} s is longer than act.max_seconds ({limits.max_seconds:g})"
    return ""


def _too_many(
    asked: Apply, limits: Limits, in_force: list[Record], ended_s: Mapping[str, float], running: Callable[[], int]
) -> str:
    for record in in_force:
        if record.vm == asked.vm:
            return f"action {record.number} ({record.action}) is in force on this VM; undo it first"
    since_s = ended_s.get(asked.vm)
    if since_s is not None and since_s < limits.cool_down_s:
        wait_s = limits.cool_down_s - since_s
        return f"the last action on this VM ended {since_s:.0f} s ago; act.cool_down_s: wait {wait_s:.0f} s"
    if not in_force:
        return ""  # one action is always allowed: a tenth of three VMs is none
    vms = running()
    most = max(1, math.floor(limits.max_share * vms))
    if len(in_force) >= most:
        many = f"{len(in_force)} of {vms} VMs are acted upon"
        return f"{many}, and act.max_share ({limits.max_share:g}) allows {most}"
    return ""
