"""The data files of CPU microarchitectures (`microarch/*.toml`): events, each with its source, and counters.

A file has a `title`, the `format` of its encodings (a key of `encoding.LAYOUTS`), the `source` of its facts, its CPUs
(`[[cpu]]`: vendor, family, ranges of models; what is left out matches all), a core's `[counters]`, and for each event
but cycles and instructions either `[events.NAME]` (fields, `source`, and any `alias` in the kernel's table) or a reason
in `[missing]`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from collector.perf.cpu import Cpu
from collector.perf.encoding import LAYOUTS, Field

_FOLDER = Path(__file__).parent / "microarch"


@dataclass(frozen=True, slots=True)
class Encoding:
    """One event: its fields, who says so, and its name in the kernel's table ("": not there)."""

    source: str
    fields: Mapping[str, int]
    alias: str = ""


class CpuRule(NamedTuple):
    """Which CPUs a file is for. None and an empty range match all."""

    vendor: str | None
    family: int | None
    models: tuple[tuple[int, int], ...]

    def matches(self, cpu: Cpu) -> bool:
        """Whether this is one of them."""
        if self.vendor not in (None, cpu.vendor) or self.family not in (None, cpu.family):
            return False
        return not self.models or any(low <= cpu.model <= high for low, high in self.models)


@dataclass(frozen=True, slots=True)
class Microarch:
    """One data file. `programmable_smt`: a hardware thread's counters while its sibling is on too."""

    title: str
    layout: Mapping[str, Field]
    source: str
    rules: tuple[CpuRule, ...]
    programmable: int
    programmable_smt: int
    fixed: frozenset[str]
    events: Mapping[str, Encoding]
    missing: Mapping[str, str]


def find_microarch(cpu: Cpu) -> Microarch | None:
    """Return the data of a CPU: of its model if there is a file for it, else of its vendor."""
    matching = [known for known in load_microarchs().values() if any(rule.matches(cpu) for rule in known.rules)]
    exact = [known for known in matching if any(rule.models and rule.matches(cpu) for rule in known.rules)]
    return next(iter(exact or matching), None)


@cache
def load_microarchs() -> Mapping[str, Microarch]:
    """Return all data files, by file name. They are part of the package: a malformed one is a bug."""
    return {path.stem: parse_microarch(tomllib.loads(path.read_text())) for path in sorted(_FOLDER.glob("*.toml"))}


def parse_microarch(data: Mapping[str, Any]) -> Microarch:
    """Return a data file's content. Raises KeyError, TypeError or ValueError if it is malformed."""
    counters = data["counters"]
    programmable = counters["programmable"]
    return Microarch(
        title=data["title"],
        layout=LAYOUTS[data["format"]],
        source=data["source"],
        rules=tuple(
            CpuRule(row.get("vendor"), row.get("family"), tuple((low, high) for low, high in row.get("models", ())))
            for row in data["cpu"]
        ),
        programmable=programmable,
        programmable_smt=counters.get("programmable_smt", programmable),
        fixed=frozenset(counters["fixed"]),
        events={name: _encoding(**row) for name, row in data.get("events", {}).items()},
        missing=dict(data.get("missing", {})),
    )


def _encoding(source: str, alias: str = "", **fields: int) -> Encoding:
    return Encoding(source, fields, alias)
