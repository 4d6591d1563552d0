import errno

import pytest

from collector.base import Reason
from collector.perf.binding import PerfError
from collector.perf.host import PerfHost


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        (("software", "cpu"), Reason.PARANOID),
        (("software", "armv8_pmuv3_0"), Reason.PARANOID),
        (("software", "breakpoint"), Reason.NO_PMU),  # nothing is there that a capability would open
        ((), Reason.PARANOID),  # no sysfs here: nobody knows
    ],
)
def test_a_refusal_without_a_pmu_is_none_of_permission(tmp_path, devices, reason):
    files = {"proc/sys/kernel/perf_event_paranoid": "2\n", "proc/self/status": "Name:\tx\nCapEff:\t0\n"}
    for name in devices:
        files[f"sys/bus/event_source/devices/{name}/type"] = "4\n"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    host = PerfHost(str(tmp_path / "proc"), str(tmp_path / "sys"))
    found = host.refine(PerfError("perf_event_open: EACCES", Reason.NO_PERMISSION, errno.EACCES))
    assert found is reason
    remedy = host.remedy(found, errno.EACCES)
    assert ("hardware counters" in remedy) == (reason is Reason.NO_PMU)
    assert "give the agent CAP_PERFMON" in remedy  # with a PMU it would be refused all the same
