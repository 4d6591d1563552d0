"""The scenarios of Cloud White's evaluation (Pons et al., sections 5, 7 and 8), as studies."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bench.cloud_white.simulation import Study, StudyVm
from collector.simulated.profiles import APPLICATIONS, NOISE, STRESSORS

#: Loads of victims (section 6.2). silo saturates before 0.5 of two vCPUs, so it has none there.
LOADS = (0.1, 0.2, 0.3, 0.4, 0.5)
_QUIET, _QUIET_LOAD = "no-interference", 0.10
_STRESS_FROM_S, _STRESS_TO_S = 60.0, 110.0
_VICTIM_VCPUS, _STRESSOR_VCPUS, _BACKGROUND_VCPUS, _INFLICTING_VCPUS = 2, 8, 6, 4


def single(application: str, load: float, stressor: str, *, repetition: int = 1, seed: int = 1) -> Study:
    """A latency-critical VM beside a microbenchmark (section 7.1): 60 s quiet, 50 s stress, 60 s quiet.

    Args:
        application: of `profiles.APPLICATIONS`, in 2 vCPUs.
        load: its load.
        stressor: of `profiles.STRESSORS`, in 8 vCPUs; "no-interference" is the scenario without any.
        repetition: other random numbers.
        seed: likewise, of the whole study.

    """
    stress_load = STRESSORS[stressor][1]
    name = f"{application}-{round(load * 100)}-{stressor}"
    inflicting = StudyVm(
        "stressor",
        _QUIET,
        _STRESSOR_VCPUS,
        _QUIET_LOAD,
        points=((_STRESS_FROM_S, stress_load), (_STRESS_TO_S, _QUIET_LOAD)),
        switches=((_STRESS_FROM_S, stressor), (_STRESS_TO_S, _QUIET)),
    )
    return Study(
        name,
        (StudyVm(application, application, _VICTIM_VCPUS, load), inflicting, _background(_BACKGROUND_VCPUS)),
        seed=seed,
        repetition=repetition,
    )


def singles(
    applications: tuple[str, ...] = tuple(APPLICATIONS),
    *,
    loads: tuple[float, ...] = LOADS,
    stressors: tuple[str, ...] = tuple(STRESSORS),
    repetitions: int = 5,
    seed: int = 1,
) -> Iterator[Study]:
    """All combinations of `single` that can be run, repetition by repetition."""
    for repetition in range(1, repetitions + 1):
        for application in applications:
            for load in loads:
                if load / APPLICATIONS[application].workers_per_vcpu >= 1:
                    continue
                for stressor in stressors:
                    yield single(application, load, stressor, repetition=repetition, seed=seed)


def two_vms(
    victim: str, load: float, inflicting: str, *, peak: float = 0.6, repetition: int = 1, seed: int = 1
) -> Study:
    """Two latency-critical VMs (section 7.3): one at constant load, one that ramps up from 50 s and down to 110 s."""
    vms = (StudyVm(victim, victim, _VICTIM_VCPUS, load), _ramp(inflicting, peak, 50.0), _background(8))
    name = f"two-{victim}-{round(load * 100)}-{inflicting}"
    return Study(name, vms, quiet_s=50.0, stress_s=120.0, seed=seed, repetition=repetition)


def three_vms(
    victim: str, load: float, inflicting: tuple[str, str], *, peak: float = 0.6, repetition: int = 1, seed: int = 1
) -> Study:
    """Three latency-critical VMs (section 7.3): the second of the inflicting ones begins 15 s after the first."""
    first, second = inflicting
    vms = (
        StudyVm(victim, victim, _VICTIM_VCPUS, load),
        _ramp(first, peak, 50.0),
        _ramp(second, peak, 65.0),
        _background(_BACKGROUND_VCPUS),
    )
    name = f"three-{victim}-{round(load * 100)}-{first}-{second}"
    return Study(name, vms, quiet_s=50.0, stress_s=135.0, duration_s=185, seed=seed, repetition=repetition)


def load_growth(application: str, load: float, peak: float, *, repetition: int = 1, seed: int = 1) -> Study:
    """Intra-VM growth: a VM's own load rises by less than what inflicts, or more; nobody else does anything."""
    vm = StudyVm(application, application, _VICTIM_VCPUS, load, points=((60.0, peak), (110.0, load)))
    vms = (vm, replace(_background(_STRESSOR_VCPUS), name="quiet"), _background(_BACKGROUND_VCPUS))
    name = f"growth-{application}-{round(load * 100)}-{round(peak * 100)}"
    return Study(name, vms, seed=seed, repetition=repetition)


def clock_change(application: str, load: float, ratio: float, *, repetition: int = 1, seed: int = 1) -> Study:
    """The host's clock falls (AVX, thermal limits) or rises (turbo) to `ratio` of itself from 60 to 110 s."""
    study = single(application, load, "no-interference", repetition=repetition, seed=seed)
    name = f"clock-{application}-{round(load * 100)}-{round(ratio * 100)}"
    vms = tuple(replace(vm, points=(), switches=()) for vm in study.vms)
    return replace(study, name=name, vms=vms, frequency=((60.0, ratio), (110.0, 1.0)))


def alita(*, repetition: int = 1, seed: int = 1) -> Study:
    """Figure 13: img-dnn fills the cache and hurts nobody; stress_ng streams from 60 to 110 s and hurts it."""
    stressor, load = "cache-memory-2", STRESSORS["cache-memory-2"][1]
    vms = (
        StudyVm("img-dnn", "img-dnn", 8, 0.2),
        StudyVm(
            "stress-ng",
            _QUIET,
            8,
            _QUIET_LOAD,
            points=((_STRESS_FROM_S, load), (_STRESS_TO_S, _QUIET_LOAD)),
            switches=((_STRESS_FROM_S, stressor), (_STRESS_TO_S, _QUIET)),
        ),
    )
    return Study("alita", vms, seed=seed, repetition=repetition)


def quiet_day(*, vms: int = 20, hours: float = 24.0, seed: int = 1) -> Study:
    """A host on which nothing happens but the day: diurnal load of each VM, noise that lasts; nobody is a victim.

    Args:
        vms: how many, of 2 vCPUs each.
        hours: how long, from midnight.
        seed: draws loads, amplitudes and hours of the peaks.

    """
    rng = np.random.default_rng([seed, 24])
    names = (*APPLICATIONS, _QUIET)
    guests = tuple(
        StudyVm(
            f"vm-{number:02d}",
            names[number % len(names)],
            _VICTIM_VCPUS,
            load=float(rng.uniform(0.05, 0.2)),
            diurnal=float(rng.uniform(0.2, 0.45)),
            peak_hour=float(rng.uniform(12.0, 18.0)),
        )
        for number in range(vms)
    )
    duration_s = round(hours * 3600)
    noise = replace(NOISE, load_std=0.06, load_correlation_s=60.0)
    return Study("quiet-day", guests, duration_s, float(duration_s), float(duration_s), seed=seed, noise=noise)


def _background(vcpus: int) -> StudyVm:
    """The "no interference" instance that fills the rest of the host (section 5)."""
    return StudyVm("background", _QUIET, vcpus, _QUIET_LOAD)


def _ramp(application: str, peak: float, from_s: float) -> StudyVm:
    """Ramp from a tenth to `peak` over 20 s, stay for 30 s, and back over 10 s, in 4 vCPUs (section 7.1)."""
    peak = min(peak, 0.9 * APPLICATIONS[application].workers_per_vcpu)
    points = ((from_s, 0.1), (from_s + 20, peak), (from_s + 50, peak), (from_s + 60, 0.1))
    return StudyVm(f"{application}-inflicting", application, _INFLICTING_VCPUS, 0.1, points=points, shape="ramp")
