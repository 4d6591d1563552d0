"""The sources of this host, made as configured."""

from __future__ import annotations

from agent.config import AgentConfig
from agent.sampling.pipeline import timely_sources
from agent.sampling.runner import SourcePlan
from collector.base import Reason, SourceError
from collector.registry import SOURCES, build_sources, make_inventory
from whitepanda.common.extras import how_to_install

__all__ = ["make_plans"]

_DEADLINE_S = 2.0  # of a source whose section has no setting for it


def make_plans(config: AgentConfig) -> list[SourcePlan]:
    """Make every source as configured; one that cannot even be made says so as its probe would."""
    sources = timely_sources(config)
    inventory = make_inventory(sources)
    plans = []
    for spec in SOURCES:
        section = getattr(sources, spec.name)
        deadline_ns = round(getattr(section, "deadline_s", _DEADLINE_S) * 1e9)
        try:
            built = build_sources(sources, inventory, specs=(spec,))
        except ImportError as error:
            broken = SourceError(
                f"{spec.name}: this installation lacks '{error.name}'; {how_to_install('host')}",
                Reason.NOT_PRESENT,
            )
            plans.append(SourcePlan(spec.name, section.mode, None, deadline_ns, broken))
        else:
            plans.append(SourcePlan(spec.name, section.mode, built[0][0] if built else None, deadline_ns))
    return plans
