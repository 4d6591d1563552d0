import subprocess
import sys

import msgspec
import pytest

from agent.config import LibvirtSection, PerfSection, PqosSection, ProcfsSection, SimulatedSection, Sources
from collector.base import Reason, Source
from collector.inventory.coverage import source_of
from collector.registry import SOURCES, build_sources, make_inventory


def test_every_source_of_the_configuration_has_a_row():
    assert {spec.name for spec in SOURCES} == {field.name for field in msgspec.structs.fields(Sources)}
    assert all(spec.help for spec in SOURCES)


def test_every_row_makes_a_source_of_its_name(tmp_path):
    on = Sources(
        pqos=PqosSection(mode="required"),
        libvirt=LibvirtSection(mode="required"),
        perf=PerfSection(mode="auto"),
        procfs=ProcfsSection(mode="auto"),
        simulated=SimulatedSection(mode="required", scenario=str(tmp_path / "s.toml")),
    )
    built = build_sources(on)
    assert [(source.name, mode) for source, mode in built] == [
        ("procfs", "auto"),
        ("cgroup", "auto"),
        ("ovs", "auto"),
        ("libvirt", "required"),
        ("qemu", "auto"),
        ("perf", "auto"),
        ("resctrl", "auto"),
        ("pqos", "required"),
        ("simulated", "required"),
    ]
    assert all(isinstance(source, Source) for source, _ in built)


def test_what_is_off_is_neither_made_nor_imported():
    """The agent must not pay for what is off: checked in a fresh interpreter."""
    code = (
        "import sys\n"
        "from agent.config import Sources\n"
        "from collector.registry import SOURCES, build_sources\n"
        "import msgspec\n"
        "off = {s.name: msgspec.structs.replace(getattr(Sources(), s.name), mode='off') for s in SOURCES}\n"
        "off.pop('procfs')\n"
        "built = build_sources(Sources(**off))\n"
        "assert [s.name for s, _ in built] == ['procfs'], built\n"
        "off = ('libvirt_domains', 'perf.source', 'cgroups', 'ovs', 'qemu', 'resctrl', 'pqos')\n"
        "loaded = {*(f'collector.{name}' for name in off), 'libvirt', 'ovs', 'pqos'}\n"
        "assert not loaded & set(sys.modules), loaded & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_sources_share_one_inventory_of_the_configured_folders(host):
    host.vm("a", 10, [11])
    off = {spec.name: msgspec.structs.replace(getattr(Sources(), spec.name), mode="off") for spec in SOURCES}
    off["libvirt"] = LibvirtSection(mode="off", state_dir=str(host.state))
    off["procfs"] = ProcfsSection(root=str(host.proc))
    sections = Sources(**off)
    assert [vm.name for vm in make_inventory(sections).vms()] == ["a"]
    ((procfs, _),) = build_sources(sections)
    sample = procfs.sample()
    procfs.close()
    assert [vm.name for vm in sample.inventory] == ["a"]


def test_a_section_that_is_missing_is_an_error():
    with pytest.raises(AttributeError):
        build_sources(object())


NONE, STUCK, FAILED = Reason.NOT_PRESENT, Reason.STUCK, Reason.SOURCE_FAILED


@pytest.mark.parametrize(
    ("part", "manager", "reason", "troubles", "source"),
    [
        # A bare QEMU: neither libvirt's socket nor Open vSwitch's is why.
        ("disks", "qemu", Reason.NOT_VISIBLE, {"libvirt": FAILED, "qemu": None}, "qemu"),
        ("disks", "qemu", STUCK, {"libvirt": STUCK, "qemu": None}, "qemu"),
        ("disks", "proxmox", STUCK, {"libvirt": None, "qemu": STUCK}, "qemu"),
        ("interfaces", "qemu", NONE, {"ovs": NONE, "libvirt": FAILED, "qemu": None}, "qemu"),
        ("interfaces", "qemu", Reason.NOT_VISIBLE, {"ovs": FAILED, "libvirt": NONE, "qemu": None}, "qemu"),
        ("interfaces", "qemu", Reason.STALE, {"ovs": NONE, "qemu": FAILED}, "qemu"),
        ("interfaces", "libvirt", STUCK, {"ovs": None, "libvirt": STUCK, "qemu": STUCK}, "libvirt"),
        ("interfaces", "nova", STUCK, {"ovs": None, "libvirt": STUCK, "qemu": STUCK}, "libvirt"),
        ("interfaces", "libvirt", STUCK, {"ovs": STUCK, "libvirt": None}, "ovs"),
        ("interfaces", "libvirt", Reason.NOT_VISIBLE, {"ovs": NONE, "libvirt": None}, "libvirt"),
        ("rdt", "libvirt", Reason.NO_RDT, {"resctrl": Reason.NO_RDT}, "resctrl"),
        ("perf", "libvirt", NONE, {"perf": NONE}, "perf"),
        ("perf", "libvirt", Reason.SOURCE_OFF, {}, "perf"),
    ],
)
def test_an_absent_value_is_of_the_source_that_is_its_cause(part, manager, reason, troubles, source):
    assert source_of(part, manager, reason, lambda name: troubles.get(name, Reason.SOURCE_OFF)) == source
