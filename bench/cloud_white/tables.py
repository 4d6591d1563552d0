"""The numbers of the study over its runs, the bars, and the tables in Markdown. See cloud_white.py."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bench.cloud_white.runs import DETECTORS, METHODS, Errors, Run

OVERALL, DYNAMIC, TOLD_APART = 0.05, 0.10, 0.95
COVERED = (0.88, 0.93)
GROUPS = {
    "single": "one VM beside a microbenchmark",
    "two": "two VMs, ramps",
    "three": "three VMs, ramps",
    "known": "one VM, applications of the training",
}
CONSTANTS = ("constant 1", "constant")
#: Under which whitepanda stands beside whitepanda as it is, with the suffix of a run's intervals.
CONDITIONS = {"without samples of vCPUs": "_blind", "given the workers": "_known"}
_SINGLE = re.compile(r"^(?P<application>.+?)-(?P<load>\d+)-(?P<stressor>.+)$")
_ACTIVE = ("victim", "inflicting")


def numbers_of(runs: Mapping[str, Sequence[Run]], stressors: Sequence[str]) -> dict[str, Any]:
    """Make all numbers of the runs, by group.

    Args:
        runs: by group: single, known, two, three, other.
        stressors: those that the errors of single VMs count for; the others are reported of beside.

    """
    groups: dict[str, Any] = {}
    for group, every in runs.items():
        counted = [run for run in every if group not in {"single", "known"} or parts(run)["stressor"] in stressors]
        groups[group] = {
            "runs": len(every),
            "errors": errors_over(counted),
            "detection": {name: detection_over(every, name) for name in DETECTORS},
            "cannot_tell": reasons_over(counted),
        }
        if group in {"single", "known"}:
            groups[group]["cells"] = [
                {"application": application, "load": load, **cell(some)}
                for (application, load), some in by(counted, "application", "load").items()
            ]
            groups[group]["stressors"] = [
                {"stressor": stressor, **cell(some)} for (stressor,), some in by(every, "stressor").items()
            ]
        elif group != "other":
            names = dict.fromkeys(run.name for run in every)
            groups[group]["cells"] = [
                {"name": name, **cell([run for run in every if run.name == name])} for name in names
            ]
    victims = {
        application: [
            run for group in ("single", "two", "three") for run in runs[group] if application in victim_of(run)
        ]
        for application in ("masstree", "moses", "silo", "img-dnn")
    }
    # img-dnn is the victim of some ramps, but no application that the model has not seen.
    unseen = [run for application, some in victims.items() if application != "img-dnn" for run in some]
    per = {application: intervals_over(some) for application, some in victims.items()}
    others = {
        f"{name}, {words}": intervals_over(some, suffix)
        for words, suffix in CONDITIONS.items()
        for name, some in (("all unseen", unseen), ("silo", victims["silo"]))
    }
    return {
        "groups": groups,
        "intervals": {"all unseen": intervals_over(unseen), **per, **others},
        "workers": {application: workers_over(some) for application, some in victims.items()},
    }


class Scored(Protocol):
    """A run's scores."""

    @property
    def errors(self) -> Mapping[str, Errors]: ...

    @property
    def roles(self) -> Mapping[str, Mapping[tuple[str, str], int]]: ...


class Named(Protocol):
    """A run, or what is run."""

    @property
    def name(self) -> str: ...


def parts(run: Named) -> Mapping[str, str]:
    """Return application, load and stressor of a run with one VM."""
    found = _SINGLE.match(run.name)
    if found is None:
        raise ValueError(f"{run.name}: no run of one VM")
    return found.groupdict()


def victim_of(run: Run) -> str:
    """Return the part of a run's name that names its victim."""
    return re.sub(r"^(two|three)-", "", run.name).split("0-")[0]


def by(runs: Iterable[Run], *keys: str) -> dict[tuple[str, ...], list[Run]]:
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        found.setdefault(tuple(parts(run)[key] for key in keys), []).append(run)
    return found


def errors_over(runs: Sequence[Scored], methods: Iterable[str] = METHODS) -> dict[str, dict[str, float]]:
    """Return the mean over runs of each error, by method."""
    return {
        method: {
            field: float(np.mean([getattr(run.errors[method], field) for run in runs]))
            for field in Errors._fields
        }
        for method in methods
    } if runs else {}  # fmt: skip


def cell(runs: Sequence[Run]) -> dict[str, Any]:
    names = ("measured", "whitepanda", "whitepanda, estimates alone", "paper", "std")
    return {
        "runs": len(runs),
        "errors": errors_over(runs),
        "p95": {name: float(np.mean([run.p95[name] for run in runs])) for name in names},
        "p95_std": {name: float(np.std([run.p95[name] for run in runs])) for name in names},
        "detection": {name: detection_over(runs, name) for name in DETECTORS},
    }


def detection_over(runs: Iterable[Scored], detector: str) -> dict[str, Any]:
    """Count how often a detector said what is true; "apart": of ticks with a victim's or inflicting role."""
    found: Counter[tuple[str, str]] = Counter()
    for run in runs:
        found.update(run.roles[detector])
    roles = ("steady", *_ACTIVE)
    totals = {role: sum(count for (is_role, _), count in found.items() if is_role == role) for role in roles}

    def said(role: str, words: Sequence[str]) -> int:
        return sum(found[role, word] for word in words)

    # A VM whose baseline is not ready is called neither, as a steady one is.
    right = {"steady": said("steady", ("steady", "unknown")), **{r: said(r, (r,)) for r in _ACTIVE}}
    quiet = sum(count for (role, _), count in found.items() if role.startswith("quiet"))
    alarms = sum(found[f"quiet {role}", word] for role in roles for word in _ACTIVE)

    def share(of: Sequence[str]) -> float:
        total = sum(totals[role] for role in of)
        return sum(right[role] for role in of) / total if total else math.nan

    return {
        "apart": share(_ACTIVE),
        "all": share(roles),
        **{role: share((role,)) for role in roles},
        "quiet_alarms": alarms / quiet if quiet else math.nan,
        "ticks": totals,
        "all_steady": totals["steady"] / max(sum(totals.values()), 1),
    }


def intervals_over(runs: Sequence[Run], suffix: str = "") -> dict[str, float]:
    """Return how often intervals cover, and their width; `suffix`: of `CONDITIONS`."""
    covered = np.concatenate([getattr(run, f"covered{suffix}") for run in runs]) if runs else np.zeros(0)
    widths = np.concatenate([getattr(run, f"widths{suffix}") for run in runs]) if runs else np.zeros(0)
    if not len(covered):
        return {"ticks": 0, "covered": math.nan, "median_width": math.nan}
    return {"ticks": len(covered), "covered": float(covered.mean()), "median_width": float(np.median(widths))}


def workers_over(runs: Sequence[Run]) -> dict[str, int]:
    """Count runs by what was learnt of the victim's workers: at the end of the quiet phase, and of the run."""
    found: Counter[str] = Counter()
    for run in runs:
        true, quiet, end = run.workers
        for when, learnt in (("quiet", quiet), ("end", end)):
            found[f"{when} {'right' if learnt == true else 'wrong' if learnt else 'cannot tell'}"] += 1
    words = [f"{when} {how}" for when in ("quiet", "end") for how in ("right", "wrong", "cannot tell")]
    return {"runs": len(runs), **{word: found[word] for word in words}}


def reasons_over(runs: Iterable[Run]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for run in runs:
        found.update(run.reasons)
    return dict(found.most_common())


# --- bars ---


def bars_of(numbers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Hold the numbers against the bars: met, missed, or void where the better constant comes within twice the bar.

    The bars hold for whitepanda as it is: it learns from samples of the vCPUs how many workers each VM has. Two further
    rows have no such samples, or get the number from an operator: a bar that only these meet is met on this condition.
    """
    bars = []
    for group in ("single", "two", "three"):
        errors = numbers["groups"][group]["errors"]
        for field, most in (("overall", OVERALL), ("dynamic", DYNAMIC)):
            constant = min(errors[name][field] for name in CONSTANTS)
            beside = {"constant": constant, "void": constant <= 2 * most}
            beside |= {name: errors[name][field] for name in ("paper", "expected")}
            alone = errors["whitepanda, estimates alone"][field]
            for method, more in (("whitepanda", {"alone": alone}), *((f"whitepanda, {one}", {}) for one in CONDITIONS)):
                whitepanda, condition = errors[method][field], method.removeprefix("whitepanda")
                bars.append({
                    "bar": f"{field} error, {GROUPS[group]}{condition}: at most {most:.0%}",
                    "whitepanda": whitepanda,
                    **more,
                    **beside,
                    "met": whitepanda <= most,
                    "beside": bool(condition),
                })  # fmt: skip
    for group in ("single", "two", "three"):
        found = numbers["groups"][group]["detection"]
        least = {name: min(found[name]["apart"], found[name]["all"]) for name in DETECTORS}
        bars.append({
            "bar": f"victims and inflicting VMs distinguished, {GROUPS[group]}: at least {TOLD_APART:.0%}",
            **least,
            "constant": 0.0,  # who always says steady tells no victim
            "met": least["whitepanda"] >= TOLD_APART,
            "void": False,
        })  # fmt: skip
    quiet = numbers["quiet day"]
    bars.append({
        "bar": f"false victims in {quiet['hours']:g} quiet hours of 20 VMs: 0",
        **{name: quiet[name]["false_victims"] for name in DETECTORS},
        "met": quiet["whitepanda"]["false_victims"] == 0,
        "void": False,
    })  # fmt: skip
    for condition, whose in (("", "intervals"), *((f", {one}", f"intervals, {one}") for one in CONDITIONS)):
        covered = numbers["intervals"][f"all unseen{condition}"]["covered"]
        bars.append({
            "bar": f"{whose} (90 % nominal) cover {COVERED[0]:.0%} to {COVERED[1]:.0%}",
            "whitepanda": covered,
            "met": COVERED[0] <= covered <= COVERED[1],
            "beside": bool(condition),
            "void": False,
        })  # fmt: skip
    return bars


# --- print ---


def print_all(numbers: Mapping[str, Any]) -> None:
    """Print all tables."""
    print_bars(numbers)
    print_errors(numbers)
    print_cells(numbers)
    print_detection(numbers)
    print_rest(numbers)


def percent(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{100 * value:.1f}"


def row(*cells: Any) -> None:
    print("| " + " | ".join(str(one) for one in cells) + " |")


def head(*cells: str) -> None:
    print()
    row(*cells)
    row(*("---" for _ in cells))


def print_bars(numbers: Mapping[str, Any]) -> None:
    head("bar", "whitepanda", "our estimates alone", "paper's rules", "better constant", "truth's own expectation", "")
    for bar in numbers["bars"]:
        words = "met" if bar["met"] else "missed"
        if bar["void"]:
            words += ", void: the constant is within twice the bar"
        is_count = bar["bar"].startswith("false")
        shown = [
            bar.get(name, "") if is_count else percent(bar.get(name))
            for name in ("whitepanda", "alone", "paper", "constant", "expected")
        ]
        row(bar["bar"], *shown, words)


def print_errors(numbers: Mapping[str, Any]) -> None:
    print("\nPercent, means over runs: overall / dynamic after the quiet phase (whole run, stressed phase).")
    head("", *(GROUPS[name] for name in GROUPS))
    for method in METHODS:
        cells = []
        for group in GROUPS:
            e = numbers["groups"][group]["errors"][method]
            beside = f"{percent(e['dynamic_whole'])}, {percent(e['dynamic_stress'])}"
            cells.append(f"{percent(e['overall'])} / {percent(e['dynamic'])} ({beside})")
        row(method, *cells)
    print("\nThe same with tails measured over 5 s each: overall / dynamic after the quiet phase.")
    head("", *(GROUPS[name] for name in GROUPS))
    for method in METHODS:
        errors = [numbers["groups"][group]["errors"][method] for group in GROUPS]
        row(method, *(f"{percent(e['overall_5s'])} / {percent(e['dynamic_5s'])}" for e in errors))


def print_cells(numbers: Mapping[str, Any]) -> None:
    print("\nPer application and load: p95 of the run's degradation, then percent overall / dynamic.")
    names = (
        "whitepanda", *(f"whitepanda, {one}" for one in CONDITIONS), "whitepanda, estimates alone",
        "paper", "constant", "constant 1",
        "expected",
    )  # fmt: skip
    head("run", "measured", "whitepanda", *names, "std of a second", "distinguished")
    for group in GROUPS:
        found = numbers["groups"][group]
        for one in found["cells"]:
            name = one.get("name") or f"{one['application']} {one['load']} %"
            print_cell(name, one, names)
        for one in found.get("stressors", ()) if group == "single" else ():
            print_cell(f"all, {one['stressor']}", one, names)


def print_cell(name: str, one: Mapping[str, Any], names: Sequence[str]) -> None:
    p95, errors = one["p95"], one["errors"]
    shown = [f"{percent(errors[n]['overall'])} / {percent(errors[n]['dynamic'])}" for n in names]
    reported = percent(one["detection"]["whitepanda"]["apart"])
    row(name, f"{p95['measured']:.2f}", f"{p95['whitepanda']:.2f}", *shown, percent(p95["std"]), reported)


def print_detection(numbers: Mapping[str, Any]) -> None:
    print("\nPercent of scored ticks after the quiet phase; alarms in the quiet phase.")
    head("", "detector", "victims", "inflicting", "both", "steady", "all", "alarms in quiet")
    for group, found in numbers["groups"].items():
        for name, one in found["detection"].items():
            shown = [percent(one[key]) for key in ("victim", "inflicting", "apart", "steady", "all", "quiet_alarms")]
            row(GROUPS.get(group, "own load, clock"), name, *shown)


def print_rest(numbers: Mapping[str, Any]) -> None:
    head("intervals of", "ticks", "covered", "median width")
    for name, one in numbers["intervals"].items():
        row(name, one["ticks"], percent(one["covered"]), percent(one["median_width"]))
    head("workers learnt of", "runs", "by the end of quiet: right", "wrong", "cannot tell", "of the run: right",
         "wrong", "cannot tell")  # fmt: skip
    for application, one in numbers["workers"].items():
        row(application, *one.values())
    head("Alita's example: called inflicting, percent of ticks", "VM", "alita", "whitepanda", "paper", "truth")
    for phase, vms in numbers["alita"].items():
        for vm, shares in vms.items():
            row(phase, vm, *(percent(shares[name]) for name in ("alita", "whitepanda", "paper", "truth")))
    quiet = numbers["quiet day"]
    head(f"{quiet['hours']:g} quiet hours", "false victims", "their ticks", "inflicting ticks", "VM ticks")
    for name in DETECTORS:
        one = quiet[name]
        row(name, one["false_victims"], one["victim_ticks"], one["inflicting_ticks"], one["vm_ticks"])
    head("features", "method", "mean error", "median", "")
    model = numbers["model"]
    for one in model["tried"]:
        if "failed" in one:
            row(", ".join(one["features"]), one["method"], "", "", one["failed"])
            continue
        is_chosen = one["features"] == model["features"] and one["method"] == model["method"]
        errors = (percent(one["mean_ape"]), percent(one["median_ape"]))
        row(", ".join(one["features"]), one["method"], *errors, "chosen" if is_chosen else "")
    for name, words in GROUPS.items():
        print(f"\ncannot tell, {words}: {numbers['groups'][name]['cannot_tell'] or 'none'}")
