"""How the demonstration is shown: a live screen on a terminal, plain lines anywhere else, and the result."""

import math
import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from central.demo.outcome import Outcome, Victim
from central.demo.watch import AgentWatch

_EVERY_S = 5.0  # between lines of progress where there is no terminal
_EVENTS = 12  # kept on the screen
_WIDE_COLUMNS = 100  # of a screen with all columns


class PlainShow:
    """Lines with the seconds since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = self._last = time.monotonic()

    def event(self, text: str) -> None:
        """Print one line."""
        self._console.print(f"{time.monotonic() - self._began:5.1f} s  {text}", soft_wrap=True)

    def refresh(self, agents: Sequence[AgentWatch]) -> None:
        """Print one line every few seconds."""
        if time.monotonic() - self._last < _EVERY_S or not any(agent.answers for agent in agents):
            return
        self._last = time.monotonic()
        windows = sum(agent.windows_acknowledged for agent in agents)
        versions = "/".join(str(agent.coefficient_version or "-") for agent in agents)
        levels = "  ".join(f"{agent.name} {_number(agent.mn_cpi)}" for agent in agents)
        self.event(f"windows acknowledged {windows}, coefficient versions {versions}, mnCPI {levels}")

    def close(self) -> None:
        """Nothing to leave."""


class LiveShow:
    """One screen: the hosts, and what happened last."""

    def __init__(self, console: Console) -> None:
        self._began = time.monotonic()
        self._events: list[str] = []
        self._agents: Sequence[AgentWatch] = ()
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def event(self, text: str) -> None:
        """Add a line below the hosts."""
        self._events = [*self._events, f"{time.monotonic() - self._began:5.1f} s  {text}"][-_EVENTS:]
        self.refresh(self._agents)

    def refresh(self, agents: Sequence[AgentWatch]) -> None:
        """Draw again."""
        self._agents = agents
        self._live.update(self._screen(), refresh=True)

    def close(self) -> None:
        """Stop drawing; may be called twice."""
        self._live.stop()

    def _screen(self) -> RenderableType:
        is_wide = self._live.console.width >= _WIDE_COLUMNS
        table = Table(title="whitepanda: four simulated hosts, one central, all real processes over mTLS")
        for heading in ("host", "uplink", "coefficients" if is_wide else "version", "contention"):
            table.add_column(heading, no_wrap=True)
        for heading in ("VMs", "windows acked", "mnCPI") if is_wide else ("mnCPI",):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("victims, by the agent's verdict" if is_wide else "victims")
        for agent in self._agents:
            number = str(agent.coefficient_version)
            version = (f"version {number}" if is_wide else number) if agent.coefficient_version else "none yet"
            counts = (str(agent.vms), str(agent.windows_acknowledged)) if is_wide else ()
            table.add_row(
                agent.name,
                agent.uplink if agent.answers else "starting",
                version,
                Text("YES", "bold red") if agent.victims else "no",
                *counts,
                _number(agent.mn_cpi),
                Text(", ".join(agent.victims), "red"),
            )
        return Group(table, *(Text(line) for line in self._events))


#: What shows the progress of a demonstration.
Show = PlainShow | LiveShow


def print_outcome(console: Console, outcome: Outcome) -> None:
    """Print the result: the suspects, then the victims next to the truth."""
    right, wrong = ("the injected antagonist", "bold green"), ("NOT the injected one", "bold red")
    verdict = right if outcome.correct else wrong
    end = f" ({outcome.injected_antagonist}), {outcome.detection_s:.1f} s after it started."
    suspect = (str(outcome.first_suspect), "bold")
    console.print(Text.assemble(f"\nFirst suspect on {outcome.host}: ", suspect, ", ", verdict, end), soft_wrap=True)
    suspects = Table(title=f"Suspects, ranked by the agent on {outcome.host}")
    for heading in ("VM", "job"):
        suspects.add_column(heading)
    for heading in ("CPU cores", "coefficient", "score"):
        suspects.add_column(heading, justify="right")
    for s in outcome.suspects:
        suspects.add_row(s.vm, s.job, f"{s.cpu_usage_cores:.2f}", f"{s.coefficient:+.3f}", f"{s.score:+.3f}")
    console.print(suspects)
    console.print(_victims(outcome))
    for v in outcome.victims:
        if v.latency_unknown:
            moments = f"at {v.latency_unknown} of {v.latency_known + v.latency_unknown} moments"
            console.print(f"{v.vm}: latency is unknown {moments}: {v.cannot_tell}", soft_wrap=True)
    console.print(
        f"{len(outcome.hosts)} hosts, {outcome.windows_acknowledged} live CPI windows acknowledged, "
        f"{outcome.past_windows} simulated ones before; {outcome.seconds:.1f} s.",
        soft_wrap=True,
    )


def print_next_step(console: Console) -> None:
    """Print how to start a run that can be looked at."""
    console.print(
        "Next: make demo ARGS=--stay (or whitepanda demo --stay) continues until Ctrl-C, with the fleet page and "
        "whitepanda top.",
        soft_wrap=True,
    )


def print_where(console: Console, *, page: str, host: str, top: str, incidents: str) -> None:
    """Print where a run with --stay can be looked at: the page's URL, and commands, each alone on its line."""
    for line in (
        "Running until Ctrl-C. To look around, in a browser on this machine and in another terminal:",
        "  the fleet page:",
        f"    {page}",
        f"  the VMs of {host}, live:",
        f"    {top}",
        "  the incidents that central keeps:",
        f"    {incidents}",
    ):
        console.print(line, soft_wrap=True)


def _victims(outcome: Outcome) -> Table:
    seconds = f"{outcome.compared_s:.0f} s"
    victims = Table(title=f"Victims: slow-down over the same {seconds}, by the agent and in truth")
    for heading in ("VM", "CPI", "true", "latency p95, 90 %", "true", "inside", "verdict"):
        victims.add_column(heading, justify="left" if heading in ("VM", "verdict") else "right", no_wrap=True)
    for v in outcome.victims:
        victims.add_row(
            v.vm,
            _number(v.estimated_degradation),
            _number(v.true_degradation),
            _interval(v),
            _number(v.true_latency_degradation),
            _inside(v),
            v.behaviour or "-",
        )
    return victims


def _interval(victim: Victim) -> str:
    if victim.latency_degradation is None:
        return "cannot tell"
    ends = "" if victim.latency_low is None else f" {_number(victim.latency_low)}-{_number(victim.latency_high)}"
    return _number(victim.latency_degradation) + ends


def _inside(victim: Victim) -> str:
    """Return whether the interval has the truth, and for how many single estimates that holds."""
    if victim.is_held is None:
        return "-"
    return f"{'yes' if victim.is_held else 'NO'} {victim.latency_held}/{victim.latency_known}"


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.2f}"
