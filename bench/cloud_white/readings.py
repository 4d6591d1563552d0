"""The paper's detector in each reading of what load and GIPS are held against. See cloud_white.py, --readings.

The paper normalises both by the No-Interference scenario, compares the load with "the rolling mean of the previous
intervals", and does not say how long that mean is, nor what the GIPS must have changed from.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from agent.analysis.degradation.model import Model
from agent.analysis.detectors.base import AnyDetector
from agent.analysis.detectors.paper_detector import PaperDetector, PaperSettings
from bench.cloud_white import tables
from bench.cloud_white.runs import (
    Errors,
    confusion,
    detector_of,
    errors_of,
    estimates_of,
    keys_of,
    measured_of,
    one_block,
    phases_of,
    quiet_day_of,
    signals_of_block,
    watch,
)
from bench.cloud_white.simulation import Study

READINGS = {
    "both: last 10 ticks": PaperSettings(),
    "both: last 60 ticks": PaperSettings(rolling_ticks=60),
    "load: last 10 ticks, GIPS: baseline": PaperSettings(gips_from_baseline=True),
    "load: last 60 ticks, GIPS: baseline": PaperSettings(rolling_ticks=60, gips_from_baseline=True),
    "both: baseline": PaperSettings(load_from_baseline=True, gips_from_baseline=True),
}
OURS = "whitepanda"


@dataclass(frozen=True, slots=True)
class Read:
    """The scores of one run: `errors` and `roles` as in `cloud_white_runs.Run`, by reading; whitepanda: roles only."""

    name: str
    errors: Mapping[str, Errors]
    roles: Mapping[str, Mapping[tuple[str, str], int]]
    scored: float  # share of the VM ticks after the quiet phase that have a role to score


def detectors() -> dict[str, AnyDetector]:
    return {OURS: detector_of(OURS), **{name: PaperDetector(settings) for name, settings in READINGS.items()}}


def read(study: Study, model: Model) -> Read:
    """Let each reading see a run, and estimate its first VM's degradation by the paper's model."""
    block, vm = one_block(study), 0
    values, keys = signals_of_block(block), keys_of(study)
    quiet, stressed = phases_of(study, block)
    measured, measured_5s = measured_of(block, quiet, vm)
    errors, roles = {}, {}
    for name, detector in detectors().items():
        watched = watch(detector, keys, block.at_s, values)
        roles[name] = confusion(block, watched.behaviours, quiet)
        if name != OURS:
            degradation = estimates_of(model, watched, values, vm)[0][0]
            estimated = np.where(np.isnan(degradation), 1.0, degradation)
            errors[name] = errors_of(measured, measured_5s, estimated, quiet, stressed)
    asked = sum(count for (role, _), count in roles[OURS].items() if not role.startswith("quiet"))
    return Read(study.name, errors, roles, asked / (len(keys) * (len(block.at_s) - quiet)))


def quiet_day(study: Study) -> dict[str, dict[str, int]]:
    """Let each reading see a day on which nothing happens."""
    return quiet_day_of(study, detectors())


def numbers_of(runs: Mapping[str, list[Read]], stressors: Iterable[str]) -> dict[str, Any]:
    """Make the numbers by group; errors of single VMs are those beside some stressors, as in the study's tables."""
    found = {}
    for group, every in runs.items():
        counted = [
            run for run in every if group not in {"single", "known"} or tables.parts(run)["stressor"] in stressors
        ]
        found[group] = {
            "runs": len(every),
            "scored": float(np.mean([run.scored for run in every])),
            "errors": tables.errors_over(counted, READINGS),
            "detection": {name: tables.detection_over(every, name) for name in (OURS, *READINGS)},
        }
    return found


def print_readings(groups: Mapping[str, Any], quiet: Mapping[str, Mapping[str, int]], hours: float) -> None:
    """Print the tables."""
    keys = ("victim", "inflicting", "apart", "steady", "all", "quiet_alarms")
    tables.head(
        "", "detector", "victims", "inflicting", "both", "steady", "all", "alarms in quiet", "overall / dynamic error"
    )  # fmt: skip
    for group, found in groups.items():
        for name, one in found["detection"].items():
            e = found["errors"].get(name)
            errors = "" if e is None else f"{tables.percent(e['overall'])} / {tables.percent(e['dynamic'])}"
            shown = [tables.percent(one[key]) for key in keys]
            tables.row(tables.GROUPS.get(group, "own load, clock"), name, *shown, errors)
    tables.head(f"{hours:g} quiet hours", "false victims", "their ticks", "inflicting ticks", "VM ticks")
    for name, day in quiet.items():
        tables.row(name, day["false_victims"], day["victim_ticks"], day["inflicting_ticks"], day["vm_ticks"])
    tables.head("", "runs", "scored, percent of VM ticks after the quiet phase")
    for group, found in groups.items():
        tables.row(tables.GROUPS.get(group, "own load, clock"), found["runs"], tables.percent(found["scored"]))
