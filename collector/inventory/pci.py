"""PCI devices passed through to a VM: the host counts nothing of them."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from collector.base import InterfaceDevice

_NETWORK_CLASS = "0x02"
_WITHOUT_DOMAIN = 7  # as in 01:00.0


def passed_interfaces(addresses: Iterable[str], proc_root: Path) -> tuple[InterfaceDevice, ...]:
    """Return an interface of kind "hostdev" for each network device among PCI addresses such as "0000:01:00.0".

    The domain may be left out. A device of unknown class does not count. /sys is next to `proc_root`.
    """
    devices = proc_root.parent / "sys/bus/pci/devices"
    found = []
    for address in addresses:
        name = f"0000:{address}" if len(address) == _WITHOUT_DOMAIN else address
        with contextlib.suppress(OSError, ValueError):
            if (devices / name / "class").read_text(errors="replace").startswith(_NETWORK_CLASS):
                found.append(InterfaceDevice("", kind="hostdev"))
    return tuple(found)
