"""Recommendations as people read them: the same lines on a host (`explain`) and of the fleet (`incidents show`)."""

import math
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from whitepanda.common.texts import printable
from whitepanda.v1 import agent_pb2

#: Prefix of the reason if a signal is cut off and may be higher.
_AT_LEAST = "at least: "

_DONE = {
    agent_pb2.ACTION_CAP_CPU: "cap the CPU of {name}",
    agent_pb2.ACTION_LIMIT_BANDWIDTH: "limit the memory bandwidth of {name}",
    agent_pb2.ACTION_LIMIT_CACHE: "leave cache to {victim}: limit {name}",
    agent_pb2.ACTION_MIGRATE_SUSPECT: "migrate {name} (suspect)",
    agent_pb2.ACTION_MIGRATE_VICTIM: "migrate {name} (victim)",
    agent_pb2.ACTION_NOTHING: "do nothing",
}
_SIGNALS = {"mn_cpi": "mnCPI", "degradation": "slow-down"}


def action_word(action: int) -> str:
    """Return an action's word, such as "cap_cpu"; of a newer agent's, its number."""
    value = agent_pb2.Action.DESCRIPTOR.values_by_number.get(action)
    return value.name.removeprefix("ACTION_").lower() if value is not None else str(action)


def effect_text(effect: agent_pb2.ExpectedEffect) -> str:
    """Say in one line what is expected."""
    signal = _SIGNALS.get(effect.signal, effect.signal)
    if math.isnan(effect.after):
        return f"effect not known: {effect.unknown_because}"
    interval = "" if math.isnan(effect.low) else f" ({effect.low:.3g} to {effect.high:.3g})"
    threshold = "" if math.isnan(effect.threshold) else f", threshold {effect.threshold:.3g}"
    if effect.unknown_because.startswith(_AT_LEAST):
        why = effect.unknown_because.removeprefix(_AT_LEAST)
        expected = f"expected {signal} at least {effect.after:.3g} instead of at least {effect.before:.3g} ({why})"
        more = "; more may be needed" if effect.after < effect.before else ""
        return f"{expected}{threshold}{more}"
    why = f"; {effect.unknown_because}" if effect.unknown_because else ""
    return f"expected {signal} {effect.after:.3g}{interval} instead of {effect.before:.3g}{threshold}{why}"


def recommendation_json(one: agent_pb2.Recommendation) -> dict[str, Any]:
    """Return a recommendation as the fleet API's JSON has it: NaN as None, the action as its word."""
    effect = one.effect
    return {
        "action": action_word(one.action),
        **{key: getattr(one, key) for key in ("vm", "name", "job", "victim", "victim_name")},
        "amount": _known(one.amount),
        "unit": one.unit,
        "evidence": list(one.evidence),
        "effect": {
            "signal": effect.signal,
            **{key: _known(getattr(effect, key)) for key in ("before", "after", "low", "high", "threshold")},
            "unknown_because": effect.unknown_because,
        },
        "commands": [{"purpose": c.purpose, "words": list(c.words)} for c in one.commands],
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def recommendation_lines(found: Iterable[agent_pb2.Recommendation]) -> Iterator[str]:
    """Yield each recommendation: what, the expected effect, the evidence, its commands as one would type them."""
    for number, one in enumerate(found, 1):
        name, victim = one.name or one.vm, one.victim_name or one.victim
        done = _DONE.get(one.action, action_word(one.action) + " {name}").format(name=name, victim=victim)
        amount = "" if math.isnan(one.amount) else f" to {one.amount:g} {one.unit}"
        evidence = (f"   - {line}" for line in one.evidence)
        commands = (f"   $ {shlex.join(command.words)}  # {command.purpose}" for command in one.commands)
        yield from map(printable, (f"{number}. {done}{amount}", f"   {effect_text(one.effect)}", *evidence, *commands))
