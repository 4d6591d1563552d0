"""D-Factor on real pairs, on a simulated day, and how long a ranking takes: the tables of docs/studies/dfactor.md.

    python -m bench.dfactor.study [--data FOLDER] [--seeds 5] [--parts pairs,day,rank] [--out FOLDER]

pairs: a workload beside another against alone on the same platform (`$WHITEPANDA_DATA/pitot/observations.parquet`):
half of the pairs fitted, the rest predicted, for seeds 0 to N - 1; the extended form's size is chosen by validation
inside the fitted half. day: 200 hosts and 5,000 arrivals, placed by D-Factor and by others. rank: 10,000 hosts, 4
resources. Prints the tables as Markdown; --out writes tables.md and dfactor-pairs.png. Exits with 1
where a bar is missed.
"""

import argparse
import os
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.dfactor import day as dfactor_day
from bench.dfactor import pairs as dfactor_pairs
from central.placement.fleet import Fleet, Hosts, Request
from central.placement.plots import plot_pairs

ROOT = Path(__file__).resolve().parents[2]
#: Bars: mean relative error of loading vectors on real pairs; how far below others the day's excess is; a ranking.
PAIRS_BAR, DAY_BAR, RANK_BAR_MS = 0.092, 0.15, 5.0
_RANK_HOSTS, _RANK_TIMES, _NAIVE_TIMES = 10_000, 200, 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = Path(os.environ.get("WHITEPANDA_DATA", ROOT.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=usual, help="folder with pitot/observations.parquet")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--parts", default="pairs,day,rank")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    parts = {"pairs": pairs_part, "day": day_part, "rank": rank_part}
    lines, ok = list[str](), True
    for name in options.parts.split(","):
        held, text = parts[name](options)
        ok &= held
        text = [part for line in text for part in wrapped(line)]
        lines += text
        print("\n".join(text), flush=True)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "tables.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if ok else 1


def wrapped(line: str) -> list[str]:
    """A line as the docs may have it; rows of tables stay."""
    return [line] if line.startswith("|") or not line else textwrap.wrap(line, 158, break_on_hyphens=False)


def say(text: str) -> None:
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def percent(values: Sequence[float]) -> str:
    """Mean over seeds, and their standard deviation."""
    spread = f" ± {100 * np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.2f}{spread}"


def interval(found: dict[str, Any], name: str, part: str) -> str:
    """A model's mean error of one seed, and its interval."""
    each = found["interval"][name][part]
    return f"{100 * each.mean:.2f} % ({100 * each.low:.2f} to {100 * each.high:.2f})"


def pairs_part(options: argparse.Namespace) -> tuple[bool, list[str]]:
    path = options.data / "pitot" / "observations.parquet"
    if not path.is_file():
        return True, [f"pairs: skipped, no real data at {path}; set WHITEPANDA_DATA", ""]
    data = dfactor_pairs.read(path)
    began = time.process_time()
    found = [dfactor_pairs.evaluate(data, seed, say) for seed in range(options.seeds)]
    seconds = (time.process_time() - began) / options.seeds
    strict = dfactor_pairs.evaluate(data, 0, say, mirrored=True)
    about = (
        f"{len(data.pairs.slowdown):,} pairs ({data.without_alone:,} more have no run alone), "
        f"{data.workloads} workloads, {data.platforms} platforms with runs; "
        f"{(data.pairs.slowdown > 2).mean():.1%} above 2, {(data.pairs.slowdown < 1).mean():.1%} below 1. "
        f"Per seed {found[0]['fitted']:,} fitted and {found[0]['tested']['all']:,} predicted, "
        f"{seconds:.0f} s of CPU time."
    )
    text = [
        "## Pairs",
        "",
        about,
        "",
        "| mean of \\|predicted - measured\\| / measured, % | all | 1 to 2 | above 2 | below 1 | mirrors together |",
        "|---|---|---|---|---|---|",
    ]
    for name in found[0]["errors"]:
        cells = [
            percent([each["errors"][name][part] for each in found]) for part in ("all", "1 to 2", "above 2", "below 1")
        ]
        text.append(f"| {name} | {' | '.join(cells)} | {100 * strict['errors'][name]['all']:.2f} |")
    text += ["", "Chosen by validation, seeds in order: " + "; ".join(each["choice"] for each in found) + ".", ""]
    worst = max(each["errors"][name]["all"] for each in found for name in dfactor_pairs.JUDGED)
    first = "; ".join(
        f"{name} {interval(found[0], name, 'all')}, above 2 {interval(found[0], name, 'above 2')}, "
        f"mirrors together {interval(strict, name, 'all')}"
        for name in dfactor_pairs.JUDGED
    )
    counts = ", ".join(f"{part} {n:,}" for part, n in found[0]["tested"].items())
    bar = f"Bar: at most {100 * PAIRS_BAR:.1f} %; the worst of both over the seeds: {100 * worst:.2f} %"
    how = "with 95 % intervals (the wider of those by workloads and by platforms)"
    text += [f"Seed 0 alone, {how}: {first}. Its predicted pairs: {counts}. {bar}.", ""]
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        plot_pairs(options.out / "dfactor-pairs.png", *found[0]["plot"])
    return worst <= PAIRS_BAR, text


def day_part(options: argparse.Namespace) -> tuple[bool, list[str]]:
    found = [dfactor_day.evaluate(seed) for seed in range(options.seeds)]
    what = f"{dfactor_day.HOSTS} hosts, {dfactor_day.ARRIVALS:,} arrivals, {options.seeds} days (seeds from 0)"
    text = [
        "## A day",
        "",
        f"{what}; mean slow-down over 1, and how far D-Factor is below (least over the seeds).",
        "",
        "| rule | "
        + " | ".join(f"truth: {truth} | D-Factor below it" for truth in dfactor_day.TRUTHS)
        + " | no room |",
        "|---|" + "---|---|" * len(dfactor_day.TRUTHS) + "---|",
    ]
    least = dict.fromkeys(dfactor_day.RULES, 1.0)
    for rule in dfactor_day.RULES:
        cells = list[str]()
        for truth in dfactor_day.TRUTHS:
            theirs = np.array([each["excess"][rule][truth] for each in found])
            whitepanda = np.array([each["excess"]["dfactor"][truth] for each in found])
            below = 1 - whitepanda / theirs
            least[rule] = min(least[rule], float(below.min()))
            spread = f" ± {theirs.std(ddof=1):.3f}" if len(theirs) > 1 else ""
            cells += [
                f"{theirs.mean():.3f}{spread}",
                "-" if rule == "dfactor" else f"{below.mean():.1%} ({below.min():.1%})",
            ]
        lost = sum(each["without_room"][rule] for each in found)
        text.append(f"| {rule} | {' | '.join(cells)} | {lost} |")
    held = all(least[rule] >= DAY_BAR for rule in ("first-fit", "least-loaded", "fewest-vms", "fewest-vcpus"))
    text += [
        "",
        f"Bar: at least {DAY_BAR:.0%} below first-fit and each kind of least-loaded: {'held' if held else 'MISSED'}.",
        "",
    ]
    return held, text


def rank_part(_options: argparse.Namespace) -> tuple[bool, list[str]]:
    rng = np.random.default_rng(0)
    totals = rng.random((_RANK_HOSTS, 4)) * 5
    fleet = Fleet(
        Hosts(
            tuple(f"host-{k}" for k in range(_RANK_HOSTS)),
            ("cpu", "memory", "disk", "network"),
            totals,
            np.array([16.0, 4.0, 2.0, 2.0]),
            np.full(totals.shape, 5.0),
            ("memory_gib",),
            rng.random((_RANK_HOSTS, 1)) * 256,
            np.full((_RANK_HOSTS, 1), 256.0),
        )
    )
    request = Request(np.array([0.4, 0.2, 0.1, 0.1]), np.array([16.0]))
    whitepanda = fleet.rank(request).order.tolist()
    assert whitepanda == naive(fleet, request)
    times, slow = list[float](), list[float]()
    for turn in range(_RANK_TIMES):
        began = time.process_time()
        fleet.rank(request)
        times.append(time.process_time() - began)
        if turn % (_RANK_TIMES // _NAIVE_TIMES) == 0:
            began = time.process_time()
            naive(fleet, request)
            slow.append(time.process_time() - began)
    took, loop = 1e3 * float(np.median(times)), 1e3 * float(np.median(slow))
    what = f"{_RANK_HOSTS:,} hosts, 4 resources with limits and one amount, all {len(whitepanda):,} with room in order"
    least, most = 1e3 * np.percentile(times, (2.5, 97.5))
    took_words = (
        f"{took:.2f} ms of CPU time (median of {_RANK_TIMES}, 95 % of them {least:.2f} to {most:.2f} ms; "
        f"bar {RANK_BAR_MS:g} ms)"
    )
    loop_words = f"a loop over hosts with the same result {loop:.0f} ms, {loop / took:.0f} times as long"
    return took < RANK_BAR_MS, ["## A ranking", "", f"{what}: {took_words}; {loop_words}.", ""]


def naive(fleet: Fleet, request: Request) -> list[int]:
    """The same ranking by a loop."""
    costs = list[tuple[float, int]]()
    hosts = fleet.hosts
    for k in range(len(hosts.names)):
        total, used, room = fleet.totals[k].tolist(), float(fleet.used[k, 0]), float(hosts.room[k, 0])
        if used + request.amounts[0] > room or any(
            total[r] + request.loading[r] > hosts.limits[k, r] for r in range(len(total))
        ):
            continue
        costs.append((sum(request.loading[r] * total[r] / hosts.units[r] for r in range(len(total))), k))
    return [k for _, k in sorted(costs)]


if __name__ == "__main__":
    sys.exit(main())
