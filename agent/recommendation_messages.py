"""Recommendations as messages of the protocol; what is not known is NaN there."""

from __future__ import annotations

import math
from typing import Any

from agent.analysis.recommendations import Recommendation
from whitepanda.v1 import agent_pb2

__all__ = ["recommendation_message"]


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
        amount=_number(one.amount),
        unit=one.unit,
        evidence=one.evidence,
        effect=agent_pb2.ExpectedEffect(
            signal=effect.signal,
            before=_number(effect.before),
            after=_number(effect.after),
            low=_number(effect.low),
            high=_number(effect.high),
            threshold=_number(effect.threshold),
            unknown_because=effect.unknown_because,
        ),
        commands=[agent_pb2.Command(purpose=c.purpose, words=c.words) for c in one.commands],
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value
