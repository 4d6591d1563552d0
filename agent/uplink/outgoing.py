"""What of the windows goes to central: the metrics that the configuration chooses, and reasons when they change."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from agent.config import WindowsSection
from agent.sampling.windows import CpiWindow
from collector.base import Reason
from whitepanda.common.window_columns import BY_NAME

_KEPT = 20_000  # VMs whose reasons are remembered; those that sent last


class Outgoing:
    """Prepares windows for the uplink, in the order in which they are queued."""

    def __init__(self, section: WindowsSection) -> None:
        self._chosen = (_names(section.batch.metrics), _names(section.latency_sensitive.metrics))
        self._sent: dict[tuple[str, str], dict[str, Reason]] = {}

    def restart(self) -> None:
        """Send all reasons again: central may not have them."""
        self._sent.clear()

    def prepare(self, windows: Sequence[CpiWindow]) -> list[CpiWindow]:
        """Return the windows with the chosen metrics, and the reasons that are new since the VM's last window."""
        prepared = [self._prepare(window, self._chosen[window.latency_sensitive]) for window in windows]
        while len(self._sent) > _KEPT:
            del self._sent[next(iter(self._sent))]
        return prepared

    def _prepare(self, window: CpiWindow, chosen: frozenset[str]) -> CpiWindow:
        metrics = {name: value for name, value in window.metrics.items() if name in chosen}
        reasons = {name: value for name, value in metrics.items() if isinstance(value, Reason)}
        cpi = window.cpi if "cpi" in chosen else None
        if cpi is None and window.cpi_reason and "cpi" in chosen:
            reasons["cpi"] = window.cpi_reason
        key = (window.vm, window.epoch)
        before = self._sent.pop(key, {})
        self._sent[key] = reasons
        new = {name: reason for name, reason in reasons.items() if before.get(name) is not reason}
        new |= dict.fromkeys(before.keys() - reasons.keys(), Reason.UNSPECIFIED)
        return replace(window, cpi=cpi, metrics=metrics, new_reasons=new)


def _names(chosen: Iterable[str]) -> frozenset[str]:
    """Return the names that are chosen, `all` of them by that word."""
    named = frozenset(chosen)
    return frozenset(BY_NAME) if "all" in named else named
