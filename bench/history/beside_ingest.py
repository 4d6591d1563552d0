"""Questions beside ingest: a central takes the fleet's windows at their pace, without and with questions.

The load is that of `bench.ingest.study`: a central of its own, one mTLS connection per host, one batch per host and
window length, 25 values a window. The questions are asked in this process, one after the other without a pause, of
the lake that `bench.history.study` built: they share CPUs, memory and disk with central, but not its Python. There are
four phases of --phase-s (without, with, with, without), so that what changes with time falls on both alike.

Bars: the acknowledgements' p99 with questions is no worse, that is at most 10 % or 5 ms above the one without; the
questions keep their own bars meanwhile.
"""

import argparse
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import numpy as np

from bench.ingest.study import Bench, allow_files, bar, scratch

_PHASES = (False, True, True, False)  # with questions?
_VALUES = 25
_WARM_UP_S = 10
_NO_WORSE, _NO_WORSE_MS = 1.1, 5.0
Questions = Mapping[str, Sequence[Callable[[], object]]]


def no_worse_ms(without_ms: float) -> float:
    """Return the largest p99 that counts as no worse than this one."""
    return max(without_ms * _NO_WORSE, without_ms + _NO_WORSE_MS)


def ask_until(stop: threading.Event, questions: Questions) -> dict[str, list[float]]:
    """Ask one of each kind in turn until it is set, but each kind once; return the times in milliseconds."""
    times: dict[str, list[float]] = {what: [] for what in questions}
    turns = {what: cycle(asks) for what, asks in questions.items()}
    for what in cycle(questions):
        if stop.is_set() and all(times.values()):
            return times
        ask = next(turns[what])
        began = time.perf_counter()
        ask()
        times[what].append((time.perf_counter() - began) * 1e3)
    return times


def beside_ingest(options: argparse.Namespace, questions: Questions, limits_ms: Mapping[str, float]) -> None:
    """Run both and print the bars; `options` are the study's: hosts, vms, window_s, phase_s."""
    allow_files(options.hosts)
    fleet = argparse.Namespace(hosts=options.hosts, vms=options.vms, values=_VALUES, scale=1.0, minutes=1)
    latencies_ms: dict[bool, list[float]] = {False: [], True: []}
    asked: dict[str, list[float]] = {what: [] for what in questions}
    windows = took = 0.0
    with scratch() as folder, Bench(folder, fleet).load(options.hosts, stopwatch=False) as load:
        load.do("paced", seconds=min(_WARM_UP_S, options.phase_s), interval_s=options.window_s)
        for has_questions in _PHASES:
            stop = threading.Event()
            with ThreadPoolExecutor(1) as thread:
                asking = thread.submit(ask_until, stop, questions) if has_questions else None
                try:
                    found = load.do("paced", seconds=options.phase_s, interval_s=options.window_s)
                finally:
                    stop.set()
            for what, times in asking.result().items() if asking else ():
                asked[what] += times
            latencies_ms[has_questions] += (found["latencies"] * 1e3).tolist()
            if has_questions:
                windows, took = windows + found["windows"], took + found["took"]
            name = "with questions" if has_questions else "without questions"
            print(
                f"  {name}: {found['rate']:,.0f} windows/s; ack p50 {found['p50_ms']:.0f} ms, p99 "
                f"{found['p99_ms']:.0f} ms; agents at most {max(found['found']) * 1e3:.0f} ms late (p99), counted; "
                f"central's CPU {found['cpu']:.1f} s of {found['took']:.0f} s",
                flush=True,
            )
    p99 = {kind: float(np.percentile(each, 99)) for kind, each in latencies_ms.items()}
    wanted = options.hosts * options.vms / options.window_s
    bar(
        f"paced {wanted:,.0f} windows/s with questions: rate", windows / took, 0.98 * wanted, "windows/s", at_most=False
    )
    print(f"  ack p99 without questions {p99[False]:.1f} ms, with {p99[True]:.1f} ms")
    bar("ack p99 with questions, no worse than without", p99[True], no_worse_ms(p99[False]), "ms", at_most=True)
    for what, times in asked.items():
        found_ms = float(np.percentile(times, 99))
        bar(f"{what}, beside ingest: p99 of {len(times):,}", found_ms, limits_ms[what], "ms", at_most=True)
