"""Limits by resctrl without a mount: what is read in the kernel's own spelling, and what is refused."""

import os

import pytest

from agent.act.records import ActError
from agent.act.resctrl import PREFIX, Resctrl
from collector.base import SourceError
from tests.unit.agent.act_fakes import VM

ROOTS = "    MB:0=100;1=100\n    L3:0=fff;1=fff\n"


@pytest.fixture
def tree(tmp_path):
    """A folder with what resctrl shows of two caches of 12 ways, and bandwidth in steps of 10 %."""
    root = tmp_path / "resctrl"
    numbers = {"L3/cbm_mask": "fff", "L3/min_cbm_bits": "1", "MB/min_bandwidth": "10", "MB/bandwidth_gran": "10"}
    for name, text in numbers.items():
        path = root / "info" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    (root / "schemata").write_text(ROOTS)
    return root


def backend(tree, action="limit-cache"):
    return Resctrl(action, tree, lambda _vm: os.getpid())


def group(tree, schemata):
    folder = tree / f"{PREFIX}{VM}"
    folder.mkdir()
    (folder / "schemata").write_text(schemata)


def test_masks_padded_with_zeros_and_percent_padded_with_blanks_are_the_numbers_that_were_set(tree):
    cache, bandwidth = backend(tree), backend(tree, "limit-bandwidth")
    ways, percent = cache.target(VM, 2), bandwidth.target(VM, 30)
    assert (ways, percent) == ("L3:0=3;1=3 MB:0=100;1=100", "L3:0=fff;1=fff MB:0=30;1=30")
    group(tree, "    MB:0= 30;1= 30\n    L3:0=003;1=003\n")
    now = cache.read(VM)
    assert now == "L3:0=3;1=3 MB:0=30;1=30"
    assert cache.is_ours(now, f"{ways.split()[0]} {percent.split()[1]}")
    assert not cache.is_ours(now, ways)


@pytest.mark.parametrize(("asked", "set_to"), [(25, 30), (30, 30), (30.5, 40), (1, 10)])
def test_percent_are_rounded_up_as_the_kernel_does(tree, asked, set_to):
    assert backend(tree, "limit-bandwidth").target(VM, asked).endswith(f"MB:0={set_to};1={set_to}")


def test_a_vm_gets_no_more_than_the_root_group_leaves_it(tree):
    (tree / "schemata").write_text("    MB:0= 50;1=100\n    L3:0=0ff;1=0ff\n")
    assert backend(tree).target(VM, 2) == "L3:0=3;1=3 MB:0=50;1=100"
    assert backend(tree, "limit-bandwidth").target(VM, 70) == "L3:0=ff;1=ff MB:0=50;1=70"
    fresh = "L3:0=fff;1=fff MB:0=100;1=100"  # of a group that was made, and then came a kill
    assert backend(tree).is_ours(fresh, "L3:0=3;1=3 MB:0=50;1=100")


@pytest.mark.parametrize(
    ("action", "amount", "roots", "said"),
    [
        ("limit-cache", 3, "L3:0=ff0;1=fff", "the lowest 3 ways of cache 0 are not the root group's .it has ff0"),
        ("limit-cache", 8, "L3:0=0ff;1=fff", r"ways must be 1 to 7 on this host \(value 8\)"),
        ("limit-cache", 3, "MB:0=100", r"no cache allocation \(CAT\)"),
        ("limit-bandwidth", 30, "L3:0=fff", r"no bandwidth limits \(MBA\)"),
        ("limit-bandwidth", 30, "MB:0=2048;1=2048", "not in percent here .the root group has 2048.: an AMD CPU"),
        ("limit-bandwidth", 91, "MB:0=100;1=100", "percent must be below 100"),
        ("limit-bandwidth", 50, "MB:0= 50;1= 50", "percent must be below 50"),
        ("limit-bandwidth", 50, "MB:0=x", "please report this"),
    ],
)
def test_what_cannot_be_given_is_refused(tree, action, amount, roots, said):
    (tree / "schemata").write_text(f"{roots}\n")
    with pytest.raises(ActError, match=said):
        backend(tree, action).target(VM, amount)


def test_a_group_that_was_left_behind_is_not_taken_for_how_the_vm_was(tree):
    group(tree, ROOTS)
    with pytest.raises(ActError, match=rf"without a record; remove it with `rmdir {tree}/{PREFIX}{VM}`"):
        backend(tree).target(VM, 2)


def test_where_it_is_not_known_who_runs_that_is_reported(tree):
    def broken(_vm):
        raise SourceError("libvirt's state_dir cannot be read")

    with pytest.raises(ActError, match=f"VM {VM}: libvirt's state_dir cannot be read"):
        Resctrl("limit-cache", tree, broken).read(VM)


def test_the_command_is_one_for_a_shell(tree):
    said = backend(tree).command(VM, "L3:0=3;1=3 MB:0=30;1=30")
    assert "printf '%s\\n' 'L3:0=3;1=3' 'MB:0=30;1=30' >" in said
