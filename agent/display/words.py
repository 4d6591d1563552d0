"""The words for the verdict on a VM and for what a host finds, with symbol and colour: the same in all commands.

The colours are of the Okabe-Ito palette, which colour-blind people can distinguish. Nothing is said by colour alone.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agent.detection.decision_types import is_running
from agent.display import render
from whitepanda.v1 import agent_pb2, host_pb2

#: Styles of rich: vermilion, orange, bluish green and sky blue of Okabe and Ito.
BAD = "bold #d55e00"
WARNING = "#e69f00"
GOOD = "#009e73"
TREND = "#56b4e9"
DIM = "dim"
_UUID_SHOWN = 8  # characters of a UUID after a name that several VMs have


class Word(NamedTuple):
    """A word with the symbol that replaces it if there is no room; `need`: 0 is the most urgent."""

    text: str
    symbol: str
    style: str
    need: int


VICTIM = Word("victim", "▼", BAD, 0)
INFLICTING = Word("inflicting", "▲", WARNING, 1)
AFFECTED = Word("affected", "▽", "", 2)
STEADY = Word("steady", "=", "", 3)
UNKNOWN = Word("unknown", "?", DIM, 4)
WORDS = (VICTIM, INFLICTING, AFFECTED, STEADY, UNKNOWN)
_BY_TEXT = {word.text: word for word in WORDS}


def word_of(vm: host_pb2.VmSummary) -> Word:
    """Return the verdict on a VM; one that does not run has its state."""
    if not is_running(vm.state):
        return Word(vm.state, "-", DIM, 5)
    return _BY_TEXT.get(render.behaviour_word(vm.decision.verdict), UNKNOWN)


_ANALYSES = {agent_pb2.ANALYSIS_HOST: "the host's own analysis", agent_pb2.ANALYSIS_FLEET: "the fleet's statistics"}


def found_by(vm: host_pb2.VmSummary) -> str:
    """Say which analyses find that a VM suffers; "" if none does."""
    return " and ".join(_ANALYSES[one] for one in vm.decision.found_by if one in _ANALYSES)


def slow_down_of(vm: host_pb2.VmSummary) -> agent_pb2.Degradation:
    """Return how many times slower a suffering VM is; NaN if that is not known, and for any other VM."""
    known = vm.decision.found_by and vm.decision.HasField("slow_down")
    return vm.decision.slow_down if known else agent_pb2.Degradation(ratio=math.nan)


def shown_names(vms: Sequence[host_pb2.VmSummary]) -> dict[str, str]:
    """Return what VMs are called in a list, by UUID: a name that several have comes with the beginning of the UUID."""
    alike: dict[str, list[str]] = {}
    for vm in vms:
        alike.setdefault(vm.name, []).append(vm.uuid)
    shown: dict[str, str] = {}
    for name, uuids in alike.items():
        size = _UUID_SHOWN
        while len({uuid[:size] for uuid in uuids}) < len(set(uuids)):
            size += 1
        shown.update((uuid, f"{name} ({uuid[:size]})" if len(uuids) > 1 else name) for uuid in uuids)
    return shown


def by_of(vm: host_pb2.VmSummary, shown: Mapping[str, str]) -> str:
    """Return a VM's suspects, the likeliest first; "" if there are none. `shown` is of `shown_names`."""
    names = [shown.get(one.uuid) or one.name or one.uuid for one in vm.decision.suspects]
    more = len(names) - 1 + vm.decision.suspects_left_out
    return f"{names[0]} +{more}" if names and more else "".join(names)


def host_line(answer: host_pb2.ListVmsResponse, when: str = "now") -> str:
    """Say who suffers on the host, and whom that is blamed on; "" if no VM is a victim. `when`: now, or then."""
    found = answer.decision
    if not found.victims:
        return ""
    first = shown_names(answer.vms).get(found.suspect.uuid, found.suspect.name)
    whom = f"first suspect {first}" if found.HasField("suspect") else "no suspect"
    return f"{found.victims} {'victim' if found.victims == 1 else 'victims'} on this host {when}; {whom}"


def need_of(word: Word, slow_down: float, name: str) -> tuple[float, str]:
    """Return what VMs are sorted by: victims, the slowest first (NaN: not known), then who inflicts; by name."""
    worst = slow_down if word in (VICTIM, AFFECTED) and slow_down > 0 else 0.0
    return (word.need - worst / 1e6, name.casefold())
