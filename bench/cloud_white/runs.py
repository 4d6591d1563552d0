"""One run of the simulated study: simulated, judged by both detectors, estimated, and scored. See cloud_white.py."""

import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.analysis.degradation.model import Model
from agent.analysis.detectors.base import AnyDetector
from agent.analysis.detectors.detector import Detector, DetectorSettings
from agent.analysis.detectors.paper_detector import PaperDetector, PaperSettings
from agent.analysis.signals import INDEX, OTHERS, SIGNALS, SUMS, Tick, VmKey, load_factors, set_idle, set_others
from bench.cloud_white.alita import polluters
from bench.cloud_white.simulation import Study, StudyBlock, blocks
from central.degradation.scatter import percentile_with
from collector.simulated.contention import workers_of
from collector.simulated.profiles import PROFILES
from collector.simulated.truth import Role

Floats = NDArray[np.float64]

PERCENTILE = 95.0
#: What is compared: whitepanda, the paper's plain rules, and what needs neither a detector nor a model, or no model.
METHODS = (
    "whitepanda",
    "whitepanda, without samples of vCPUs",
    "whitepanda, given the workers",
    "whitepanda, estimates alone",
    "paper",
    "constant 1",
    "constant",
    "our detector, constant",
    "expected",
)
DETECTORS = ("whitepanda", "paper")


class Errors(NamedTuple):
    """Of one run, ratios. Overall: of the whole run. Dynamic: of the ticks after the quiet phase, and others beside.

    `*_5s`: of tails measured over 5 s each, and estimates averaged over as much.
    """

    overall: float
    dynamic: float
    dynamic_whole: float
    dynamic_stress: float
    overall_5s: float
    dynamic_5s: float


class Watched(NamedTuple):
    """What a detector said in a run."""

    behaviours: NDArray[np.str_]  # (T, VMs)
    baseline: Floats  # (T, VMs, signals)
    baseline_ticks: NDArray[np.int64]  # (T, VMs)
    estimate: NDArray[np.bool_]  # (T, VMs), whose degradation is worth an estimate
    factors: Floats  # (T, VMs), `load_factors` with what is learnt; 1 where nothing is
    workers: NDArray[np.int64]  # (T, VMs), how many requests each is held to serve at once; 0: cannot tell


@dataclass(frozen=True, slots=True)
class Run:
    """The scores of one run.

    `errors`: per method of `METHODS`. `roles`: per detector how often a role was found as which behaviour, after the
    quiet phase, and in it as `quiet <role>`. `covered`, `widths`: of the victim's estimates with intervals.
    `*_known`: with the number of workers given. `*_blind`: without it and without samples of vCPUs.
    `workers`: the victim's; as learnt by the end of the quiet phase, and of the run (0: cannot tell).
    `reasons`: why whitepanda has no estimate. `series`: for figures.
    """

    name: str
    repetition: int
    errors: Mapping[str, Errors]
    roles: Mapping[str, Mapping[tuple[str, str], int]]
    covered: NDArray[np.bool_]
    widths: Floats
    covered_known: NDArray[np.bool_]
    widths_known: Floats
    covered_blind: NDArray[np.bool_]
    widths_blind: Floats
    workers: tuple[int, int, int]
    reasons: Mapping[str, int]
    p95: Mapping[str, float]
    series: Mapping[str, Floats]


def seeded(study: Study, purpose: str) -> Study:
    """Give a study random numbers of its own: scenarios would share those of the same VM otherwise."""
    return replace(study, seed=zlib.crc32(f"{purpose}/{study.name}".encode()))


def overall_error(measured: Floats, estimated: Floats, scatter: Floats | None = None) -> float:
    """Compare the 95th percentiles of a run's measured and estimated degradation, NaN in measured is left out.

    Args:
        measured: shape (T,).
        estimated: shape (T,), what seconds are on average.
        scatter: shape (T,), how far each may lie from that (`Model.scatter`); None: they lie there.

    """
    real = float(np.nanpercentile(measured, PERCENTILE))
    spread = np.zeros(len(estimated)) if scatter is None else np.nan_to_num(scatter)
    return abs(percentile_with(estimated, spread, PERCENTILE) - real) / real


def dynamic_error(measured: Floats, estimated: Floats) -> float:
    """Return the mean over seconds of the estimate's error, of what was measured then, shape (T,); NaN is left out."""
    return float(np.nanmean(np.abs(estimated - measured) / measured))


def errors_of(measured: Floats, measured_5s: Floats, estimated: Floats, quiet: int, stressed: int) -> Errors:
    """Compare a run's estimates with what was measured.

    Args:
        measured: shape (T,), degradation of the p95 of each second, NaN where no request ended.
        measured_5s: likewise, of the 5 s that end then.
        estimated: shape (T,).
        quiet: how many ticks the quiet phase has.
        stressed: how many ticks the quiet and the stressed phases have.

    """
    sums = np.convolve(estimated, np.ones(5))[: len(estimated)]
    smooth = sums / np.minimum(np.arange(len(estimated)) + 1, 5)
    return Errors(
        overall_error(measured, estimated),
        dynamic_error(measured[quiet:], estimated[quiet:]),
        dynamic_error(measured, estimated),
        dynamic_error(measured[quiet:stressed], estimated[quiet:stressed]),
        overall_error(measured_5s, smooth),
        dynamic_error(measured_5s[quiet:], smooth[quiet:]),
    )


def signals_of_block(block: StudyBlock, factors: Floats | float = 1.0) -> Floats:
    """Make the signals of a block, shape (T, VMs, signals), as `agent.analysis.signals.signals_of` does for a tick."""
    shape = block.load_ratio.shape
    values = np.full((*shape, len(SIGNALS)), np.nan)
    for name, column in INDEX.items():
        if name in OTHERS:
            continue
        if name in SUMS:
            first, second = SUMS[name]
            values[..., column] = block.metrics[first] + block.metrics[second]
        elif name in block.metrics:
            values[..., column] = block.metrics[name]
        elif name in block.host:
            values[..., column] = block.host[name][:, None]
    for row in values:
        set_others(row, factors)
    return values


def detector_of(name: str) -> AnyDetector:
    return Detector(DetectorSettings()) if name == "whitepanda" else PaperDetector(PaperSettings())


def watch(
    detector: AnyDetector, keys: tuple[VmKey, ...], at_s: Floats, values: Floats, running: Floats | None = None
) -> Watched:
    """Let a detector see ticks, in order; `running`: samples of the vCPUs, (T, VMs), or None."""
    count = (len(at_s), len(keys))
    behaviours = np.empty(count, dtype="<U10")
    baseline = np.empty(values.shape)
    ticks = np.zeros(count, dtype=np.int64)
    estimate = np.zeros(count, dtype=np.bool_)
    factors = np.ones(count)
    workers = np.zeros(count, dtype=np.int64)
    for t, now in enumerate(at_s.tolist()):
        found = detector.step(Tick(now, keys, values[t], None if running is None else running[t]))
        behaviours[t] = [str(behaviour) for behaviour in found.behaviours]
        ticks[t] = found.baseline_ticks
        baseline[t] = found.baseline
        victim = behaviours[t] == "victim"
        estimate[t] = victim if found.estimate is None else found.estimate
        if found.factors is not None and found.workers is not None:
            factors[t], workers[t] = found.factors, found.workers.workers
    return Watched(behaviours, baseline, ticks, estimate, factors, workers)


def keys_of(study: Study, *, known: bool = False) -> tuple[VmKey, ...]:
    """Name the VMs; `known`: with how many requests each serves at once, as an operator may say."""
    return tuple(
        VmKey(study.uuid_of(vm), "1", vm.vcpus, workers_of(PROFILES[vm.profile], vm.vcpus) if known else None)
        for vm in study.vms
    )


class Evaluated(NamedTuple):
    """Our estimates of a VM: degradation, low and high, (3, T); what counts, (T,); its scatter, (T,); why none."""

    numbers: Floats
    estimates: Floats
    scatter: Floats
    reasons: list[str]

    def bounds(self, measured: Floats) -> tuple[NDArray[np.bool_], Floats]:
        """Return whether each interval covers what was measured, and its relative width."""
        degradation, low, high = self.numbers
        bounded = ~np.isnan(low) & ~np.isnan(measured)
        covered = (low <= measured) & (measured <= high)
        return covered[bounded], ((high - low) / degradation)[bounded]


def whitepanda_of(model: Model, watched: Watched, values: Floats, vm: int) -> Evaluated:
    """Estimate a VM's degradation as the agent does, with the idle share of what the detector holds for its workers."""
    values = values.copy()
    for now, factors in zip(values, watched.factors, strict=True):
        set_idle(now, factors)
    numbers, reasons = estimates_of(model, watched, values, vm)
    columns = [INDEX[name] for name in model.inputs]
    scatter = model.scatter(values[:, vm][:, columns], watched.baseline[:, vm][:, columns], numbers[0])
    # What is unknown counts as no degradation.
    return Evaluated(numbers, np.where(np.isnan(numbers[0]), 1.0, numbers[0]), scatter, reasons)


def known_of(study: Study, block: StudyBlock, model: Model, vm: int) -> Evaluated:
    """Estimate by the same model where it is known how many workers each VM has."""
    keys = keys_of(study, known=True)
    values = signals_of_block(block, load_factors(keys))
    return whitepanda_of(model, watch(detector_of("whitepanda"), keys, block.at_s, values), values, vm)


def estimates_of(model: Model, watched: Watched, values: Floats, vm: int) -> tuple[Floats, list[str]]:
    """Return a VM's degradation, low and high per tick, shape (3, T), NaN where none was asked for; and reasons."""
    columns = [INDEX[name] for name in model.inputs]
    asked = np.flatnonzero(watched.estimate[:, vm])
    numbers = np.full((3, len(values)), np.nan)
    known = model.predict(
        values[asked, vm][:, columns], watched.baseline[asked, vm][:, columns], watched.baseline_ticks[asked, vm]
    )
    numbers[:, asked] = np.stack((known.degradation, known.low, known.high))
    return numbers, [reason for reason in known.reasons if reason]


def evaluate(study: Study, whitepanda: Model, paper: Model, constant: float) -> Run:
    """Run a study, and score its first VM's degradation and all VMs' roles."""
    block = one_block(study)
    values, keys, vm = signals_of_block(block), keys_of(study), 0
    running = block.metrics["vcpus_running"]
    watched = {name: watch(detector_of(name), keys, block.at_s, values, running) for name in DETECTORS}
    blind = whitepanda_of(whitepanda, watch(detector_of("whitepanda"), keys, block.at_s, values), values, vm)
    quiet, stressed = phases_of(study, block)
    measured, measured_5s = measured_of(block, quiet, vm)
    found, known = whitepanda_of(whitepanda, watched["whitepanda"], values, vm), known_of(study, block, whitepanda, vm)
    papers, _ = estimates_of(paper, watched["paper"], values, vm)
    suffers = watched["whitepanda"].behaviours[:, vm] == "victim"
    ticks = np.arange(len(measured))
    stress = (ticks >= quiet) & (ticks < stressed)
    estimates = {
        "whitepanda": found.estimates,
        "whitepanda, without samples of vCPUs": blind.estimates,
        "whitepanda, given the workers": known.estimates,
        "paper": np.where(np.isnan(papers[0]), 1.0, papers[0]),
        "constant 1": np.ones(len(measured)),
        "constant": np.full(len(measured), constant),
        "our detector, constant": np.where(suffers, constant, 1.0),
        # Not a method: what the truth itself expects, without the noise of one second's requests.
        "expected": block.expected.degradation[:, vm],
    }
    errors = {name: errors_of(measured, measured_5s, one, quiet, stressed) for name, one in estimates.items()}
    errors["whitepanda, estimates alone"] = errors["whitepanda"]
    for name, one in (
        ("whitepanda", found),
        ("whitepanda, without samples of vCPUs", blind),
        ("whitepanda, given the workers", known),
    ):
        overall = overall_error(measured, one.estimates, one.scatter)
        errors[name] = errors[name]._replace(overall=overall)
    covered, widths = found.bounds(measured)
    covered_known, widths_known = known.bounds(measured)
    covered_blind, widths_blind = blind.bounds(measured)
    learnt = watched["whitepanda"].workers[:, vm]
    victim = study.vms[vm]
    return Run(
        name=study.name,
        repetition=study.repetition,
        errors=errors,
        roles={name: confusion(block, one.behaviours, quiet) for name, one in watched.items()},
        covered=covered,
        widths=widths,
        covered_known=covered_known,
        widths_known=widths_known,
        covered_blind=covered_blind,
        widths_blind=widths_blind,
        workers=(workers_of(PROFILES[victim.profile], victim.vcpus), int(learnt[quiet - 1]), int(learnt[-1])),
        reasons=Counter(found.reasons),
        p95={
            "measured": float(np.nanpercentile(measured, PERCENTILE)),
            "std": float(np.nanstd(measured[stress])),
            **{name: float(np.percentile(one, PERCENTILE)) for name, one in estimates.items()},
            "whitepanda": percentile_with(found.estimates, np.nan_to_num(found.scatter), PERCENTILE),
            "whitepanda, estimates alone": float(np.percentile(estimates["whitepanda"], PERCENTILE)),
        },
        series={
            "at_s": block.at_s,
            "measured": measured,
            "whitepanda": estimates["whitepanda"],
            "paper": estimates["paper"],
            "low": found.numbers[1],
            "high": found.numbers[2],
            "expected": estimates["expected"],
            "gips": values[:, :, INDEX["gips"]] / values[:quiet, :, INDEX["gips"]].mean(axis=0),
        },
    )


def phases_of(study: Study, block: StudyBlock) -> tuple[int, int]:
    """Return how many ticks the quiet phase has, and how many it has with the stressed one."""
    quiet, stressed = (int((block.at_s <= end).sum()) for end in (study.quiet_s, study.stress_s))
    return quiet, stressed


def measured_of(block: StudyBlock, quiet: int, vm: int) -> tuple[Floats, Floats]:
    """Return a VM's degradation per second as measured, (T,), and of tails over 5 s each."""
    every = block.p95_latency_s[:, vm], block.p95_5s_latency_s[:, vm]
    second, five = (p95 / np.nanmean(p95[:quiet]) for p95 in every)
    return second, five


def one_block(study: Study) -> StudyBlock:
    (block,) = blocks(study)
    return block


def confusion(block: StudyBlock, behaviours: NDArray[np.str_], quiet: int) -> Mapping[tuple[str, str], int]:
    """Count how often a role was found as which behaviour, after the quiet phase, and in it as `quiet <role>`."""
    found: Counter[tuple[str, str]] = Counter()
    for t, row in enumerate(block.roles):
        for role, behaviour in zip(row, behaviours[t].tolist(), strict=True):
            if role is not Role.UNSCORED:
                found[str(role) if t >= quiet else f"quiet {role}", behaviour] += 1
    return found


def quiet_day_of(study: Study, detectors: Mapping[str, AnyDetector]) -> dict[str, dict[str, int]]:
    """Let detectors see a day on which nothing happens; count what each says that is not true.

    Returns:
        VM ticks, those in which a VM was called a victim or inflicting, and how often a VM became a victim.

    """
    keys = keys_of(study)
    names = ("vm_ticks", "victim_ticks", "inflicting_ticks", "false_victims")
    found = {name: dict.fromkeys(names, 0) for name in detectors}
    before = {name: np.zeros(len(keys), dtype=np.bool_) for name in detectors}
    for block in blocks(study, requests=False):
        running, values = block.metrics["vcpus_running"], signals_of_block(block)
        for name, detector in detectors.items():
            watched = watch(detector, keys, block.at_s, values, running)
            victim = watched.behaviours == "victim"
            began = victim & ~np.concatenate([before[name][None], victim[:-1]])
            inflicting = watched.behaviours == "inflicting"
            for counted, ticks in zip(names[1:], (victim, inflicting, began), strict=True):
                found[name][counted] += int(ticks.sum())
            found[name]["vm_ticks"] += victim.size
            before[name] = victim[-1]
    return found


def alita_shares(study: Study) -> dict[str, dict[str, dict[str, float]]]:
    """Per phase and VM, the share of scored ticks in which each rule calls it the one that does harm, and the truth."""
    block = one_block(study)
    values, keys = signals_of_block(block), keys_of(study)
    machine = study.machine
    vcpus = [vm.vcpus for vm in study.vms]
    accused = {
        "alita": np.array([
            polluters(row, vcpus, llc_bytes=machine.llc_mib * 2**20, host_cpus=machine.cpus)
            for row in values[:, :, INDEX["llc_occupancy_bytes"]]
        ]),
        "truth": np.array([[role is Role.INFLICTING for role in row] for row in block.roles]),
    }  # fmt: skip
    for name in DETECTORS:
        said = watch(detector_of(name), keys, block.at_s, values).behaviours
        accused[name] = said == "inflicting"
    scored = np.array([[role is not Role.UNSCORED for role in row] for row in block.roles]).all(axis=1)
    phases = {
        "quiet": block.at_s <= study.quiet_s,
        "stress": (block.at_s > study.quiet_s) & (block.at_s <= study.stress_s),
        "after": block.at_s > study.stress_s,
    }
    return {
        phase: {
            vm.name: {name: float(one[ticks & scored, place].mean()) for name, one in accused.items()}
            for place, vm in enumerate(study.vms)
        }
        for phase, ticks in phases.items()
    }
