"""The sources of this host, made as configured, and the wait for those that are required."""

import asyncio
from collections.abc import Callable, Iterable

from agent.clock import Clock
from agent.config import AgentConfig
from agent.sampling.pipeline import timely_sources
from agent.sampling.source_threads import Slot, SourcePlan
from collector.base import Reason, SourceError
from collector.registry import SOURCES, build_sources, make_inventory
from whitepanda.common.errors import UnavailableError
from whitepanda.common.extras import how_to_install

_POLL_S = 0.01
_DEADLINE_S = 2.0  # of a source whose section has no setting for it


def make_plans(config: AgentConfig) -> list[SourcePlan]:
    """Make every source as configured; one that cannot even be made says so as its probe would."""
    sources = timely_sources(config)
    inventory = make_inventory(sources)
    plans = []
    for spec in SOURCES:
        section = getattr(sources, spec.name)
        deadline_ns = round(getattr(section, "deadline_s", _DEADLINE_S) * 1e9)
        source, broken = None, None
        try:
            source = next((one for one, _ in build_sources(sources, inventory, specs=(spec,))), None)
        except ImportError as error:
            lacks = f"this installation lacks '{error.name}'; {how_to_install('host')}"
            broken = SourceError(f"{spec.name}: {lacks}", Reason.NOT_PRESENT)
        plans.append(SourcePlan(spec.name, section.mode, source, deadline_ns, broken))
    return plans


async def wait_for(slots: Iterable[Slot], is_done: Callable[[Slot], bool], *, clock: Clock, timeout_s: float) -> None:
    """Wait until `is_done` of all slots, for `timeout_s` at most."""
    until_ns = clock.mono_ns() + round(timeout_s * 1e9)
    while not all(map(is_done, slots)) and clock.mono_ns() < until_ns:  # noqa: ASYNC110 - polled at start and end only
        await asyncio.sleep(_POLL_S)


def check_required(slots: Iterable[Slot], waited_s: float) -> None:
    """Refuse to start without a required source.

    Raises:
        UnavailableError: one is not available; it was waited for so long.

    """
    for slot in slots:
        if slot.plan.mode == "required" and slot.trouble is not None:
            view = slot.view()
            detail = view.detail if slot.tried else f"no answer within {waited_s:g} s"
            raise UnavailableError(f"sources.{slot.name}.mode is 'required', but it is {view.state}: {detail}")
