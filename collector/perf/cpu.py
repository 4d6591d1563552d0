"""This host's CPUs (/proc/cpuinfo), and what the kernel shows of their PMU (sysfs)."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from collector.perf.encoding import Field, parse_field

#: The kernel's folder of PMUs, below /sys.
DEVICES = "bus/event_source/devices"


@dataclass(frozen=True, slots=True)
class Cpu:
    """A CPU model. On Arm `vendor` is the implementer ("0x41"), `family` the architecture (8), `model` the part."""

    vendor: str
    family: int
    model: int


@dataclass(frozen=True, slots=True)
class CorePmu:
    """The PMU of the CPU cores: the kernel's number for it, the fields of its events, and where its aliases are."""

    name: str
    type: int
    formats: Mapping[str, Field] = field(default_factory=dict)
    folder: Path = Path()

    def alias(self, name: str) -> str:
        """Return an event of the kernel's own table, such as "event=0x2e,umask=0x41"; "" where it has none."""
        with suppress(OSError):
            return (self.folder / "events" / name).read_text().strip()
        return ""


def parse_cpuinfo(text: str) -> frozenset[Cpu]:
    """Return the different CPU models of a /proc/cpuinfo, without malformed ones."""
    found: set[Cpu] = set()
    for block in text.split("\n\n"):
        rows = (line.partition(":") for line in block.splitlines())
        values = {name.strip(): value.strip() for name, _, value in rows}
        with suppress(KeyError, ValueError):
            if "vendor_id" in values:
                found.add(Cpu(values["vendor_id"], int(values["cpu family"]), int(values["model"])))
            elif "CPU implementer" in values:
                part = int(values["CPU part"], 16)
                found.add(Cpu(values["CPU implementer"].lower(), int(values["CPU architecture"]), part))
    return frozenset(found)


def core_pmus(sys_root: str = "/sys") -> list[CorePmu]:
    """Return the PMUs of CPU cores: one, several on a hybrid CPU, none on a machine without."""
    try:
        folders = sorted((Path(sys_root) / DEVICES).iterdir())
    except OSError:
        return []
    found = []
    for folder in folders:
        if folder.name in ("cpu", "cpu_core", "cpu_atom", "cpu_lowpower") or folder.name.startswith("armv"):
            with suppress(OSError, ValueError):
                number = int((folder / "type").read_text())
                found.append(CorePmu(folder.name, number, _formats(folder / "format"), folder))
    return found


def _formats(folder: Path) -> dict[str, Field]:
    """Read the fields, without malformed ones: an event that needs such a field is not counted."""
    formats = {}
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(ValueError):
                formats[path.name] = parse_field(path.read_text())
    return formats
