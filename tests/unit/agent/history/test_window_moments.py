"""Windows as moments: by the one table of columns, whatever their lengths, and what is not right is refused."""

import math

import pytest

from agent.history import frames
from agent.history.segments import DamagedError, SegmentWriter, segments
from agent.history.window_moments import rows_of, windows_of
from agent.sampling.windows import CpiWindow
from agent.uplink.batches import encode
from collector.base import Reason
from whitepanda.common.window_columns import BY_NAME
from whitepanda.v1 import agent_pb2, host_pb2

S = 10**9
T0 = 1_700_000_000 * S


def window(vm, start_s, length_s=10, **metrics):
    reasons = {name: value for name, value in metrics.items() if isinstance(value, Reason)}
    start_ns = T0 + start_s * S
    return CpiWindow(
        vm, "e", f"name-{vm}", "job", False, start_ns, length_s * S, 0.5, 1.5, metrics=metrics, new_reasons=reasons
    )


def batch(*windows):
    return encode(windows, spool_id="history", sequence=1)


def moments(folder, *groups, longest_s=10, judged=(), explanations=(), explain=""):
    writer = SegmentWriter(folder, 3600 * S)
    status = host_pb2.HostStatus(host="node1").SerializeToString()
    for end_s, windows in groups:
        data = batch(*windows).SerializeToString()
        vms = [vm.SerializeToString() for vm in judged]
        kept = [one.SerializeToString() for one in explanations]
        frame = frames.WindowFrame(data, status, vms, longest_ms=longest_s * 1000, explanations=kept)
        writer.append(T0 + end_s * S, end_s * S, frames.encode(frame))
    return [pending.make(None, explain) for one in segments(folder) for pending in windows_of(one)]


def metrics_of(summary):
    return {metric.name: (metric.value, metric.reason) for metric in summary.metrics}


def test_values_and_reasons_by_name():
    (row,) = rows_of(batch(window("u1", 0, gips=2.0, guest_ratio=Reason.NOT_VISIBLE)))
    assert row.task.name == "name-u1"
    assert (row.values["gips"], row.values["cpi"], row.values["cpu_usage_cores"]) == (2.0, 1.5, 0.5)
    assert row.values["guest_ratio"] is Reason.NOT_VISIBLE


def test_a_column_of_a_newer_agent_is_left_out():
    newer = batch(window("u1", 0, gips=2.0), window("u2", 0, gips=3.0))
    newer.metrics.numbers.append(9999)
    newer.metrics.values.extend((7.0, 8.0))
    assert [row.values["gips"] for row in rows_of(newer)] == [2.0, 3.0]


@pytest.mark.parametrize("harm", ["values", "task"])
def test_what_does_not_fit_is_refused(harm):
    wrong = batch(window("u1", 0, gips=2.0))
    if harm == "values":
        wrong.metrics.values.append(1.0)
    else:
        wrong.task_index[0] = 5
    with pytest.raises(ValueError, match=r"metrics are not as long|is of no task"):
        rows_of(wrong)


def test_a_moment_has_all_vms_also_those_of_longer_windows(tmp_path):
    groups = (
        (10, [window("fast", 0), window("slow", -20, 30), window("host:ceph", 0)]),
        (20, [window("fast", 10)]),
        (30, [window("fast", 20)]),
        (40, [window("fast", 30)]),
    )
    found = moments(tmp_path / "a", *groups, longest_s=30)
    assert [[vm.uuid for vm in one.vms.vms] for one in found] == [["fast", "slow"]] * 3 + [["fast"]]
    found = moments(tmp_path / "d", *groups[:1], (20, []), *groups[2:3], longest_s=30)
    assert [[vm.uuid for vm in one.vms.vms] for one in found] == [["fast", "slow"], [], ["fast"]]  # none ran at 20 s
    moments(tmp_path / "c", *groups[:2], longest_s=30)
    moments(tmp_path / "c", *groups[2:], longest_s=30)  # the agent was started again: another file
    before, after = segments(tmp_path / "c")
    found = [pending.make(None, "") for pending in windows_of(after, [before])]
    assert [[vm.uuid for vm in one.vms.vms] for one in found] == [["fast", "slow"], ["fast"]]
    assert [len(pending.make(None, "").vms.vms) for pending in windows_of(after)] == [1, 1]
    found = moments(tmp_path / "b", *groups, longest_s=10)
    assert [[vm.uuid for vm in one.vms.vms] for one in found] == [["fast", "slow"], ["fast"], ["fast"], ["fast"]]


def test_the_verdict_and_the_slow_down_are_those_of_the_window(tmp_path):
    judged = host_pb2.VmSummary(uuid="u1", name="name-u1", vcpus=4)
    judged.decision.verdict = agent_pb2.BEHAVIOUR_VICTIM
    judged.decision.reason = "IPC 0.4 instead of 1.0"
    judged.decision.slow_down.ratio = 9.0
    judged.decision.suspects.add(name="scan-1")
    slow = {"slow_down_ratio": 1.5, "slow_down_low_ratio": 1.25, "slow_down_high_ratio": 1.75, "verdict": 4}
    (one,) = moments(tmp_path, (10, [window("u1", 0, **slow), window("u2", 0, verdict=2)]), judged=[judged])
    victim, steady = one.vms.vms
    assert (victim.vcpus, victim.decision.reason, victim.decision.suspects[0].name) == (
        4,
        "IPC 0.4 instead of 1.0",
        "scan-1",
    )
    estimate = victim.decision.slow_down
    assert (estimate.ratio, estimate.low, estimate.high) == (1.5, 1.25, 1.75)
    assert steady.decision.verdict == agent_pb2.BEHAVIOUR_STEADY
    value, reason = metrics_of(steady)["ipc"]
    assert (math.isnan(value), reason) == (True, int(Reason.NOT_IN_TRACE))
    assert "ipc" not in BY_NAME


def test_what_was_kept_of_a_vm_explains_it(tmp_path):
    judged = [host_pb2.VmSummary(uuid=vm, name=f"name-{vm}") for vm in ("u1", "u2")]
    for one in judged:
        one.decision.verdict = agent_pb2.BEHAVIOUR_VICTIM
        one.decision.reason = "IPC 0.4 instead of 1.0"
    known = host_pb2.VmExplanation(vm=host_pb2.VmSummary(uuid="u1"), detector="paper", mn_cpi=2.5)
    known.vm.decision.verdict = agent_pb2.BEHAVIOUR_VICTIM
    known.evidence.add(signal="ipc", value=0.4)
    known.recommendations.add(vm="u2")
    known.signals.add(name="ipc", value=0.4)
    windows = [window(vm, 0, gips=2.0) for vm in ("u1", "u2", "u3")]
    found = []
    for vm in ("u1", "name-u2", "u3"):
        (one,) = moments(tmp_path / vm, (10, windows), judged=judged, explanations=[known], explain=vm)
        found.append(one.explanation)
    victim, other, quiet = found
    assert (victim.vm.name, victim.vm.decision.reason) == ("name-u1", "IPC 0.4 instead of 1.0")
    assert metrics_of(victim.vm)["gips"] == (2.0, 0)
    assert (victim.detector, victim.mn_cpi, victim.evidence, victim.recommendations, victim.signals) == (
        "paper",
        2.5,
        known.evidence,
        known.recommendations,
        known.signals,
    )
    assert (list(other.evidence), math.isnan(other.mn_cpi)) == ([], True)
    assert other.vm.decision.reason.endswith("were not kept")
    assert quiet.vm.decision.reason.startswith("kept as windows")


def test_an_explanation_counts_for_two_minutes_while_the_verdict_stays_also_from_the_file_before(tmp_path):
    victim = agent_pb2.BEHAVIOUR_VICTIM

    def write(*seconds, explains=(), verdict=victim):
        writer = SegmentWriter(tmp_path, 3600 * S)
        vm = host_pb2.VmSummary(uuid="u1", decision=host_pb2.VmDecision(verdict=verdict))
        known = host_pb2.VmExplanation(vm=vm, evidence=[agent_pb2.Evidence(signal="ipc")]).SerializeToString()
        for second in seconds:
            data = batch(window("u1", second - 10)).SerializeToString()
            kept = [known] if second in explains else []
            frame = frames.WindowFrame(data, b"", [vm.SerializeToString()], explanations=kept)
            writer.append(T0 + second * S, second * S, frames.encode(frame))

    write(10, 20, explains=[10])
    write(30, 120, 130, 140)
    write(150, 160, explains=[150])
    write(170, verdict=agent_pb2.BEHAVIOUR_INFLICTING)
    files = segments(tmp_path)
    found = {}
    for at, file in enumerate(files):
        for pending in windows_of(file, files[:at]):
            found[(pending.unix_ns - T0) // S] = len(pending.make(None, "u1").explanation.evidence)
    assert found == {10: 1, 20: 1, 30: 1, 120: 1, 130: 0, 140: 0, 150: 1, 160: 1, 170: 0}


def test_a_frame_that_makes_no_sense_is_damage(tmp_path):
    SegmentWriter(tmp_path, 60 * S).append(T0, 0, b"\x93nonsense")
    with pytest.raises(DamagedError):
        list(windows_of(segments(tmp_path)[0]))
