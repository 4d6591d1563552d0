"""Named settings of the generator. Each number's source is docs/traces.md."""

from __future__ import annotations

from dataclasses import replace

from central.synth.settings import SynthSettings
from whitepanda.common.errors import InputError

__all__ = ["PRESETS", "preset"]

_PAPER = SynthSettings(companions=8, burners=4)

#: Name -> what it is for, and the settings.
PRESETS: dict[str, tuple[str, SynthSettings]] = {
    "paper": ("plain methods score about as published, linear contention", _PAPER),
    "paper-saturating": ("the same, contention saturates", replace(_PAPER, form="saturating")),
}


def preset(name: str) -> SynthSettings:
    """Return the settings of a preset.

    Raises:
        InputError: there is none of that name.

    """
    if name not in PRESETS:
        raise InputError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name][1]
