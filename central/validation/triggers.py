"""Reports of hosts on VMs that suffer: which of a batch are accepted, and how many are refused, by reason."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from central.validation.reports import ANALYSES, good_reports
from central.validation.rows import Sender, is_name
from whitepanda.v1 import agent_pb2

#: Why a report is refused, in the order in which reasons are tried.
TRIGGER_REASONS = ("too_many_triggers", "bad_trigger", "bad_trigger_time")

_MAX_TRIGGERS = 200  # of one batch; an agent keeps 100 at most
_MAX_BYTES = 64 << 10
_MAX_VMS = 256
_MAX_RECOMMENDATIONS = 16
_MAX_LINES = 16  # of evidence, and commands, of a recommendation
_MAX_WORDS = 32
_MAX_TEXT = 1024  # an agent's have two names of up to 256 and some words
_MAX_WORD = 256  # such as "out_of_range:SIGNAL"
_MAX_ANALYSES = 8


@dataclass(frozen=True, slots=True)
class TriggerRow:
    """A report, identified by `(host, spool_id, sequence, number)` wherever it arrives.

    `machine` is where VMs suffer, `number` its place in the batch, `payload` the message `whitepanda.v1.Trigger`.
    """

    host: str
    spool_id: str
    sequence: int
    number: int
    machine: str
    unix_ns: int
    payload: bytes


def check_triggers(batch: agent_pb2.CpiBatch, sender: Sender) -> tuple[list[TriggerRow], dict[str, int]]:
    """Return the good triggers of a batch, and how many are refused, by reason; these cost neither others nor rows."""
    good, rejected = good_reports(batch.triggers, _is_good, word="trigger", at_most=_MAX_TRIGGERS, sender=sender)
    stream = (sender.host, batch.spool_id, batch.sequence)
    taken = [
        TriggerRow(*stream, number, machine, one.unix_ns, one.SerializeToString()) for number, machine, one in good
    ]
    return taken, rejected


def first_suspect(trigger: agent_pb2.Trigger) -> agent_pb2.TriggerSuspect | None:
    """Return the first suspect: found by the host's own analysis, or scored above 0; None without one."""
    for first in trigger.suspects[:1]:
        if first.inflicts or first.score > 0:  # not so for NaN
            return first
    return None


def _is_good(trigger: agent_pb2.Trigger) -> bool:
    """Whether names are fit for a terminal, numbers are finite or unknown, and nothing contradicts itself."""
    if (  # first: the rest walks through them
        len(trigger.victims) + len(trigger.suspects) > _MAX_VMS
        or len(trigger.recommendations) > _MAX_RECOMMENDATIONS
        or trigger.ByteSize() > _MAX_BYTES
    ):
        return False
    vms: list[agent_pb2.TriggerVictim | agent_pb2.TriggerSuspect] = [*trigger.victims, *trigger.suspects]
    numbers = [trigger.mn_cpi, trigger.mn_cpi_threshold]
    numbers += [n for v in trigger.victims for n in (v.cpi, v.n_cpi, v.threshold_cpi, v.cpu_usage_cores)]
    numbers += [n for s in trigger.suspects for n in (s.score, s.coefficient, s.cpu_usage_cores)]
    return (
        not (trigger.ended and vms)
        and all(is_name(v.vm) and is_name(v.job) for v in vms)
        and all(not text or is_name(text) for v in vms for text in (v.epoch, v.name))
        and all(not v.suspect or is_name(v.suspect) for v in trigger.victims)
        and not any(math.isinf(n) for n in numbers)
        and all(map(_are_analyses, [trigger.found_by, *(v.found_by for v in trigger.victims)]))
        and all(_is_good_slow_down(v.slow_down) for v in trigger.victims if v.HasField("slow_down"))
        and all(map(_is_good_advice, trigger.recommendations))
    )


def _are_analyses(found_by: Sequence[int]) -> bool:
    return len(found_by) <= _MAX_ANALYSES and ANALYSES.issuperset(found_by)


def _is_good_slow_down(one: agent_pb2.Degradation) -> bool:
    """Whether known values are a ratio above 0 within its interval, and texts are fit for a terminal."""
    known = [n for n in (one.low, one.ratio, one.high) if not math.isnan(n)]
    return (
        not any(map(math.isinf, known))
        and (math.isnan(one.ratio) or one.ratio > 0)
        and known == sorted(known)
        and all(len(text) <= _MAX_WORD and (not text or is_name(text)) for text in (one.cannot_tell, one.model))
    )


def _is_good_advice(one: agent_pb2.Recommendation) -> bool:
    """Whether every text is fit for a terminal and of a sane length, and no number is infinite."""
    effect = one.effect
    names = (one.vm, one.name, one.job, one.victim, one.victim_name)
    texts = [one.unit, effect.signal, effect.unknown_because, *one.evidence]
    texts += [text for command in one.commands for text in (command.purpose, *command.words)]
    numbers = (one.amount, effect.before, effect.after, effect.low, effect.high, effect.threshold)
    return (
        max(len(one.evidence), len(one.commands)) <= _MAX_LINES
        and all(len(command.words) <= _MAX_WORDS for command in one.commands)
        and all(not name or is_name(name) for name in names)
        and all(len(text) <= _MAX_TEXT and text.isprintable() for text in texts)
        and not any(math.isinf(number) for number in numbers)
    )
