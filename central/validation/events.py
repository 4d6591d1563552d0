"""Events that hosts report: what of a batch is taken, and what of it is refused, counted by reason."""

from collections import Counter
from dataclasses import dataclass

from central.validation.reports import ANALYSES, good_reports
from central.validation.rows import Limits, is_name
from whitepanda.v1 import agent_pb2

#: Why an event is refused, in the order in which reasons are tried.
EVENT_REASONS = ("too_many_events", "bad_event", "bad_event_time")

_MAX_EVENTS = 1000  # of one batch
_MAX_EVENT_BYTES = 16 << 10
_MAX_LIST = 256  # culprits, evidence
_BEHAVIOURS = frozenset(agent_pb2.Behaviour.values()) - {agent_pb2.BEHAVIOUR_UNSPECIFIED}


def check_events(
    batch: agent_pb2.CpiBatch, *, host: str, is_importer: bool, limits: Limits, now_unix_ns: int
) -> "tuple[list[EventRow], dict[str, int]]":
    """Check the events of a batch one by one; those that cannot be used cost neither the others nor any row.

    Args:
        batch: as it came; an agent that knows no events sends none.
        host: whose stream it is.
        is_importer: whether it may speak for other machines, of any time.
        limits: how far a time may be from now.
        now_unix_ns: central's clock.

    Returns:
        What is taken, and how many are not, by reason.

    """
    rejected: Counter[str] = Counter()
    good = good_reports(
        batch.events,
        _is_good,
        rejected,
        word="event",
        at_most=_MAX_EVENTS,
        host=host,
        is_importer=is_importer,
        limits=limits,
        now_unix_ns=now_unix_ns,
    )
    taken = [
        EventRow(
            host=machine,
            received_unix_ns=now_unix_ns,
            unix_ns=event.unix_ns,
            vm=event.vm,
            name=event.name,
            behaviour=event.behaviour,
            before=event.before,
            payload=event.SerializeToString(),
        )
        for _, machine, event in good
    ]
    return taken, dict(rejected)


def _is_good(event: agent_pb2.VmEvent) -> bool:
    """Whether it says of whom it is and what began; texts are for people's terminals, so without control characters."""
    lists = (event.culprits, event.evidence, event.found_by)
    if max(map(len, lists)) > _MAX_LIST or event.ByteSize() > _MAX_EVENT_BYTES:  # first: the rest walks through them
        return False
    texts = (event.epoch, event.name, event.job, *event.culprits)
    return (
        is_name(event.vm)
        and all(not text or is_name(text) for text in texts)
        and (not event.reason or event.reason.isprintable())
        and event.behaviour in _BEHAVIOURS
        and event.before in _BEHAVIOURS
        and ANALYSES.issuperset(event.found_by)
    )


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event of a host: what it is found by, and the message `whitepanda.v1.VmEvent`."""

    host: str
    received_unix_ns: int
    unix_ns: int
    vm: str
    name: str
    behaviour: int
    before: int
    payload: bytes
