"""How an event's fields (event, umask, cmask, ...) become the kernel's config words. Pure.

The kernel shows the layout of the words (`format/` in sysfs: "config:0-7,32-35"); `LAYOUTS` has it as of Linux 6.12 for
hosts where sysfs does not.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from collector.proc_parse import parse_cpu_list

_WORDS = ("config", "config1", "config2")
_FIELD = re.compile(r"(config[12]?):(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)")
_WORD_BITS = 64


@dataclass(frozen=True, slots=True)
class Event:
    """One event: `type` selects the PMU, the config words the event on it."""

    name: str
    type: int
    config: int
    config1: int = 0
    config2: int = 0


class Field(NamedTuple):
    """Where a field lies: the index of its config word, and its bits there, lowest first."""

    word: int
    bits: tuple[int, ...]


def parse_field(text: str) -> Field:
    """Parse a file of sysfs's `format/`, such as "config:0-7,32-35". Raises ValueError if it is not one."""
    match = _FIELD.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not the layout of a field: {text.strip()!r}")
    bits = parse_cpu_list(match[2])
    if not bits or max(bits) >= _WORD_BITS or len(set(bits)) != len(bits):
        raise ValueError(f"not the layout of a field: {text.strip()!r}")
    return Field(_WORDS.index(match[1]), tuple(bits))


def parse_terms(text: str) -> dict[str, int]:
    """Parse an event of sysfs's `events/`, such as "event=0x3c,umask=0x01". A flag's value is 1.

    Raises ValueError if it is not one, or it has a parameter ("?").
    """
    terms: dict[str, int] = {}
    for term in text.strip().split(","):
        name, equals, value = term.strip().partition("=")
        if not name.replace("_", "").isalnum() or name in terms:
            raise ValueError(f"not an event: {text.strip()!r}")
        try:
            terms[name] = int(value, 0) if equals else 1
        except ValueError:
            raise ValueError(f"not a number: {term.strip()!r}") from None
    return terms


def encode(fields: Mapping[str, int], layout: Mapping[str, Field]) -> tuple[int, int, int]:
    """Return (config, config1, config2) for these fields. Raises ValueError where a field is unknown or too small."""
    words = [0, 0, 0]
    for name, value in fields.items():
        if name in _WORDS:  # sysfs also has events written as a whole word
            words[_WORDS.index(name)] |= value
            continue
        field = layout.get(name)
        if field is None:
            raise ValueError(f"the PMU has no field {name!r}")
        if not 0 <= value < 1 << len(field.bits):
            raise ValueError(f"{name}={value:#x} does not fit {len(field.bits)} bits")
        for index, bit in enumerate(field.bits):
            words[field.word] |= (value >> index & 1) << bit
    return words[0], words[1], words[2]


_X86 = {"umask": "config:8-15", "edge": "config:18", "inv": "config:23", "cmask": "config:24-31"}
#: The fields that our data files use, by architecture (arch/x86/events, drivers/perf/arm_pmuv3.c).
LAYOUTS: Mapping[str, Mapping[str, Field]] = {
    architecture: {name: parse_field(text) for name, text in fields.items()}
    for architecture, fields in {
        "intel": _X86 | {"event": "config:0-7"},
        "amd": _X86 | {"event": "config:0-7,32-35"},
        "arm": {"event": "config:0-15"},
    }.items()
}
