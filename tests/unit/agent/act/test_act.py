"""`whitepanda act` without its socket: limits are set and undone, whenever it is killed and whoever else meddles."""

import json
import os
import stat
from pathlib import Path

import msgspec
import pytest

from agent.act import actor as actor_module
from agent.act.audit import Allowance, Audit
from agent.act.journal import Journal
from agent.act.records import ActError, RefusedError, Undo
from collector.base import SourceError
from tests.unit.agent.act_fakes import LIMITS, OPERATOR, OTHER, VM, FakeBackend, FakeClock, Victims, asked, make
from whitepanda.common.errors import UnavailableError
from whitepanda.common.files import durable


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def backend():
    return FakeBackend()


def audit(folder):
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


def results(done):
    return [one.result for one in done]


def on_disk(folder):
    return json.loads((folder / "journal.json").read_text())["records"]


class KilledError(BaseException):
    """What a kill -9 is to the process: nothing after it is run."""


def killed_at(monkeypatch, target, name, nth=1):
    """Let the process die as it calls something for the nth time; before it does anything."""
    real, calls = getattr(target, name), []

    def die(*arguments, **named):
        calls.append(name)
        if len(calls) == nth:
            raise KilledError
        return real(*arguments, **named)

    monkeypatch.setattr(target, name, die)


# --- the ordinary course ---


def test_a_limit_is_set_and_undone_after_its_time(tmp_path, backend, clock):
    actor = make(tmp_path, backend, clock=clock)
    done = actor.apply(asked(why="incident 7"), OPERATOR)
    assert (done.number, done.before, done.after, done.result) == (1, "none", "limit 2", "applied")
    assert backend.states[VM] == "limit 2"
    (listed,) = actor.in_force()
    assert (listed.left_s, listed.record.victim_degradation, listed.record.uid) == (900.0, 2.0, 1000)
    clock.advance(899)
    assert actor.tick() == []
    clock.advance(1)
    assert results(actor.tick()) == ["undone"]
    assert (backend.states[VM], actor.in_force(), on_disk(tmp_path)) == ("none", (), [])
    reported = [(line["event"], line["result"], line["uid"], line["pid"], line["why"]) for line in audit(tmp_path)]
    assert reported == [
        ("begin", "begun", 1000, 4711, "incident 7"),
        ("apply", "applied", 1000, 4711, "incident 7"),
        ("undo", "undone", -1, -1, "its time is over"),
    ]
    assert (audit(tmp_path)[-1]["before"], audit(tmp_path)[-1]["after"]) == ("limit 2", "none")


def test_an_operator_undoes_one_or_all(tmp_path, backend, clock):
    actor = make(tmp_path, backend, clock=clock)
    first = actor.apply(asked(), OPERATOR)
    actor.apply(asked(vm=OTHER), OPERATOR)
    with pytest.raises(RefusedError, match="no action 9 is in force"):
        actor.undo(Undo(9), OPERATOR)
    assert results(actor.undo(Undo(first.number), OPERATOR)) == ["undone"]
    assert backend.states == {VM: "none", OTHER: "limit 2"}
    assert results(actor.undo(Undo(), OPERATOR)) == ["undone"]
    assert actor.undo(Undo(), OPERATOR) == []
    assert audit(tmp_path)[-1]["uid"] == 1000


def test_what_is_in_force_on_a_vm_is_undone_by_its_uuid_and_nothing_is_no_error(tmp_path, backend):
    actor = make(tmp_path, backend)
    assert actor.undo(Undo(vm=VM), OPERATOR) == []
    actor.apply(asked(), OPERATOR)
    actor.apply(asked(vm=OTHER), OPERATOR)
    assert [(one.vm, one.result) for one in actor.undo(Undo(vm=VM), OPERATOR)] == [(VM, "undone")]
    assert backend.states == {VM: "none", OTHER: "limit 2"}
    with pytest.raises(RefusedError, match="no VM named 'scan-1' runs here"):
        actor.undo(Undo(vm="scan-1"), OPERATOR)  # and not "nothing": nobody knows whom it means
    assert [line["result"] for line in audit(tmp_path)][-2:] == ["undone", "refused"]


def test_its_end_undoes_everything(tmp_path, backend):
    actor = make(tmp_path, backend)
    actor.apply(asked(), OPERATOR)
    assert results(actor.stop()) == ["undone"]
    assert backend.states[VM] == "none"


def test_dry_run_says_what_would_be_done_and_changes_nothing(tmp_path, backend):
    actor = make(tmp_path, backend, limits=msgspec.structs.replace(LIMITS, dry_run=True))
    done = actor.apply(asked(), OPERATOR)
    assert (done.number, done.result, done.detail) == (0, "dry_run", f"would run: set {VM} limit 2")
    assert (backend.writes, actor.in_force()) == ([], ())
    assert audit(tmp_path)[-1]["result"] == "dry_run"


def test_nothing_is_done_unless_it_is_enabled(tmp_path, backend):
    actor = make(tmp_path, backend, limits=msgspec.structs.replace(LIMITS, enabled=False))
    with pytest.raises(RefusedError, match=r"act\.enabled is false"):
        actor.apply(asked(), OPERATOR)
    assert backend.writes == []


def test_what_is_refused_is_in_the_audit_log(tmp_path, backend):
    actor = make(tmp_path, backend)
    with pytest.raises(RefusedError, match=r"below act\.min_cores"):
        actor.apply(asked(amount=0.1), OPERATOR)
    (line,) = audit(tmp_path)
    assert (line["result"], line["uid"]) == ("refused", 1000)
    assert "below act.min_cores" in line["why"]


def test_a_vm_cools_down_after_an_action(tmp_path, backend, clock):
    actor = make(tmp_path, backend, clock=clock)
    actor.apply(asked(), OPERATOR)
    actor.undo(Undo(), OPERATOR)
    clock.advance(599)
    with pytest.raises(RefusedError, match="cool_down"):
        actor.apply(asked(), OPERATOR)
    clock.advance(1)
    assert actor.apply(asked(), OPERATOR).number == 2


def test_vms_that_are_gone_or_limited_so_already_are_not_limited(tmp_path, backend):
    actor = make(tmp_path, backend)
    del backend.states[VM]
    with pytest.raises(ActError, match="no VM"):
        actor.apply(asked(), OPERATOR)
    backend.states[VM] = "limit 2"
    with pytest.raises(RefusedError, match="already"):
        actor.apply(asked(), OPERATOR)


# --- worsening ---


def test_a_limit_is_undone_where_the_victim_is_worse_for_three_looks(tmp_path, backend):
    victims = Victims()
    actor = make(tmp_path, backend, victims=victims)
    actor.apply(asked(), OPERATOR)
    for ratio in (2.6, 2.6, 2.5, 2.6, None, 2.6):  # 1.25 times is not more than 1.25 times; None: the agent is away
        victims.ratio = ratio
        assert actor.look() == []
    victims.ratio = 2.6
    (done,) = actor.look()
    assert done.result == "undone"
    assert "the victim is worse: 2.6 times as slow as undisturbed, 2 before" in done.detail
    assert backend.states[VM] == "none"


def test_a_victim_of_which_nothing_is_known_is_not_watched(tmp_path, backend):
    victims = Victims()
    victims.ratio = None
    actor = make(tmp_path, backend, victims=victims)
    actor.apply(asked(), OPERATOR)
    victims.ratio = 99.0
    assert [actor.look() for _ in range(5)] == [[]] * 5


def test_only_the_signal_that_was_known_before_says_that_a_victim_is_worse(tmp_path, backend):
    victims = Victims()
    actor = make(tmp_path, backend, victims=victims)
    actor.apply(asked(), OPERATOR)
    assert actor.in_force()[0].record.victim_signal == "latency"
    victims.signal, victims.ratio = "cpi", 9.0
    assert [actor.look() for _ in range(5)] == [[]] * 5
    victims.signal = "latency"
    assert [results(actor.look()) for _ in range(3)] == [[], [], ["undone"]]


def test_a_victim_that_cannot_be_asked_about_does_not_hide_the_others(tmp_path, backend):
    worse = Victims()

    def one_is_broken(uuid, signal):
        if uuid == VM and worse.ratio > 2:
            raise RuntimeError("a bug")
        return worse(uuid, signal)

    actor = make(tmp_path, backend, victims=one_is_broken)
    actor.apply(asked(vm=OTHER, victim=VM), OPERATOR)
    actor.apply(asked(), OPERATOR)
    worse.ratio = 9.0
    for _ in range(3):
        with pytest.raises(RuntimeError, match="a bug"):
            actor.look()
    assert results(actor.tick()) == ["undone"]
    assert backend.states == {VM: "none", OTHER: "limit 2"}


# --- others who meddle, and what fails ---


def test_what_someone_else_changed_meanwhile_is_left_alone_and_said(tmp_path, backend, clock):
    actor = make(tmp_path, backend, clock=clock)
    actor.apply(asked(), OPERATOR)
    backend.states[VM] = "limit 7"
    clock.advance(900)
    (done,) = actor.tick()
    assert (done.result, backend.states[VM], actor.in_force()) == ("left_alone", "limit 7", ())
    assert "another program has made it 'limit 7' meanwhile" in done.detail


def test_of_a_vm_that_ended_nothing_is_left_to_undo(tmp_path, backend, clock):
    actor = make(tmp_path, backend, clock=clock)
    actor.apply(asked(), OPERATOR)
    del backend.states[VM]
    clock.advance(900)
    assert results(actor.tick()) == ["gone"]
    assert actor.in_force() == ()


def test_what_cannot_be_undone_is_tried_again_until_it_is(tmp_path, backend, clock):
    actor = make(tmp_path, backend, clock=clock)
    actor.apply(asked(), OPERATOR)
    clock.advance(900)
    backend.failure = "libvirt is away"
    assert results(actor.tick()) == ["failed"]
    assert actor.tick() == []  # not at once
    assert actor.in_force()[0].trouble == "libvirt is away"
    clock.advance(5)
    assert results(actor.tick()) == ["failed"]
    backend.failure = ""
    clock.advance(5)
    assert results(actor.tick()) == ["undone"]
    assert [line["result"] for line in audit(tmp_path)] == ["begun", "applied", "failed", "undone"]  # said once


def test_what_could_not_be_undone_is_tried_again_also_before_its_time_is_over(tmp_path, backend, clock):
    actor = make(tmp_path, backend, clock=clock)
    actor.apply(asked(), OPERATOR)
    backend.failure = "libvirt is away"
    assert results(actor.undo(Undo(1), OPERATOR)) == ["failed"]
    backend.failure = ""
    assert actor.tick() == []
    clock.advance(5)
    (done,) = actor.tick()
    assert (done.result, done.detail, backend.states[VM]) == ("undone", "on request", "none")


@pytest.mark.parametrize("error", [ActError("libvirt is away"), SourceError("not known"), RuntimeError("a bug")])
def test_one_that_cannot_be_undone_does_not_keep_the_others_from_it(tmp_path, backend, clock, monkeypatch, error):
    actor = make(tmp_path, backend, clock=clock)
    actor.apply(asked(), OPERATOR)
    actor.apply(asked(vm=OTHER), OPERATOR)
    actor = restarted(tmp_path, actor, backend, clock)
    real, asked_for = backend.read, []

    def read(vm):
        asked_for.append(vm)
        if vm == VM:
            raise error
        return real(vm)

    monkeypatch.setattr(backend, "read", read)
    clock.advance(900)
    assert results(actor.start()) == ["failed"]
    assert asked_for == [VM]  # each may take its deadline: the other is tried in the next round
    assert results(actor.tick()) == ["undone"]
    assert backend.states == {VM: "limit 2", OTHER: "none"}
    assert str(error) in actor.in_force()[0].trouble


def test_a_change_that_was_interrupted_and_may_still_come_is_waited_for(tmp_path, backend, clock, monkeypatch):
    """libvirt carries out what a killed virsh asked for, once another job on the VM has ended."""
    backend.settles_s = 40.0

    def killed(_vm, _state):
        raise ActError("virsh schedinfo: no answer within 10 s")

    actor = make(tmp_path, backend, clock=clock)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "write", killed)
        with pytest.raises(ActError, match=r"what was changed: .* was interrupted and may still take effect"):
            actor.apply(asked(), OPERATOR)
    clock.advance(30)
    assert results(actor.tick()) == ["failed"]
    backend.states[VM] = "limit 2"  # libvirt got to it
    clock.advance(5)
    assert results(actor.tick()) == ["undone"]
    assert (backend.states[VM], actor.in_force()) == ("none", ())


def test_after_that_wait_an_interrupted_change_is_forgotten(tmp_path, backend, clock, monkeypatch):
    backend.settles_s = 40.0
    journal = Journal(tmp_path)
    with monkeypatch.context() as patch:
        killed_at(patch, FakeBackend, "write")
        with pytest.raises(KilledError):
            make(tmp_path, backend, clock=clock, journal=journal).apply(asked(), OPERATOR)
    journal.close()
    again = make(tmp_path, backend, clock=clock)
    assert results(again.start()) == ["failed"]
    clock.advance(39)
    assert results(again.tick()) == ["failed"]
    clock.advance(5)
    assert results(again.tick()) == ["undone"]
    assert again.in_force() == ()


def test_every_refusal_is_reported_of_but_nobody_can_push_other_lines_out_by_them(tmp_path, backend, clock):
    actor = make(tmp_path, backend, clock=clock)

    def refuse():
        with pytest.raises(RefusedError):
            actor.undo(Undo(7), OPERATOR)

    backend.failure = "libvirt is away"
    with pytest.raises(ActError):
        actor.apply(asked(), OPERATOR)
    for _ in range(1000):
        refuse()
    lines = audit(tmp_path)
    assert {line["result"] for line in lines} == {"refused"}
    assert (lines[0]["why"], lines[0]["vm"], lines[1]["event"]) == ("libvirt is away", VM, "undo")
    assert len(lines) == 50
    clock.advance(10)
    refuse()
    assert audit(tmp_path)[-1]["why"].endswith("; and 951 more refusals before it")


def test_an_allowance_fills_up_with_time_and_no_further():
    allowance = Allowance(burst=2, every_s=10.0)
    assert [allowance.take(0) for _ in range(3)] == [True, True, False]
    assert [allowance.take(19 * 10**9) for _ in range(2)] == [True, False]
    assert [allowance.take(10**12) for _ in range(3)] == [True, True, False]


def test_a_limit_that_fails_half_way_is_undone(tmp_path, backend, monkeypatch):
    actor = make(tmp_path, backend)
    real = backend.write

    def half(vm, state):
        real(vm, state)
        if state != "none":
            raise ActError("the second half failed")

    monkeypatch.setattr(backend, "write", half)
    with pytest.raises(ActError, match="the second half failed; what was changed: undone"):
        actor.apply(asked(), OPERATOR)
    assert (backend.states[VM], actor.in_force()) == ("none", ())


@pytest.mark.parametrize("kind", [Journal, Audit])
def test_a_disk_that_takes_nothing_lets_nothing_be_changed(tmp_path, backend, monkeypatch, kind):
    actor = make(tmp_path, backend)

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kind, "put" if kind is Journal else "write", full)
    with pytest.raises(ActError, match=r"nothing was changed: act\.state_dir cannot be written: No space left"):
        actor.apply(asked(), OPERATOR)
    assert (backend.writes, actor.in_force()) == ([], ())


# --- kills: a new process with the same folder and the same VMs ---


def steps():
    """Where a process can be killed between being asked and having undone it."""
    return [
        ("the record is written", Journal, "put", 1),
        ("it is said", Audit, "write", 1),
        ("the VM is limited", FakeBackend, "write", 1),
        ("the record says so", Journal, "put", 2),
        ("that is said", Audit, "write", 2),
        ("the VM is set back", FakeBackend, "write", 2),
        ("the record is forgotten", Journal, "end", 1),
        ("the end is said", Audit, "write", 3),
    ]


@pytest.mark.parametrize("step", steps(), ids=lambda step: f"before {step[0]}")
def test_after_a_kill_at_any_step_the_vm_is_as_it_was_once_its_time_is_over(tmp_path, clock, monkeypatch, step):
    assert survives(tmp_path, clock, monkeypatch, step)


def survives(folder, clock, monkeypatch, step):
    """Run until the kill, then a new process beyond the end; returns whether the VM is as it was."""
    _, target, name, nth = step
    vms = FakeBackend()
    journal = Journal(folder)
    actor = make(folder, vms, clock=clock, journal=journal)

    def live():
        actor.apply(asked(), OPERATOR)
        clock.advance(900)
        actor.tick()

    with monkeypatch.context() as patch:
        killed_at(patch, target, name, nth)
        with pytest.raises(KilledError):
            live()
    journal.close()
    clock.advance(900)
    again = make(folder, FakeBackend(vms.states), clock=clock)
    again.start()
    again.journal.close()
    return vms.states[VM] == "none" and again.in_force() == ()


def test_the_kills_catch_a_service_that_changes_first_and_records_then(tmp_path, clock, monkeypatch):
    """The mutant: the limit is set before the record is on the disk."""
    real = actor_module.Actor._carry_out

    def hasty(self, record, backend, peer, command):
        backend.write(record.vm, record.after)
        return real(self, record, backend, peer, command)

    monkeypatch.setattr(actor_module.Actor, "_carry_out", hasty)
    assert not survives(tmp_path, clock, monkeypatch, steps()[0])


def events_until_the_change(folder, backend, monkeypatch):
    """Return what happens on the disk before the VM is changed: names of synced files, and renames."""
    seen = []
    real_sync, real_write = os.fsync, backend.write
    monkeypatch.setattr(
        os, "fsync", lambda fd: (seen.append(str(Path(f"/proc/self/fd/{fd}").readlink())), real_sync(fd))
    )
    monkeypatch.setattr(backend, "write", lambda *state: (seen.append("CHANGE"), real_write(*state)))
    make(folder, backend).apply(asked(), OPERATOR)
    return seen[: seen.index("CHANGE")]


def is_on_the_disk(events, folder):
    """Whether the journal's content, its name and the audit line were synced."""
    content = any(f"{folder}/.journal.json." in event for event in events)
    return content and str(folder) in events and f"{folder}/audit.jsonl" in events


def test_the_record_is_synced_to_the_disk_before_the_change(tmp_path, backend, monkeypatch):
    assert is_on_the_disk(events_until_the_change(tmp_path, backend, monkeypatch), tmp_path)


def test_that_notices_a_journal_that_does_not_sync(tmp_path, backend, monkeypatch):
    """The mutant: the file is written, but not synced."""

    class Lazy:
        def __init__(self, path, *, mode):
            self.path = path

        def __enter__(self):
            self.file = self.path.open("wb")
            return self.file

        def __exit__(self, *_error):
            self.file.close()

    monkeypatch.setattr(durable, "replacing", Lazy)
    assert not is_on_the_disk(events_until_the_change(tmp_path, backend, monkeypatch), tmp_path)


def restarted(folder, actor, backend, clock, **changes):
    actor.journal.close()
    return make(folder, backend, clock=clock, **changes)


def test_what_is_not_over_stays_in_force_over_a_kill_and_ends_in_time(tmp_path, backend, clock):
    actor = make(tmp_path, backend, clock=clock)
    actor.apply(asked(), OPERATOR)
    clock.advance(600)
    again = restarted(tmp_path, actor, backend, clock)
    assert again.start() == []
    assert (again.in_force()[0].left_s, backend.states[VM]) == (300.0, "limit 2")
    clock.advance(300)
    assert results(again.tick()) == ["undone"]


def test_what_was_changed_by_others_while_it_was_dead_is_left_alone(tmp_path, backend, clock):
    actor = make(tmp_path, backend, clock=clock)
    actor.apply(asked(), OPERATOR)
    backend.states[VM] = "limit 7"
    clock.advance(1000)
    assert results(restarted(tmp_path, actor, backend, clock).start()) == ["left_alone"]
    assert backend.states[VM] == "limit 7"


def test_after_a_reboot_whatever_is_left_is_over(tmp_path, backend, clock):
    actor = make(tmp_path, backend, clock=clock)
    actor.apply(asked(), OPERATOR)
    clock.boot = 10
    again = restarted(tmp_path, actor, backend, clock, boot_id="boot-2")
    assert again.in_force()[0].left_s == 0.0
    assert results(again.start()) == ["undone"]


# --- the files ---


def test_two_services_do_not_share_a_folder(tmp_path):
    held = Journal(tmp_path)
    with pytest.raises(UnavailableError, match="another `whitepanda act run` has"):
        Journal(tmp_path)
    held.close()
    Journal(tmp_path).close()


@pytest.mark.parametrize(("text", "said"), [("{", "damaged"), ('{"format": 9}', "has format 9, this version knows 1")])
def test_a_journal_that_cannot_be_read_is_not_passed_over(tmp_path, text, said):
    (tmp_path / "journal.json").write_text(text)
    for _ in range(2):  # and the folder is not held after that
        with pytest.raises(UnavailableError, match=said):
            Journal(tmp_path)


def test_both_files_are_for_their_owner_only_and_the_audit_log_is_bounded(tmp_path, backend):
    actor = make(tmp_path, backend)
    actor.apply(asked(), OPERATOR)
    for name in ("journal.json", "audit.jsonl"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    before = (tmp_path / "audit.jsonl").read_text()
    small = Audit(tmp_path, max_bytes=100)
    actor_of_small = make(tmp_path, backend, journal=actor.journal)
    small.write(actor_module.Line(event="undo", number=1, action="cap-cpu", vm=VM, result="undone"))
    assert (tmp_path / "audit.jsonl.1").read_text() == before
    assert len(audit(tmp_path)) == 1
    assert actor_of_small.in_force()
