from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from agent.config import (
    LibvirtSection,
    PerfSection,
    ProcfsSection,
    RecordedSection,
    SimulatedSection,
    Sources,
)
from collector.base import Source
from collector.registry import SOURCES, build_sources, make_inventory


def test_every_source_of_the_configuration_has_a_row():
    assert {spec.name for spec in SOURCES} == {field.name for field in msgspec.structs.fields(Sources)}
    assert all(spec.help for spec in SOURCES)


def test_every_row_makes_a_source_of_its_name(tmp_path):
    on = Sources(
        libvirt=LibvirtSection(mode="required"),
        perf=PerfSection(mode="auto"),
        procfs=ProcfsSection(mode="auto"),
        simulated=SimulatedSection(mode="required", scenario=str(tmp_path / "s.toml")),
        recorded=RecordedSection(mode="auto", file=str(tmp_path / "r.jsonl")),
    )
    built = build_sources(on)
    assert [(source.name, mode) for source, mode in built] == [
        ("procfs", "auto"),
        ("libvirt", "required"),
        ("perf", "auto"),
        ("simulated", "required"),
        ("recorded", "auto"),
    ]
    assert all(isinstance(source, Source) for source, _ in built)


def test_what_is_off_is_neither_made_nor_imported():
    """The agent must not pay for what is off: checked in a fresh interpreter."""
    code = (
        "import sys; from agent.config import *; from agent.config import Sources, LibvirtSection, PerfSection\n"
        "from collector.registry import build_sources\n"
        "built = build_sources(Sources(libvirt=LibvirtSection(mode='off'), perf=PerfSection(mode='off')))\n"
        "assert [s.name for s, _ in built] == ['procfs'], built\n"
        "loaded = {'collector.libvirt_domains', 'collector.perf.source', 'collector.recorded', 'libvirt'}\n"
        "assert not loaded & set(sys.modules), loaded & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_sources_share_one_inventory_of_the_configured_folders(host):
    host.vm("a", 10, [11])
    sections = Sources(
        libvirt=LibvirtSection(mode="off", state_dir=str(host.state)),
        perf=PerfSection(mode="off"),
        procfs=ProcfsSection(root=str(host.proc)),
    )
    assert [vm.name for vm in make_inventory(sections).vms()] == ["a"]
    ((procfs, _),) = build_sources(sections)
    sample = procfs.sample()
    procfs.close()
    assert [vm.name for vm in sample.inventory] == ["a"]


def test_a_section_that_is_missing_is_an_error():
    with pytest.raises(AttributeError):
        build_sources(object())
