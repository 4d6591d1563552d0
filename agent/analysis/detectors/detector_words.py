"""A tick compared with the baselines, and the detector's reasons and evidence, in the signals' own units."""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from agent.analysis.detectors.symptoms import ACTS, KINDS, SYMPTOMS, in_unit
from agent.analysis.signals import Bools, Floats, Tick
from agent.analysis.verdict import Behaviour, Evidence, Verdict

_CLOCK_CHANGE = 0.05
_LOAD_CHANGE = 0.2
_MAX_EVIDENCE = 3
_KIND_OF = [KINDS.index(symptom.kind) for symptom in SYMPTOMS]


@dataclass(slots=True, eq=False)
class Judged:
    """A tick compared with the baselines; one row per VM, columns as named in the comments."""

    ready: Bools  # whether the baseline is ready; shape (VMs,)
    known: Bools  # whether any signal is known now; shape (VMs,)
    growth: Floats  # acts: logarithm over the baseline `usual`; above `enough` it has grown
    amount: Floats  # acts: share of the growth of the VM that grew most
    usual: Floats
    enough: Floats
    growing: Bools  # shape (VMs,): some act is about to have grown
    shift: Floats  # shape (VMs,): growth of the own load's logarithm, 0 if it is indistinguishable from suffering
    window: Floats  # symptoms: now
    expected: Floats  # symptoms: at the present load and clock
    std: Floats  # symptoms: noise of their difference
    score: Floats  # kinds: in standard deviations
    effect: Floats  # kinds: relative delay
    odd: Bools  # shape (VMs,): a score is large, whatever the cause
    clock: Floats  # shape (VMs,): change of its logarithm
    own_clock: Bools  # shape (VMs,): it is lower than the others'
    by_load: Floats  # symptoms: their change without the clock's part
    # The detector sets these in a second step.
    factor: Floats = field(init=False)  # kinds: what the score must exceed
    delay: Floats = field(init=False)  # kinds: what the effect must exceed
    grown: Bools = field(init=False)  # acts
    suffers: Bools = field(init=False)  # kinds
    can: Bools = field(init=False)  # kinds: has grown in what causes them
    movers: int = field(init=False)  # how many VMs have grown
    hurting: Bools = field(init=False)  # shape (VMs,): has grown in what causes another VM's suffering


@dataclass(frozen=True, eq=False)
class Reasons:
    """Makes the verdicts of one tick's VMs on demand; its arrays, each (VMs,), do not change any more."""

    tick: Tick
    judged: Judged
    behaviours: tuple[Behaviour, ...]
    inflicts: Bools
    since_s: Floats  # when the behaviour began
    ticks: NDArray[np.int64]  # quiet ticks behind each baseline
    min_ticks: int  # that are enough

    @cached_property
    def _inflicting(self) -> list[int]:
        """Rows of the VMs that inflict, the strongest by the sum of their shares first."""
        strongest = np.argsort(-self.judged.amount.sum(axis=1), kind="stable")
        return [int(row) for row in strongest if self.inflicts[row]]

    def state(self, row: int) -> Verdict:
        """Return the verdict on one VM."""
        judged, tick, behaviour = self.judged, self.tick, self.behaviours[row]
        culprits: tuple[str, ...] = ()
        evidence = _acts_of(row, judged) if behaviour == "inflicting" else ()
        if behaviour == "victim":
            evidence, kinds = _symptoms_of(row, judged, tick), judged.suffers[row]
            causes = (one for one in self._inflicting if one != row and (judged.can[one] & kinds).any())
            culprits = tuple(tick.vms[one].uuid for one in causes)
        ticks = int(self.ticks[row])
        reason = _reason(behaviour, row, judged, evidence, ticks, self.min_ticks)
        since_ns, ready = round(float(self.since_s[row]) * 1e9), bool(judged.ready[row])
        return Verdict(behaviour, reason, since_ns, evidence, culprits, ticks, ready)


def _symptoms_of(row: int, judged: Judged, tick: Tick) -> tuple[Evidence, ...]:
    window, expected = judged.window[row].tolist(), judged.expected[row].tolist()
    std, factor, suffers = judged.std[row].tolist(), judged.factor[row].tolist(), judged.suffers[row].tolist()
    excess = (
        ((window[place] - expected[place]) / std[place], place)
        for place, kind in enumerate(_KIND_OF)
        if suffers[kind] and window[place] > expected[place]
    )
    found = [place for _, place in sorted(excess, reverse=True)]
    evidence = []
    # IPC, place 0, is the best known symptom.
    places = [*found[: _MAX_EVIDENCE - 1], 0] if 0 in found[_MAX_EVIDENCE:] else found[:_MAX_EVIDENCE]
    for place in places:
        symptom, usual = SYMPTOMS[place], expected[place]
        least = usual + factor[_KIND_OF[place]] * std[place]
        numbers = in_unit(symptom.name, (window[place], usual, least), row, tick)
        evidence.append(Evidence(symptom.signal, *numbers))
    return tuple(evidence)


def _acts_of(row: int, judged: Judged) -> tuple[Evidence, ...]:
    found = []
    for place in np.flatnonzero(judged.grown[row]):
        act, usual, growth = ACTS[place], judged.usual[row, place], judged.growth[row, place]
        numbers = [max(math.exp(usual + more) - act.floor, 0.0) for more in (growth, 0.0, judged.enough[row, place])]
        found.append((judged.amount[row, place], growth, Evidence(act.signal, *numbers)))
    return tuple(evidence for _, _, evidence in sorted(found, key=lambda one: (-one[0], -one[1])))


def _reason(
    behaviour: Behaviour, row: int, judged: Judged, evidence: tuple[Evidence, ...], ticks: int, min_ticks: int
) -> str:
    """Say in one line, with numbers, why a VM is what it is."""
    if behaviour == "steady":
        return _steady(row, judged)
    if behaviour == "unknown":
        young = f"no baseline yet: {ticks} of {min_ticks} quiet ticks"
        return young if judged.known[row] else "none of its signals is known now"
    if behaviour == "victim":
        return _victim(row, judged, evidence)
    effect = "others suffer meanwhile" if judged.hurting[row] else "no VM is seen to suffer"
    return f"{_more(evidence)}; {effect}"


def _victim(row: int, judged: Judged, evidence: tuple[Evidence, ...]) -> str:
    signs = ", ".join(
        f"{_WORDS[one.signal]} {one.value:.3g} instead of {one.expected:.3g} (limit {one.threshold:.3g})"
        for one in evidence
    )
    others = judged.movers - bool(judged.grown[row].any())
    if not others:
        return f"{signs}; no VM does more than usual: the host's own work, or a device"
    return f"{signs}, while {others} other {'VM does' if others == 1 else 'VMs do'} more than usual"


def _more(evidence: tuple[Evidence, ...]) -> str:
    acts = [(one, _ACT_OF[one.signal]) for one in evidence[:3]]
    return ", ".join(
        f"{act.words} {_amount(one.value, act.unit)} instead of {_amount(one.expected, act.unit)}" for one, act in acts
    )


def _amount(value: float, unit: str) -> str:
    """Return an amount of three digits with its prefix and unit."""
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if prefix == 'k' else size):.3g} {prefix}{unit}"
    return f"{value:.3g}{'' if unit.startswith('/') else ' '}{unit}"


def _steady(row: int, judged: Judged) -> str:
    if judged.own_clock[row]:
        lower = -100 * math.expm1(judged.clock[row])
        return f"its clock is {lower:.0f} % lower than usual, the others' is not: its own doing"
    if judged.shift[row] > _LOAD_CHANGE:
        return f"its own load is {math.exp(judged.shift[row]):.2f} times its usual; no sign of interference"
    if abs(judged.clock[row]) > _CLOCK_CHANGE:
        return f"the clock is {100 * math.expm1(judged.clock[row]):+.0f} % against usual, which explains what changed"
    if judged.odd[row]:
        return "slower than usual, but no other VM does more: its own doing"
    return "as usual"


_WORDS = {symptom.signal: symptom.words for symptom in SYMPTOMS}
_ACT_OF = {act.signal: act for act in ACTS}
