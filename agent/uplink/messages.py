"""What the agent holds as messages of the protocol: each field from the attribute of the same name."""

from collections.abc import Iterable
from typing import Any

from agent.analysis.advice.recommendations import Recommendation
from agent.analysis.verdict import Evidence
from agent.antagonists.reports import MAX_SUSPECTS, MAX_VICTIMS, Trigger
from agent.antagonists.vm_events import VmEvent
from whitepanda.common.messages import message_of
from whitepanda.v1 import agent_pb2


def behaviour_number(behaviour: str) -> Any:
    """Return the protocol's number of a behaviour."""
    return agent_pb2.Behaviour.Value(f"BEHAVIOUR_{behaviour.upper()}")


def analysis_numbers(found_by: Iterable[str]) -> list[Any]:
    """Return the protocol's numbers of analyses."""
    return [agent_pb2.Analysis.Value(f"ANALYSIS_{one.upper()}") for one in found_by]


def evidence_message(shown: Evidence) -> agent_pb2.Evidence:
    """Make the message of a piece of evidence."""
    return message_of(agent_pb2.Evidence, shown, baseline=shown.expected)


def event_message(event: VmEvent) -> agent_pb2.VmEvent:
    """Make the message of an event."""
    return message_of(
        agent_pb2.VmEvent,
        event,
        behaviour=behaviour_number(event.behaviour),
        before=behaviour_number(event.before),
        lasted_ns=max(0, event.lasted_ns),
        evidence=map(evidence_message, event.evidence),
        found_by=analysis_numbers(event.found_by),
    )


def trigger_message(trigger: Trigger) -> agent_pb2.Trigger:
    """Make the message of contention: the worst victims and suspects, and how many more there are."""
    victims, suspects = trigger.victims[:MAX_VICTIMS], trigger.suspects[:MAX_SUSPECTS]
    return message_of(
        agent_pb2.Trigger,
        trigger,
        victims=[message_of(agent_pb2.TriggerVictim, one, found_by=analysis_numbers(one.found_by)) for one in victims],
        suspects=[message_of(agent_pb2.TriggerSuspect, one, vm=one.uuid) for one in suspects],
        victims_left_out=len(trigger.victims) - len(victims),
        suspects_left_out=len(trigger.suspects) - len(suspects),
        recommendations=map(recommendation_message, trigger.recommendations),
        found_by=analysis_numbers(trigger.found_by),
        affected_vms=trigger.affected,
    )


def recommendation_message(one: Recommendation) -> agent_pb2.Recommendation:
    """Make the message of a recommendation."""
    return message_of(agent_pb2.Recommendation, one, action=agent_pb2.Action.Value(f"ACTION_{one.action.upper()}"))
