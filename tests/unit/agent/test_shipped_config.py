"""systemd/agent.toml: it shows every section, and the true defaults."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agent.config import AgentConfig, AgentSection, PerfSection, load

_SHIPPED = Path(__file__).parents[3] / "systemd/agent.toml"


def _sections(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, type[msgspec.Struct]]]:
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            name = f"{prefix}{field.name}"
            yield name, field.type
            yield from _sections(field.type, name + ".")


def test_the_shipped_file_has_every_section_and_true_defaults():
    text = _SHIPPED.read_text()
    shown = tomllib.loads(re.sub(r"(?m)^#(?=[a-z_]+ = )", "", text))
    left_out = {"sources", "sources.simulated"}  # of no use on a hypervisor
    for name, kind in _sections(AgentConfig):
        has_settings = any(not isinstance(value, msgspec.Struct) for value in msgspec.structs.astuple(kind()))
        assert name in left_out or not has_settings or f"\n[{name}]" in text, name
        section = shown
        for key in name.split("."):
            section = section.get(key, {})
        for key, value in section.items():
            if not isinstance(value, dict):
                reported = tuple(value) if isinstance(value, list) else value
                assert reported == getattr(kind(), key), (name, key)
    perf = {field.name for field in msgspec.structs.fields(PerfSection)}
    assert set(shown["sources"]["perf"]) >= perf
    assert load(_SHIPPED) == AgentConfig(agent=AgentSection())
