"""Contention that hosts report: what of a batch is taken, and what of it is refused, counted by reason."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from central.reports import good_reports
from central.validate import Limits, is_name
from whitepanda.v1 import agent_pb2

__all__ = ["TRIGGER_REASONS", "TriggerRow", "check_triggers"]

#: Why a report is refused, in the order in which reasons are tried.
TRIGGER_REASONS = ("too_many_triggers", "bad_trigger", "bad_trigger_time")

_MAX_TRIGGERS = 200  # of one batch; an agent keeps 100 at most
_MAX_BYTES = 64 << 10
_MAX_VMS = 256
_MAX_RECOMMENDATIONS = 16
_MAX_LINES = 16  # of evidence, and commands, of a recommendation
_MAX_WORDS = 32
_MAX_TEXT = 1024  # an agent's have two names of up to 256 and some words


@dataclass(frozen=True, slots=True)
class TriggerRow:
    """A report of contention: `(host, spool_id, sequence, number)` is what it is known by, wherever it arrives.

    `machine` is where the contention is, `number` its place in the batch, `payload` the message
    `whitepanda.v1.Trigger`.
    """

    host: str
    spool_id: str
    sequence: int
    number: int
    machine: str
    unix_ns: int
    payload: bytes


def check_triggers(
    batch: agent_pb2.CpiBatch, *, host: str, is_importer: bool, limits: Limits, now_unix_ns: int
) -> tuple[list[TriggerRow], dict[str, int]]:
    """Check the reports of a batch one by one; those that cannot be used cost neither the others nor any row.

    Args:
        batch: as it came; its spool and sequence are known to be good.
        host: whose stream it is.
        is_importer: whether it may speak for other machines, of any time.
        limits: how far a time may be from now.
        now_unix_ns: central's clock.

    Returns:
        What is taken, and how many are not, by reason.

    """
    rejected: Counter[str] = Counter()
    good = good_reports(
        batch.triggers,
        _is_good,
        rejected,
        word="trigger",
        at_most=_MAX_TRIGGERS,
        host=host,
        is_importer=is_importer,
        limits=limits,
        now_unix_ns=now_unix_ns,
    )
    taken = [
        TriggerRow(
            host,
            batch.spool_id,
            batch.sequence,
            number,
            machine,
            trigger.unix_ns,
            trigger.SerializeToString(),
        )
        for number, machine, trigger in good
    ]
    return taken, dict(rejected)


def _is_good(trigger: agent_pb2.Trigger) -> bool:
    """Whether every VM has a name fit for a terminal, and every number that must be known is one."""
    vms: list[agent_pb2.TriggerVictim | agent_pb2.TriggerSuspect] = [*trigger.victims, *trigger.suspects]
    numbers = [trigger.mn_cpi, trigger.mn_cpi_threshold]
    numbers += [n for v in trigger.victims for n in (v.cpi, v.n_cpi, v.threshold_cpi, v.cpu_usage_cores)]
    numbers += [s.cpu_usage_cores for s in trigger.suspects]
    unknown = [n for s in trigger.suspects for n in (s.score, s.coefficient)]
    return (
        len(vms) <= _MAX_VMS
        and all(is_name(v.vm) and is_name(v.job) for v in vms)
        and all(not text or is_name(text) for v in vms for text in (v.epoch, v.name))
        and all(math.isfinite(n) for n in numbers)
        and not any(math.isinf(n) for n in unknown)
        and trigger.ByteSize() <= _MAX_BYTES
        and len(trigger.recommendations) <= _MAX_RECOMMENDATIONS
        and all(map(_is_good_advice, trigger.recommendations))
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
