"""Figures like those of Cloud White's evaluation: 9 to 12, of the first repetition. See cloud_white.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.cloud_white.runs import Run
from bench.cloud_white.tables import parts

DPI = 80


def write_all(folder: Path, runs: Mapping[str, Sequence[Run]], stressor: str) -> None:
    """Write the figures; those of single VMs beside one stressor."""
    import matplotlib as mpl  # the extra `train`

    mpl.use("agg")
    single = [run for run in (*runs["known"], *runs["single"]) if parts(run)["stressor"] == stressor]
    overall(folder / "figure-09-overall.png", single)
    first = [run for run in single if run.series]
    chosen = [run for run in first if parts(run)["load"] in {"20", "40"}]
    dynamic(folder / "figure-10-dynamic.png", chosen)
    ramps(folder / "figure-11-two-vms.png", [run for run in runs["two"] if run.series])
    ramps(folder / "figure-12-three-vms.png", [run for run in runs["three"] if run.series])


def overall(path: Path, runs: Sequence[Run]) -> None:
    """Figure 9: p95 of the degradation of runs, measured and estimated, by application and load."""
    from matplotlib import pyplot as plt

    applications = list(dict.fromkeys(parts(run)["application"] for run in runs))
    figure, axes = plt.subplots(1, len(applications), figsize=(2.6 * len(applications), 3), sharey=True)
    for axis, application in zip(np.atleast_1d(axes), applications, strict=True):
        own = [run for run in runs if parts(run)["application"] == application]
        loads = list(dict.fromkeys(parts(run)["load"] for run in own))
        for shift, name in ((-0.27, "measured"), (0.0, "whitepanda"), (0.27, "paper")):
            values = [[run.p95[name] for run in own if parts(run)["load"] == load] for load in loads]
            places = np.arange(len(loads)) + shift
            axis.bar(places, [np.mean(v) for v in values], 0.27, yerr=[np.std(v) for v in values], label=name)
        axis.set(title=application, xlabel="CPU load, %")
        axis.set_xticks(range(len(loads)), loads)
    axes = np.atleast_1d(axes)
    axes[0].set_ylabel("degradation, p95 of a run")
    axes[0].set_ylim(bottom=0.8)
    axes[0].legend(fontsize=8)
    _save(figure, path)


def dynamic(path: Path, runs: Sequence[Run]) -> None:
    """Figure 10: degradation over time."""
    from matplotlib import pyplot as plt

    columns = 2
    rows = max(-(-len(runs) // columns), 1)
    figure, axes = plt.subplots(rows, columns, figsize=(9, 2 * rows), sharex=True, squeeze=False)
    for axis, run in zip(axes.flat, runs, strict=False):
        _degradation(axis, run)
        axis.set_title(run.name, fontsize=8)
    axes.flat[0].legend(fontsize=7)
    _save(figure, path)


def ramps(path: Path, runs: Sequence[Run]) -> None:
    """Figures 11 and 12: GIPS relative to the quiet phase, and the first VM's degradation."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(runs), 2, figsize=(9, 2 * len(runs)), sharex=True, squeeze=False)
    for (left, right), run in zip(axes, runs, strict=True):
        for vm, gips in enumerate(run.series["gips"].T):
            left.plot(run.series["at_s"], gips, lw=0.8, label="victim" if not vm else f"VM {vm + 1}")
        left.set_title(f"{run.name}: GIPS", fontsize=8)
        _degradation(right, run)
        right.set_title("degradation of the victim", fontsize=8)
    axes[0, 0].legend(fontsize=7)
    axes[0, 1].legend(fontsize=7)
    _save(figure, path)


def _degradation(axis: Any, run: Run) -> None:
    series = run.series
    at_s = series["at_s"]
    axis.plot(at_s, series["measured"], ".", ms=3, color="0.6", label="measured")
    axis.plot(at_s, series["expected"], lw=0.8, color="black", label="expected")
    axis.plot(at_s, series["paper"], lw=0.7, color="tab:orange", label="paper's rules")
    axis.plot(at_s, series["whitepanda"], lw=0.9, color="tab:blue", label="whitepanda")
    axis.fill_between(at_s, series["low"], series["high"], color="tab:blue", alpha=0.2, lw=0)
    seen = np.concatenate([series[name] for name in ("measured", "whitepanda", "high")])
    top = float(seen[~np.isnan(seen)].max())
    axis.set_ylim(0.7, min(top * 1.05, 4.0))


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot as plt

    figure.tight_layout()
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
