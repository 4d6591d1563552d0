"""The parameters of a generated trace: ranges and effects."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from whitepanda.common.errors import InputError

#: How the summed pressure of the tasks on a machine becomes contention.
FORMS = ("linear", "saturating")


def _parameter(default: float, low: float, high: float, text: str) -> Any:
    return field(default=default, metadata={"low": low, "high": high, "help": text})


@dataclass(frozen=True, slots=True)
class SynthSettings:
    """Parameters of the generator. Spreads are standard deviations of a logarithm; hours are of the trace's clock.

    Raises InputError if a parameter is out of its range, or parameters contradict each other.
    """

    days: int = _parameter(23, 1, 400, "days of the trace, of 288 slots of 300 s")
    machines: int = _parameter(40, 1, 20_000, "machines")
    ls_tasks: int = _parameter(8, 1, 500, "latency-sensitive tasks per machine")
    batch_tasks: int = _parameter(14, 1, 500, "batch tasks per machine")

    ls_jobs: int = _parameter(30, 1, 100_000, "latency-sensitive jobs")
    batch_jobs: int = _parameter(60, 0, 100_000, "ordinary batch jobs, beside the following")
    antagonists: int = _parameter(8, 0, 10_000, "antagonist batch jobs")
    companions: int = _parameter(0, 0, 10_000, "innocent batch jobs that ride along, dealt round to the antagonists")
    burners: int = _parameter(0, 0, 10_000, "innocent batch jobs that use much CPU")
    ls_antagonists: int = _parameter(0, 0, 10_000, "of the latency-sensitive jobs, how many are antagonists as well")
    popularity_exponent: float = _parameter(0.7, 0, 3, "job of rank r has r ** -x of its kind's tasks: some are rare")
    transient_share: float = _parameter(0.2, 0, 1, "share of the batch jobs that exist for a part of the days only")
    rare_share: float = _parameter(0.1, 0, 1, "share of the batch jobs with a twentieth of the tasks of others")

    ls_lifetime_h: float = _parameter(120, 0.5, 1e5, "mean life of a latency-sensitive task")
    batch_lifetime_h: float = _parameter(18, 0.5, 1e5, "mean life of a batch task")

    ls_usage: float = _parameter(0.006, 1e-6, 100, "median over jobs of CPU usage, latency-sensitive, normalised")
    batch_usage: float = _parameter(0.01, 1e-6, 100, "median over jobs of CPU usage, batch, normalised")
    usage_job_spread: float = _parameter(0.8, 0, 3, "spread of usage between jobs")
    usage_task_spread: float = _parameter(0.3, 0, 3, "spread of usage between tasks of a job")
    usage_noise: float = _parameter(0.5, 0, 3, "spread of a task's usage from slot to slot")
    usage_memory_h: float = _parameter(1.0, 0, 1000, "time constant of that noise; 0: white")
    antagonist_usage: float = _parameter(1.5, 0.01, 100, "usage of antagonists, times that of other batch jobs")
    burner_usage: float = _parameter(5.0, 0.01, 100, "usage of burners, times that of other batch jobs")
    diurnal_load: float = _parameter(0.3, 0, 0.95, "amplitude of the day's rhythm of latency-sensitive usage")
    batch_diurnal_load: float = _parameter(0.1, 0, 0.95, "the same of batch usage, a rhythm half a day later")

    antagonist_effect: float = _parameter(0.15, 0, 100, "contention by one antagonist task at its job's usual usage")
    effect_spread: float = _parameter(0.5, 0, 3, "spread of that effect between jobs")
    background_effect: float = _parameter(0.0, 0, 100, "the same contention by one ordinary batch task")
    saturation: float = _parameter(0.6, 1e-3, 1e6, "form saturating: contention = s * (1 - exp(-pressure / s))")
    effect_threshold: float = _parameter(0, 0, 100, "usage that hurts no task, in multiples of the job's usual usage")
    intensity_noise: float = _parameter(
        0, 0, 3, "spread of what a task's usage does to others, from slot to slot, whatever it uses"
    )
    throttling: float = _parameter(
        0, 0, 100, "batch usage is divided by 1 + this * contention: it falls while all are slowed down"
    )
    usage_dependence: float = _parameter(1, 0, 1, "1: an effect follows usage; 0: it is there while the task is")
    effect_memory_h: float = _parameter(0, 0, 1000, "time constant of pressure that follows usage (cache); 0: at once")
    sensitivity: float = _parameter(1, 0, 100, "mean sensitivity of latency-sensitive jobs to contention")
    sensitivity_spread: float = _parameter(0.5, 0, 3, "spread of sensitivity between jobs")

    ride_along: float = _parameter(0.7, 0, 1, "chance that a companion comes with each task of its antagonist")
    companion_usage_correlation: float = _parameter(0.5, 0, 1, "of the slot noise of both usages")

    base_cpi: float = _parameter(1.5, 0.01, 1000, "median CPI over jobs")
    cpi_job_spread: float = _parameter(0.5, 0, 3, "spread of CPI between jobs")
    platforms: int = _parameter(2, 1, 100, "CPU platforms; a machine has one")
    platform_spread: float = _parameter(0.15, 0, 3, "spread of CPI between platforms, for all jobs alike")
    platform_job_spread: float = _parameter(0.05, 0, 3, "the same for each job by itself")
    machine_effect: float = _parameter(0.08, 0, 3, "spread of CPI between machines of a platform")
    task_effect: float = _parameter(0.05, 0, 3, "spread of CPI between tasks of a job")
    load_effect: float = _parameter(0.1, 0, 10, "rise of CPI per rise of the job's own load by the day's rhythm")
    own_usage_effect: float = _parameter(0, -3, 3, "CPI goes with (own usage / usual usage) to this power")
    daily_drift: float = _parameter(0.0, 0, 1, "spread of a step per day of a job's CPI (a random walk)")

    cpi_noise: float = _parameter(0.25, 0, 3, "spread of CPI of a task from slot to slot")
    noise_memory_h: float = _parameter(0.5, 0, 1000, "time constant of that noise; 0: white")
    noise_tail: float = _parameter(4, 2.1, 1e6, "its tails: degrees of freedom of Student's t")
    machine_noise: float = _parameter(0.05, 0, 3, "spread of CPI shared by a machine's tasks, not from antagonists")
    machine_noise_memory_h: float = _parameter(3, 0, 1000, "time constant of that; 0: white")
    machine_noise_spread: float = _parameter(0, 0, 3, "spread between machines of the size of both noises")
    corrupted_share: float = _parameter(0.001, 0, 1, "share of samples whose CPI is absurd")
    corrupted_factor: float = _parameter(8, 1, 1e6, "median factor by which it is (spread 0.5)")
    missing_cpi_share: float = _parameter(0, 0, 1, "share of samples without a CPI")

    form: str = field(default="linear", metadata={"help": f"form of contention: {' or '.join(FORMS)}"})
    seed: int = _parameter(1, 0, 2**31, "makes another trace")

    def __post_init__(self) -> None:
        """Check ranges and what goes together."""
        for one in dataclasses.fields(self):
            if "low" not in one.metadata:
                continue
            value, low, high = getattr(self, one.name), one.metadata["low"], one.metadata["high"]
            if not (math.isfinite(value) and low <= value <= high):
                shown = [f"{each:g}" if isinstance(each, float) else str(each) for each in (low, high, value)]
                raise InputError(f"synth parameter {one.name}: must be {shown[0]} to {shown[1]} (value {shown[2]})")
        if self.form not in FORMS:
            raise InputError(f"synth parameter form: must be {' or '.join(FORMS)} (value {self.form!r})")
        if not self.batch_jobs + self.antagonists + self.burners:
            raise InputError("synth: no batch jobs; raise batch_jobs, antagonists or burners")
        if self.companions and not self.antagonists:
            raise InputError("synth parameter companions: they need antagonists to ride along with (antagonists 0)")
        if self.ls_antagonists > self.ls_jobs:
            raise InputError(
                f"synth parameter ls_antagonists: at most ls_jobs, {self.ls_jobs} (value {self.ls_antagonists})"
            )


def parameters() -> list[tuple[str, Any, str]]:
    """Return name, default and meaning of every parameter, in order."""
    return [
        (parameter.name, parameter.default, parameter.metadata["help"])
        for parameter in dataclasses.fields(SynthSettings)
    ]


def changed(settings: SynthSettings, values: Mapping[str, Any]) -> SynthSettings:
    """Return the settings with some parameters changed; text is read as the parameter's type.

    Raises InputError for an unknown parameter or a value that it cannot have.
    """
    kinds = get_type_hints(SynthSettings)
    read: dict[str, Any] = {}
    for name, value in values.items():
        if name not in kinds:
            raise InputError(f"no synth parameter {name!r}; `whitepanda trace presets` lists them")
        try:
            read[name] = kinds[name](value)
        except ValueError as error:
            kind = "a whole number" if kinds[name] is int else "a number"
            raise InputError(f"synth parameter {name}: must be {kind} (value {value!r})") from error
    return dataclasses.replace(settings, **read)
