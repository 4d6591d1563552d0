"""Limits by `cpu.max` of a real cgroup v2, felt and undone: in an emulated arm64 machine, whose kernel has no v1."""

import shutil
from pathlib import Path

import pytest

from tests.support.arm64_guest import ROOT, run_in_guest

pytestmark = [pytest.mark.long, pytest.mark.integration, pytest.mark.timeout(700)]

#: In place of agent/act/records.py, which wants a library that the guest does not have.
RECORDS = "class ActError(Exception):\n    pass\n\n\nclass Backend:\n    pass\n"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guest")
    act = folder / "app" / "agent" / "act"
    act.mkdir(parents=True)
    for package in (act.parent, act):
        (package / "__init__.py").touch()
    shutil.copy(ROOT / "agent" / "act" / "cpu_max.py", act)
    (act / "records.py").write_text(RECORDS)
    (result,) = run_in_guest(folder, Path(__file__).with_name("guest_cpu_max.py"))
    return result


def test_a_limit_is_felt_and_taken_back(found):
    assert [found[key] for key in ("before", "after", "undone")] == ["max 100000", "20000 100000", "max 100000"]
    for key in ("free", "free_again"):
        cores, throttled = found[key]
        assert (cores > 0.8, throttled) == (True, 0)
    cores, throttled = found["limited"]
    assert cores == pytest.approx(0.2, rel=0.2)
    assert throttled > 5
    assert found["least"] == "1000 100000"  # the kernel takes no less, and took this


def test_what_the_kernel_says_is_said_in_one_line(found):
    assert "can use at most 0.2 cores already; give fewer (value 0.2)" in found["no_less"]
    assert found["refused"].endswith("/sys/fs/cgroup/qemu.slice/101.scope/cpu.max: Invalid argument")
    assert found["kept"] == found["after"]
    assert (found["gone"], "runs here any more" in found["write_gone"]) == (None, True)


def test_a_group_that_is_not_the_vms_or_has_no_controller_is_refused(found):
    assert "has no cpu.max: the controller cpu is off there" in found["no_controller"]
    assert "no control group of its own" in found["shared"]
    assert found["alone"] == "max 100000"
