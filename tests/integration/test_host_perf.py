"""The perf source on libvirt's VMs, per control group and per vCPU thread, with software events (no PMU is needed)."""

import time
from pathlib import Path

import pytest

from collector.cgroup.tree import CgroupTree
from collector.inventory.inventory import Inventory
from collector.perf.binding import Kernel
from collector.perf.encoding import Event
from collector.perf.source import PerfSource
from tests.support.perf_attr import EventAttr

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

SOFTWARE, TASK_CLOCK, CONTEXT_SWITCHES = 1, 1, 3


class SoftwareKernel(Kernel):
    """This machine's kernel, asked for task clock and context switches in the place of cycles and instructions."""

    def perf_event_open(self, attr, pid, cpu, group_fd, flags):
        asked = EventAttr.unpack(attr)
        event = Event("", SOFTWARE, (TASK_CLOCK, CONTEXT_SWITCHES)[asked.event.config])
        return super().perf_event_open(EventAttr(event, disabled=asked.disabled).pack(), pid, cpu, group_fd, flags)


@pytest.fixture
def sources(lab):
    inventory = Inventory()
    made = {
        scope: PerfSource(inventory.vms, scope=scope, events="basic", kernel=SoftwareKernel())
        for scope in ("cgroup", "thread")
    }
    yield inventory, made
    for source in made.values():
        source.close()


def cpu_ns(pid):
    """What the kernel itself charged the VM's group with."""
    text = Path(CgroupTree().find(pid).v2, "cpu.stat").read_text()
    return int(dict(line.split() for line in text.splitlines())["usage_usec"]) * 1000


def test_a_vms_control_group_is_found_and_its_time_is_the_kernels(sources):
    inventory, made = sources
    vms = [vm for vm in inventory.vms() if vm.name.startswith("wplab-")]
    assert len(vms) >= 3
    readings = []
    for _ in range(2):
        samples = {scope: source.sample().vms for scope, source in made.items()}
        readings.append((samples, {vm.uuid: cpu_ns(vm.pid) for vm in vms}))
        time.sleep(3 if len(readings) == 1 else 0)
    (before, charged_before), (after, charged_after) = readings

    def counted(scope, uuid):
        now, last = after[scope][uuid].perf, before[scope][uuid].perf
        assert now is not None, after[scope][uuid].absent
        assert now.scope == scope
        return sum(now.groups[key][0].counts[0] - last.groups[key][0].counts[0] for key in now.groups)

    online = Path("/sys/devices/system/cpu/online").read_text()
    for vm in vms:
        charged = charged_after[vm.uuid] - charged_before[vm.uuid]
        group, threads = counted("cgroup", vm.uuid), counted("thread", vm.uuid)
        assert group == pytest.approx(charged, rel=0.02, abs=20_000_000)  # the reads are milliseconds apart
        assert threads <= group + 20_000_000  # QEMU's own threads are in the group only
        assert set(after["thread"][vm.uuid].perf.groups) == set(vm.vcpu_tids)
        assert len(after["cgroup"][vm.uuid].perf.groups) > 1 or online.strip() == "0"
