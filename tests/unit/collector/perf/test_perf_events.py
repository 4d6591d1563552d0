"""Which events a CPU has: encodings, the data files, what sysfs and /proc/cpuinfo say."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import collector.perf.microarch
from collector.base import PERF_EVENTS, Reason
from collector.perf.cpu import CorePmu, Cpu, core_pmus, parse_cpuinfo
from collector.perf.encoding import LAYOUTS, Event, Field, encode, parse_field, parse_terms
from collector.perf.events import TYPE_RAW, read_catalog, resolve
from collector.perf.microarch import find_microarch, load_microarchs

EXTRA = PERF_EVENTS[2:]
FILES = load_microarchs()
OF_A_MODEL = sorted(name for name in FILES if not name.endswith("-other"))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# -- encoding ----------------------------------------------------------------------------------------------------


def test_fields_lie_where_the_kernel_says():
    assert parse_field("config:0-7\n") == Field(0, tuple(range(8)))
    assert parse_field("config:0-7,32-35") == Field(0, (*range(8), 32, 33, 34, 35))
    assert parse_field("config1:3") == Field(1, (3,))


@pytest.mark.parametrize(
    "text", ["", "config", "config:", "config3:0", "config:0-64", "config:7-0", "config:1,1", "config:a"]
)
def test_what_is_no_layout_of_a_field_is_refused(text):
    with pytest.raises(ValueError, match="not the layout of a field"):
        parse_field(text)


def test_terms_are_numbers_and_flags():
    assert parse_terms("event=0x3c,umask=1,any\n") == {"event": 0x3C, "umask": 1, "any": 1}


@pytest.mark.parametrize("text", ["", "event=?", "event=0x3c,event=1", "a b=1", "event=0x"])
def test_what_is_no_event_is_refused(text):
    with pytest.raises(ValueError, match="not a"):
        parse_terms(text)


def test_known_encodings():
    """The raw numbers that people pass to perf: r14a3 with cmask 20, PMCx120 with its high event bits."""
    assert encode({"event": 0xA3, "umask": 0x14, "cmask": 20}, LAYOUTS["intel"]) == (0x140014A3, 0, 0)
    assert encode({"event": 0x120, "umask": 0x01}, LAYOUTS["amd"]) == (0x100000120, 0, 0)
    assert encode({"event": 0x64, "umask": 0x09}, LAYOUTS["amd"]) == (0x0964, 0, 0)
    assert encode({"event": 0x4005}, LAYOUTS["arm"]) == (0x4005, 0, 0)
    assert encode({"config": 0x1234, "config1": 5}, {}) == (0x1234, 5, 0)


@pytest.mark.parametrize("fields", [{"event": 0x100}, {"event": -1}, {"ldat": 1}, {"umask": 0x1FF}])
def test_what_does_not_fit_is_refused(fields):
    with pytest.raises(ValueError, match=r"does not fit|has no field"):
        encode(fields, LAYOUTS["intel"])


@given(st.integers(0, 0xFFF), st.integers(0, 0xFF), st.integers(0, 0xFF))
def test_an_encoding_holds_each_field_and_nothing_else(event, umask, cmask):
    config, config1, config2 = encode({"event": event, "umask": umask, "cmask": cmask}, LAYOUTS["amd"])
    assert (config & 0xFF) | (config >> 24 & 0xF00) == event
    assert config >> 8 & 0xFF == umask
    assert config >> 24 & 0xFF == cmask
    assert config & ~0xF_FF00_FFFF == 0
    assert (config1, config2) == (0, 0)


# -- the data files ----------------------------------------------------------------------------------------------


def test_the_microarchitectures_that_are_promised_are_there():
    assert OF_A_MODEL == [
        "amd-zen2",
        "amd-zen3",
        "amd-zen4",
        "amd-zen5",
        "arm-neoverse-n1",
        "arm-neoverse-n2",
        "arm-neoverse-v1",
        "intel-emerald-rapids",
        "intel-icelake-sp",
        "intel-sapphire-rapids",
        "intel-skylake-sp",
    ]


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_data_file_is_complete_and_fits(name):
    known = FILES[name]
    assert known.title
    assert known.source
    assert known.rules
    # Each event once: with an encoding and its source, or with the reason why the CPU has none.
    assert sorted([*known.events, *known.missing]) == sorted(EXTRA)
    assert all(len(why) > 10 for why in known.missing.values())
    encoded = {}
    for event, encoding in known.events.items():
        assert encoding.source
        assert encoding.alias or encoding.fields
        if encoding.fields:
            encoded[event] = encode(encoding.fields, known.layout)
    assert len(set(encoded.values())) == len(encoded)
    if name in OF_A_MODEL:
        assert set(encoded) == set(known.events)
        assert all(rule.models and rule.vendor and rule.family is not None for rule in known.rules)
    # Cycles and instructions at least fit, and what is fixed is something that is counted.
    assert 4 <= known.programmable_smt <= known.programmable <= 8
    assert known.fixed <= {"cycles", "instructions", "reference_cycles"}


@pytest.mark.parametrize(
    ("cpu", "title"),
    [
        (Cpu("GenuineIntel", 6, 85), "Intel Skylake-SP or Cascade Lake-SP"),
        (Cpu("GenuineIntel", 6, 106), "Intel Ice Lake-SP"),
        (Cpu("GenuineIntel", 6, 143), "Intel Sapphire Rapids"),
        (Cpu("GenuineIntel", 6, 207), "Intel Emerald Rapids"),
        (Cpu("GenuineIntel", 6, 173), "Intel, a model that whitepanda has no events for"),
        (Cpu("AuthenticAMD", 0x17, 0x01), "AMD, a model that whitepanda has no events for"),  # Naples
        (Cpu("AuthenticAMD", 0x17, 0x31), "AMD Zen 2"),  # Rome
        (Cpu("AuthenticAMD", 0x19, 0x01), "AMD Zen 3"),  # Milan
        (Cpu("AuthenticAMD", 0x19, 0x11), "AMD Zen 4"),  # Genoa
        (Cpu("AuthenticAMD", 0x19, 0xA0), "AMD Zen 4"),  # Bergamo
        (Cpu("AuthenticAMD", 0x1A, 0x02), "AMD Zen 5"),  # Turin
        (Cpu("0x41", 8, 0xD0C), "Arm Neoverse N1"),
        (Cpu("0x41", 8, 0xD49), "Arm Neoverse N2"),
        (Cpu("0x41", 8, 0xD40), "Arm Neoverse V1"),
        (Cpu("0xc0", 8, 0xAC3), "Arm, a model that whitepanda has no events for"),
    ],
)
def test_cpus_are_recognised(cpu, title):
    found = find_microarch(cpu)
    assert found is not None
    assert found.title == title


@given(st.sampled_from(["GenuineIntel", "AuthenticAMD", "0x41"]), st.integers(0, 30), st.integers(0, 0xFFF))
def test_no_cpu_is_of_two_models(vendor, family, model):
    cpu = Cpu(vendor, family, model)
    of_model = [name for name in OF_A_MODEL if any(rule.matches(cpu) for rule in FILES[name].rules)]
    assert len(of_model) <= 1


def test_a_cpu_of_nobody_is_unknown():
    assert find_microarch(Cpu("HygonGenuine", 24, 0)) is None


@pytest.mark.parametrize(
    ("name", "event", "config"),
    [
        ("intel-skylake-sp", "memory_stall_cycles", 0x140014A3),
        ("intel-skylake-sp", "total_stall_cycles", 0x040004A3),
        ("intel-skylake-sp", "llc_misses", 0x412E),
        ("intel-skylake-sp", "l2_misses", 0x3F24),
        ("intel-icelake-sp", "l2_misses", 0x1FF1),
        ("intel-sapphire-rapids", "memory_stall_cycles", 0x050021A6),
        ("intel-emerald-rapids", "core_stall_cycles", 0x80A6),
        ("amd-zen3", "l2_misses", 0x0964),
        ("amd-zen4", "memory_stall_cycles", 0xA2D6),
        ("amd-zen5", "reference_cycles", 0x100000120),
        ("arm-neoverse-v1", "memory_stall_cycles", 0x4005),
        ("arm-neoverse-n1", "llc_misses", 0x37),
    ],
)
def test_encodings_as_perf_stat_would_take_them(name, event, config):
    catalog = resolve(FILES[name], CorePmu("cpu", TYPE_RAW))
    assert catalog.events[event] == Event(event, TYPE_RAW, config)


def test_zen_has_no_llc_misses_of_a_task_and_says_so():
    for name in ("amd-zen2", "amd-zen3", "amd-zen4", "amd-zen5"):
        catalog = resolve(FILES[name], CorePmu("cpu", TYPE_RAW))
        assert catalog.missing["llc_misses"] is Reason.NO_EVENT


# -- this host ---------------------------------------------------------------------------------------------------

INTEL = "processor\t: {}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Intel(R) Xeon(R)\n\n"
ARM = "processor\t: {}\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: {}\nCPU revision\t: 1\n\n"


def test_cpuinfo_of_x86_and_arm():
    assert parse_cpuinfo("".join(INTEL.format(n) for n in range(4))) == {Cpu("GenuineIntel", 6, 85)}
    assert parse_cpuinfo(ARM.format(0, "0xd0c") + ARM.format(1, "0xd0c")) == {Cpu("0x41", 8, 0xD0C)}
    assert parse_cpuinfo(ARM.format(0, "0xd0c") + ARM.format(1, "0xd49")) == {
        Cpu("0x41", 8, 0xD0C),
        Cpu("0x41", 8, 0xD49),
    }


@given(st.text())
def test_cpuinfo_of_anything_else_is_no_cpu(text):
    assert all(isinstance(cpu, Cpu) for cpu in parse_cpuinfo(text))
    assert parse_cpuinfo("vendor_id : x\ncpu family : y\nmodel : z\n") == frozenset()


@pytest.fixture
def skylake(tmp_path):
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    write(proc / "cpuinfo", INTEL.format(0))
    cpu = sys / "bus/event_source/devices/cpu"
    write(cpu / "type", "4\n")
    for name, text in {"event": "config:0-7", "umask": "config:8-15", "cmask": "config:24-31"}.items():
        write(cpu / "format" / name, text + "\n")
    write(cpu / "format/weird", "config:none\n")
    write(cpu / "events/ref-cycles", "event=0x00,umask=0x03\n")
    (sys / "bus/event_source/devices/uncore_imc_0").mkdir()
    return proc, sys


def test_the_kernels_table_comes_first_and_the_data_file_fills_it_up(skylake):
    catalog = read_catalog(*map(str, skylake))
    assert catalog.title == "Intel Skylake-SP or Cascade Lake-SP"
    assert catalog.events["reference_cycles"] == Event("reference_cycles", 4, 0x300)
    assert set(catalog.events) == set(EXTRA)
    assert catalog.missing == {}
    assert catalog.programmable == 4
    assert read_catalog(*map(str, skylake), smt=False).programmable == 8


def test_a_field_that_the_kernel_does_not_have_costs_the_events_that_need_it(skylake):
    (skylake[1] / "bus/event_source/devices/cpu/format/cmask").unlink()
    catalog = read_catalog(*map(str, skylake))
    assert set(catalog.missing) == {"memory_stall_cycles", "total_stall_cycles"}


def test_an_entry_of_the_kernels_table_that_is_not_understood_costs_its_event(skylake):
    write(skylake[1] / "bus/event_source/devices/cpu/events/ref-cycles", "event=?\n")
    catalog = read_catalog(*map(str, skylake))
    assert set(catalog.missing) == {"reference_cycles"}


def test_a_cpu_without_a_file_gets_what_the_kernel_offers(skylake):
    proc, sys = skylake
    write(proc / "cpuinfo", INTEL.format(0).replace("85", "250"))
    catalog = read_catalog(str(proc), str(sys))
    assert set(catalog.events) == {"reference_cycles"}
    write(proc / "cpuinfo", INTEL.format(0).replace("GenuineIntel", "Other"))
    catalog = read_catalog(str(proc), str(sys))
    assert catalog.events == {}
    assert catalog.title == "CPU of vendor Other, family 6, model 85, which whitepanda does not know"


def test_a_hybrid_cpu_is_reported_and_counts_the_basics(skylake):
    proc, sys = skylake
    devices = sys / "bus/event_source/devices"
    (devices / "cpu").rename(devices / "cpu_core")
    write(devices / "cpu_atom/type", "10\n")
    assert [pmu.name for pmu in core_pmus(str(sys))] == ["cpu_atom", "cpu_core"]
    catalog = read_catalog(str(proc), str(sys))
    assert catalog.title.startswith("hybrid CPU (cpu_atom, cpu_core)")
    assert catalog.events == {}
    assert set(catalog.missing) == set(EXTRA)


@pytest.mark.parametrize("broken", ["cpuinfo", "type"])
def test_what_cannot_be_read_offers_nothing(skylake, broken):
    proc, sys = skylake
    path = {"cpuinfo": proc / "cpuinfo", "type": sys / "bus/event_source/devices/cpu/type"}[broken]
    path.unlink()
    catalog = read_catalog(str(proc), str(sys))
    assert catalog.events == {}
    assert set(catalog.missing) == set(EXTRA)
    assert set(catalog.missing.values()) == {Reason.NO_EVENT}


@pytest.mark.parametrize("name", ["amd-zen4", "amd-zen5"])
def test_the_other_hardware_threads_turn_is_no_stall(name):
    path = Path(collector.perf.microarch.__file__).parent / "microarch" / f"{name}.toml"
    row = tomllib.loads(path.read_text())["events"]["total_stall_cycles"]
    assert row["event"] == 0xD6
    assert not row["umask"] & 0x10
    assert row["umask"] == 0x01 | 0x02 | 0x08  # empty, not_complete, other
