import time

import pytest

from agent.clock import SystemClock, boot_id
from agent.host_info import cpu_seconds, platform_name, resident_bytes

X86 = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R)  Gold 6248 CPU @ 2.50GHz\n\nprocessor\t: 1\nmodel name\t: other\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (X86, "Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz"),
        (ARM, "arm 0x41 part 0xd0c"),
        ("nothing of use\n", "unknown"),
        (None, "unknown"),
    ],
)
def test_platform(tmp_path, text, name):
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert platform_name(tmp_path) == name


def test_boot_id(tmp_path):
    assert boot_id(tmp_path) == ""
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("7c1d-88\n")
    assert boot_id(tmp_path) == "7c1d-88"


def test_own_cost(tmp_path):
    before = cpu_seconds()
    while time.process_time() < before + 0.01:
        pass
    assert cpu_seconds() - before >= 0.01
    assert 1 << 20 < resident_bytes() < 1 << 34
    assert resident_bytes(tmp_path) >= 1 << 20  # without /proc: the peak
    (tmp_path / "self").mkdir()
    (tmp_path / "self/statm").write_text("1000 300 1\n")
    assert resident_bytes(tmp_path) % 300 == 0


async def test_the_systems_clock_sleeps_until_not_before():
    clock = SystemClock()
    due = clock.mono_ns() + 20_000_000
    await clock.sleep_until(due)
    assert due - 1_000 <= clock.mono_ns() < due + 10**9
    await clock.sleep_until(0)  # long ago
    assert abs(clock.unix_ns() - time.time_ns()) < 10**9
