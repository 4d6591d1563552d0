"""Figures of fleet comparisons and plans: PNG (matplotlib, in the extra `train`)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from central.models.wsmeter import Comparison
from central.plotting.figures import new_figure, save_figure
from central.upgrades.plan import Plan

_SHOWN = 40  # jobs in a figure
_NAMED = 12  # up to this number, jobs have their names in the figure of a plan, on linear axes
_COLOURS = {"gain": "tab:green", "loss": "tab:red", "unclear": "tab:blue"}


def plot_comparison(path: Path, found: Comparison, metric: str) -> None:
    """Write a PNG: the difference of the fleet and of its heaviest jobs. Raises what `save_figure` does."""
    rows = [("fleet", found.difference, "black"), ("fleet, instances independent", found.independent, "gray")]
    if found.baseline is not None:
        rows.append(("fleet, by machines alone", found.baseline, "gray"))
    for job in found.jobs[:_SHOWN]:
        name = f"{job.job} ({100 * job.weight:.1f} %, n {job.instances[0]:,}/{job.instances[1]:,})"
        rows.append((name, job.difference, _COLOURS[job.verdict]))
    figure, axes = new_figure((7.5, 1.6 + 0.22 * len(rows)))
    for place, (_, interval, colour) in enumerate(rows):
        axes.plot([100 * interval.low, 100 * interval.high], [place, place], color=colour, linewidth=1.4)
        axes.plot([100 * interval.value], [place], "o", color=colour, markersize=4)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(f"new against current, %, {100 * found.confidence:g} % intervals")
    current, new = found.machines
    axes.set_title(
        f"{metric} by weight of jobs (weight, instances before/after); {current:,} and {new:,} machines", fontsize=9
    )
    for verdict, colour in _COLOURS.items():
        axes.plot([], [], "o-", color=colour, markersize=4, label=verdict)
    figure.legend(loc="outside lower center", ncols=len(_COLOURS), fontsize=8)
    save_figure(figure, path)


def plot_plan(path: Path, plan: Plan, margins_percent: Sequence[float], costs: Sequence[float]) -> None:
    """Write a PNG: the costs of margins (NaN: out of reach), with the plan's own, and its jobs' instances by weight.

    Raises what `save_figure` does.
    """
    figure, axes = new_figure((8.5, 3.6), columns=2)
    axes[0].plot(margins_percent, costs, "-", color="tab:blue")
    axes[0].plot([plan.options.margin_percent], [plan.solution.cost], "o", color="black", label="this plan")
    axes[0].legend(fontsize=8)
    axes[0].set(xlabel="margin, %", ylabel="cost of the cheapest plan")
    weights, observe = 100 * np.asarray(plan.jobs.weight), plan.solution.observe
    axes[1].plot(weights, observe, "." if len(observe) > _NAMED else "o", color="tab:blue")
    if len(observe) > _NAMED:
        axes[1].set(xscale="log", yscale="log")
    else:
        axes[1].margins(0.2)
        for name, weight, count in zip(plan.jobs.job, weights, observe, strict=True):
            axes[1].annotate(f"{name}: {count}", (weight, count), (4, 4), textcoords="offset points", fontsize=8)
    axes[1].set(xlabel="weight of a job, %", ylabel="instances to observe")
    save_figure(figure, path)
