"""Named settings of the generator. Each number's source is docs/traces.md."""

from dataclasses import replace

from central.traces.generator.settings import SynthSettings
from whitepanda.common.errors import InputError

# Per machine and job mix: the paper's cell a has 13.5 latency-sensitive and "usually 30" batch tasks on a machine.
_PAPER = SynthSettings(
    days=24,
    machines=32,
    ls_tasks=13,
    batch_tasks=30,
    ls_jobs=40,
    batch_jobs=150,
    antagonists=12,
    companions=24,
    burners=10,
    batch_lifetime_h=36,
    antagonist_effect=0.035,
    saturation=0.25,
    machine_effect=0.12,
    machine_noise=0.15,
    machine_noise_memory_h=12,
)

#: Name -> what it is for, and the settings.
PRESETS: dict[str, tuple[str, SynthSettings]] = {
    "paper": ("the plain methods score about as published; linear contention", _PAPER),
    "paper-saturating": ("the same, contention saturates", replace(_PAPER, form="saturating", antagonist_effect=0.07)),
    "quiet": (
        "no antagonists: what triggers is noise, load and bad machines",
        replace(_PAPER, antagonists=0, companions=0),
    ),
    "other-1": (
        "contention by cache occupancy that lags an hour and saturates; some sensitive jobs hurt too",
        replace(_PAPER, form="saturating", antagonist_effect=0.06, effect_memory_h=1, ls_antagonists=4, platforms=4),
    ),
    "other-2": (
        "antagonists hurt by being there; sensitive CPI falls with own usage and drifts; noisy machines",
        replace(
            _PAPER,
            antagonist_effect=0.05,
            usage_dependence=0.2,
            own_usage_effect=-0.15,
            machine_noise_spread=0.5,
            daily_drift=0.03,
            companions=0,
            missing_cpi_share=0.2,
        ),
    ),
    "other-3": (
        "only bursts above usual usage hurt; everyone hurts a little; short-lived jobs; many corrupted samples",
        replace(
            _PAPER,
            antagonist_effect=0.1,
            effect_threshold=1.2,
            usage_noise=0.9,
            background_effect=0.003,
            transient_share=0.6,
            batch_lifetime_h=8,
            corrupted_share=0.003,
            companions=12,
        ),
    ),
    "other-4": (
        "batch usage falls while all are slowed down; what usage does to others comes and goes by itself",
        replace(_PAPER, throttling=3.0, intensity_noise=1.0),
    ),
}


def preset(name: str) -> SynthSettings:
    """Return the settings of a preset. Raises InputError if there is none of that name."""
    if name not in PRESETS:
        raise InputError(f"unknown preset {name!r}; known: {', '.join(PRESETS)}")
    return PRESETS[name][1]
