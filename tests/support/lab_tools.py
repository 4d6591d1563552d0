"""What the scripts of tests/lab need on the machine; tests/lab/packages.sh installs it."""

import shutil

import pytest

_TOOLS = (
    "virsh",
    "libvirtd",
    "virtlogd",
    "qemu-system-x86_64",
    "ovs-vswitchd",
    "ip",
    "busybox",
    "cpio",
    "dpkg-deb",
    "gcc",
)


def need_tools(*more: str) -> None:
    """Skip where one of the lab's tools, or of `more`, is absent."""
    absent = [tool for tool in (*_TOOLS, *more) if shutil.which(tool) is None]
    if absent:
        pytest.skip(f"tests/lab/packages.sh did not install all: no {', '.join(absent)}")
