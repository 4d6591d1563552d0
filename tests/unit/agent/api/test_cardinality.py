"""How many series a host and a VM have in /metrics at most, as docs/monitoring.md tells; labels are bounded."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from agent.analysis.verdict import Degradation
from agent.analysis.verdict import Verdict as Suffering
from agent.antagonists.host_analysis import CpiVerdict
from agent.api.prometheus_text import render
from agent.api.state import Snapshot
from agent.detection.decision_types import VERDICTS, SuspectView, VmDecision
from agent.sampling.changes import JoinedVm, Reading
from agent.sampling.metric_table import METRICS, VmRates
from collector.base import VM_PARTS, Reason
from collector.inventory.coverage import PART_SOURCES
from tests.unit.agent.agent_fakes import identity
from tests.unit.agent.api.test_metrics_server import CERTIFICATES, RATES, TOTALS, S, host_status, vm_of
from tests.unit.agent.canned_agents import source

DOCS = Path(__file__).resolve().parents[4] / "docs" / "monitoring.md"
VICTIM = Suffering("victim", "", 0, degradation=Degradation(1.5, 1.2, 1.9, model="m"), baseline_ready=True)
SUSPECTS = tuple(
    SuspectView(f"s{n}", f"scan{n}", "scan", 4.0, None, None, Reason.NO_COEFFICIENTS, inflicts=True) for n in range(9)
)
HELD = VmDecision("u", "victim", "", 5, VICTIM.degradation, ("host", "fleet"), SUSPECTS)
UNTOLD = replace(HELD, slow_down=Degradation(cannot_tell="out_of_range:memory_stall_ratio"))


def joined_with_all_parts() -> JoinedVm:
    """Every part of its own source, read two seconds ago."""
    readings = {part: Reading(PART_SOURCES[part][0], 100 * S, 100 * S, None) for part in VM_PARTS}
    return JoinedVm("e1", 2, **readings)


def everything(vms: int) -> Snapshot:
    """VMs of which all is known, on a host with all sources."""
    found = tuple(
        vm_of(
            f"u{n}",
            f"vm{n}",
            "j",
            RATES,
            joined_with_all_parts(),
            verdict=CpiVerdict("victim", "", 1.7),
            suffering=VICTIM,
            decision=HELD,
            traffic=TOTALS,
        )
        for n in range(vms)
    )
    sources = sorted({name for names in PART_SOURCES.values() for name in names if name != "agent"})
    views = tuple(source(name, "available", age_ns=S, duration_ns=S, samples=1) for name in sources)
    return Snapshot(host_status(sources=views), found, 102 * S, CERTIFICATES)


def page(snapshot: Snapshot) -> bytes:
    return render(snapshot)[0]


def series(snapshot: Snapshot) -> Counter[str]:
    """How many series each VM has, and the host, which is ""."""
    found: Counter[str] = Counter()
    for family in parse(page(snapshot).decode()):
        for sample in family.samples:
            found[sample.labels.get("vm", "")] += 1
    return found


def documented(what: str) -> int:
    """The number in the row of the page's table of series."""
    row = re.search(rf"^\| {what} \| (\d+)", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert row, what
    return int(row[1])


def test_series_of_a_vm_and_of_a_host_are_as_documented() -> None:
    found = series(everything(3))
    assert [found[f"u{n}"] for n in range(3)] == [documented("a VM, at most")] * 3
    assert found[""] == documented("a host, at most")
    usual = replace(VICTIM, behaviour="steady", degradation=None)
    quiet = everything(1).vms[0]._replace(suffering=usual, decision=VmDecision("u0", "steady", ""))
    assert series(everything(1)._replace(vms=(quiet,)))["u0"] == documented("a VM that does not suffer")


@pytest.mark.parametrize("unknown", [Reason.NO_PMU, Reason.STALE])
def test_what_is_not_known_has_no_more_series_than_what_is(unknown) -> None:
    most = documented("a VM, at most")
    vm = everything(1).vms[0]
    for known in (0, 1, 20, len(VmRates._fields) - 1):
        rates = VmRates(*(float(n) if n < known else unknown for n in range(len(VmRates._fields))))
        found = series(everything(1)._replace(vms=(vm._replace(rates=rates, decision=UNTOLD),)))
        assert found["u0"] <= most


def test_that_notices_a_label_for_each_source_of_a_part() -> None:
    """The bound would not hold if a part kept the series of the source that it had before."""
    vm = everything(1).vms[0]
    twice = everything(1)._replace(vms=(vm, vm._replace(rates=RATES)))
    assert series(twice)["u0"] > documented("a VM, at most")


def test_labels_are_of_few_kinds_and_their_values_from_lists() -> None:
    reasons = {reason.code for reason in Reason}
    vm = everything(1).vms[0]
    gone = vm._replace(identity=identity("u9"), rates=VmRates(*(Reason.STALE,) * len(VmRates._fields)), decision=UNTOLD)
    lists = {
        "source": {name for names in PART_SOURCES.values() for name in names},
        "part": set(VM_PARTS),
        "metric": {metric.name for metric in METRICS},
        "certificate": {"uplink.tls", "metrics.tls"},
        "behaviour": {*VERDICTS} - {"unknown"},
    }
    names: set[str] = set()
    for family in parse(page(everything(1)._replace(vms=(vm, gone))).decode()):
        for sample in family.samples:
            names |= set(sample.labels)
            for label, value in sample.labels.items():
                if label in lists:
                    assert value in lists[label]
                if label == "reason" and not sample.name.endswith("slow_down_absent"):
                    assert value in reasons
    assert names == {
        *("vm", "name", "job", "part", "source", "behaviour", "reason", "version", "platform", "host", "certificate"),
        *("project", "flavor", "owner", "manager", "latency_sensitive"),
        *("suspect", "suspect_name", "suspect_job"),
    }
