"""Events that hosts report: which of a batch are accepted, and how many are refused, by reason."""

from dataclasses import dataclass

from central.validation.reports import ANALYSES, good_reports
from central.validation.rows import Sender, is_name
from whitepanda.v1 import agent_pb2

#: Why an event is refused, in the order in which reasons are tried.
EVENT_REASONS = ("too_many_events", "bad_event", "bad_event_time")

_MAX_EVENTS = 1000  # of one batch
_MAX_EVENT_BYTES = 16 << 10
_MAX_LIST = 256  # culprits, evidence
_BEHAVIOURS = frozenset(agent_pb2.Behaviour.values()) - {agent_pb2.BEHAVIOUR_UNSPECIFIED}


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event of a host: its keys, and the message `whitepanda.v1.VmEvent`."""

    host: str
    received_unix_ns: int
    unix_ns: int
    vm: str
    name: str
    behaviour: int
    before: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """A host's agent as its Hello has it, and when that came, by central's clock."""

    host: str
    boot_id: str
    version: str
    started_unix_ns: int  # by the agent's clock; 0: not known
    seen_unix_ns: int


def check_events(batch: agent_pb2.CpiBatch, sender: Sender) -> tuple[list[EventRow], dict[str, int]]:
    """Return the good events of a batch, and how many are refused, by reason; these cost neither others nor rows."""
    good, rejected = good_reports(batch.events, _is_good, word="event", at_most=_MAX_EVENTS, sender=sender)
    now = sender.now_unix_ns
    taken = [
        EventRow(machine, now, one.unix_ns, one.vm, one.name, one.behaviour, one.before, one.SerializeToString())
        for _, machine, one in good
    ]
    return taken, rejected


def _is_good(event: agent_pb2.VmEvent) -> bool:
    """Whether VM and behaviours are known, and texts are fit for a terminal."""
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
