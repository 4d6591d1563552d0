"""Recommendations as messages of the protocol; what is not known is NaN there."""

from typing import Any

from agent.analysis.advice.recommendations import Recommendation
from whitepanda.common.protocol import or_nan
from whitepanda.v1 import agent_pb2


def recommendation_message(one: Recommendation) -> agent_pb2.Recommendation:
    """Make the message of a recommendation."""
    number: Any = agent_pb2.Action.Value(f"ACTION_{one.action.upper()}")
    effect = one.effect
    return agent_pb2.Recommendation(
        action=number,
        vm=one.vm,
        name=one.name,
        job=one.job,
        victim=one.victim,
        victim_name=one.victim_name,
        amount=or_nan(one.amount),
        unit=one.unit,
        evidence=one.evidence,
        effect=agent_pb2.ExpectedEffect(
            signal=effect.signal,
            before=or_nan(effect.before),
            after=or_nan(effect.after),
            low=or_nan(effect.low),
            high=or_nan(effect.high),
            threshold=or_nan(effect.threshold),
            unknown_because=effect.unknown_because,
        ),
        commands=[agent_pb2.Command(purpose=c.purpose, words=c.words) for c in one.commands],
    )
