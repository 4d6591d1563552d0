"""The demonstration's result, for people and programs."""

from dataclasses import asdict, dataclass
from typing import Any

from central.demo.watch import Ranked


@dataclass(frozen=True, slots=True)
class Victim:
    """A VM that is truly hurt, or a victim by the agent's verdict (`flagged`). None: not known.

    Degradation is of the CPI, by the job's statistics. `latency_degradation` with its 90 % interval is the agent's
    estimate of the requests' 95th percentile, over the same slots: the mean of `latency_known` estimates, as
    `true_latency_degradation` is the mean of the truth. `latency_held` of these estimates had the truth of their moment
    in their interval. At `latency_unknown` moments there was no estimate; `cannot_tell` is the most frequent reason.
    """

    vm: str
    true_degradation: float | None
    estimated_degradation: float | None
    flagged: bool
    behaviour: str = ""
    latency_degradation: float | None = None
    latency_low: float | None = None
    latency_high: float | None = None
    true_latency_degradation: float | None = None
    latency_known: int = 0
    latency_held: int = 0
    latency_unknown: int = 0
    cannot_tell: str = ""

    @property
    def is_held(self) -> bool | None:
        """Whether the interval holds the truth; None where one of them is not known."""
        low, high, true = self.latency_low, self.latency_high, self.true_latency_degradation
        return None if low is None or high is None or true is None else low <= true <= high


@dataclass(frozen=True, slots=True)
class Outcome:
    """The injected antagonist, and the findings of that host's agent.

    True and estimated degradation are averaged over `compared_s`; `detection_s` is from the injection to the agent's
    trigger. `false_alarms` are hosts whose trigger fired before the injection, or elsewhere.
    """

    injected_antagonist: str
    first_suspect: str | None
    host: str
    victims: tuple[Victim, ...]
    suspects: tuple[Ranked, ...]
    hosts: tuple[str, ...]
    windows_acknowledged: int
    past_windows: int
    coefficient_version: int
    detection_s: float
    compared_s: float
    false_alarms: tuple[str, ...]
    seed: int
    seconds: float

    @property
    def correct(self) -> bool:
        """Whether the first suspect is of the injected job."""
        return self.first_suspect == self.injected_antagonist

    def to_json(self) -> dict[str, Any]:
        """All fields, ready for `print_json`."""
        return asdict(self) | {"victims": [asdict(victim) | {"is_held": victim.is_held} for victim in self.victims]}
