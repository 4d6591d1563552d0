"""Expected effect of less CPU for a suspect, by the linear model that accuses it: mnCPI = sum A_k * u. Pure."""

from typing import Literal

from agent.analysis.advice.recommendations import Effect, Situation, Suspect, Victim
from agent.analysis.contention.normalised_cpi import ROBUST_CLIP

#: Standard errors to each side of a 95 % interval.
Z95 = 1.959964

#: Shares of the way from mnCPI to its threshold. A suspect whose whole CPU makes up less is not worth a limit; what
#: makes up `NEAR_SHARE` brings mnCPI near its threshold.
MATERIAL_SHARE = 0.25
NEAR_SHARE = 0.75

#: mnCPI may be more than it says; callers show how this begins.
CUT_WORDS = f"at least: nCPI is cut at {ROBUST_CLIP:g}"


def signal_of(
    victim: Victim, situation: Situation
) -> tuple[Literal["mn_cpi", "degradation"], float | None, float | None]:
    """Return the signal that effects are in, its value now and its threshold; None: not known."""
    if situation.mn_cpi is not None and situation.mn_cpi_threshold is not None:
        return "mn_cpi", situation.mn_cpi, situation.mn_cpi_threshold
    return "degradation", victim.degradation, None


def unknown_effect(victim: Victim, situation: Situation, why: str) -> Effect:
    """Return an effect of unknown size."""
    signal, before, threshold = signal_of(victim, situation)
    return Effect(signal, before, threshold=threshold, unknown_because=why)


def effect_of_less(suspect: Suspect, victim: Victim, situation: Situation, less_cores: float) -> Effect:
    """Return what taking `less_cores` from a suspect does to mnCPI; never below 0, where jobs are as usual."""
    signal, before, threshold = signal_of(victim, situation)
    a, error = suspect.coefficient, suspect.standard_error
    if signal != "mn_cpi" or before is None:
        return unknown_effect(victim, situation, "the fleet's statistics do not find this contention now")
    if a is None:
        return unknown_effect(victim, situation, f"central knows no coefficient of job {suspect.job}")
    if suspect.inflicts and is_small_part(suspect, situation):
        why = f"this host finds that it inflicts, the fleet's coefficient of job {suspect.job} that it hardly matters"
        return unknown_effect(victim, situation, why)
    after = before - a * less_cores
    if situation.is_cut or error is None:
        no_error = "the coefficient came without a standard error, so there is no interval"
        why = CUT_WORDS if situation.is_cut else no_error
        least = max(0.0, after)
        return Effect(signal, before, least, threshold=threshold, unknown_because=why, is_at_least=situation.is_cut)
    half = Z95 * error * less_cores
    low, middle, high = (max(0.0, value) for value in (after - half, after, after + half))
    return Effect(signal, before, middle, low, high, threshold)


def is_small_part(suspect: Suspect, situation: Situation) -> bool:
    """Whether mnCPI would go less than `MATERIAL_SHARE` of the way to its threshold without this suspect."""
    return _makes_up(suspect, situation, MATERIAL_SHARE) is False


def is_spared(suspect: Suspect, situation: Situation) -> bool:
    """Whether the host itself found that another VM inflicts and this one does not.

    A coefficient is about a job over the fleet, the host's finding about this very VM: so it is limited only if mnCPI
    would come near its threshold without it.
    """
    return suspect.is_cleared and situation.is_inflicted and not _makes_up(suspect, situation, NEAR_SHARE)


def is_left_alone(suspect: Suspect, situation: Situation) -> bool:
    """Whether limiting a suspect's CPU is not worth it; never if the host itself found that it inflicts."""
    return not suspect.inflicts and (is_small_part(suspect, situation) or is_spared(suspect, situation))


def is_near(effect: Effect) -> bool:
    """Whether an effect in mnCPI goes `NEAR_SHARE` of the way to the threshold, or further."""
    before, after, threshold = effect.before, effect.after, effect.threshold
    if before is None or after is None or threshold is None:
        return False
    return before - after >= NEAR_SHARE * (before - threshold)


def _makes_up(suspect: Suspect, situation: Situation, share: float) -> bool | None:
    """Whether a suspect's whole CPU makes up `share` of the way from mnCPI to its threshold; None: not known."""
    a, mn_cpi, threshold = suspect.coefficient, situation.mn_cpi, situation.mn_cpi_threshold
    if a is None or mn_cpi is None or threshold is None:
        return None
    return a * suspect.cpu_usage_cores >= share * (mn_cpi - threshold)
