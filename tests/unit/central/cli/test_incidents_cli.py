"""`whitepanda incidents ack, note, silence, audit`: what central is asked, and what people and programs see."""

import contextlib
import json
import time

import pytest
from typer.testing import CliRunner

from central.cli import incidents as incidents_cli
from whitepanda.common.errors import InputError
from whitepanda.v1 import fleet_pb2 as pb

NS = 10**9
NOW = 1_800_000_000 * NS  # 2027-01-15 08:00


@pytest.fixture
def central(monkeypatch):
    """What central answers, by method; `asked` has its requests."""
    answers, asked = {}, {}

    @contextlib.contextmanager
    def asking(*_arguments):
        def ask(method, request):
            asked[method] = request
            return answers[method]

        yield ask

    monkeypatch.setattr(incidents_cli, "asking", asking)
    monkeypatch.setattr(incidents_cli.console, "width", 200)
    monkeypatch.setattr(time, "time_ns", lambda: NOW)
    answers["asked"] = asked
    return answers


def run(*arguments: str):
    files = ("--central", "h:1", "--ca", "a", "--cert", "b", "--key", "c")
    return CliRunner().invoke(incidents_cli.app, [*arguments, *files], catch_exceptions=False)


def test_an_incident_is_acknowledged(central):
    central["AcknowledgeIncident"] = pb.Incident(
        id=7, acknowledged_by="operator as anna", acknowledgement="on it", acknowledged_unix_ns=NOW
    )
    found = run("ack", "7", "--reason", "on it", "--by", "anna")
    assert found.output == "incident 7: acknowledged by operator as anna at 2027-01-15 08:00:00 UTC: on it\n"
    asked = central["asked"]["AcknowledgeIncident"]
    assert (asked.id, asked.reason, asked.operator) == (7, "on it", "anna")
    assert run("ack", "7").exit_code == 2, "without a reason"


def test_a_note_is_written(central):
    central["AddIncidentNote"] = pb.IncidentNote(by="operator", text="disk is new", unix_ns=NOW)
    assert run("note", "7", "disk is new").output == "incident 7: noted by operator\n"
    asked = central["asked"]["AddIncidentNote"]
    assert (asked.id, asked.text, len(asked.key)) == (7, "disk is new", 32)


def test_a_silence_is_made(central):
    made = pb.Silence(id=3, host="h1", job="scan", end_unix_ns=NOW + 7200 * NS, reason="moving it", by="operator")
    central["CreateSilence"] = made
    found = run("silence", "add", "--host", "h1", "--job", "scan", "--for", "2h", "--reason", "moving it")
    assert found.output == "silence 3 until 2027-01-15 10:00:00 UTC: host h1, job scan\n"
    asked = central["asked"]["CreateSilence"]
    assert (asked.host, asked.job, asked.reason) == ("h1", "scan", "moving it")
    assert (asked.start_unix_ns, asked.end_unix_ns) == (0, NOW + 7200 * NS)
    found = run("silence", "add", "--vm", "u1", "--for", "1.5d", "--in", "30m", "--reason", "x", "--json")
    assert json.loads(found.output)["id"] == 3
    asked = central["asked"]["CreateSilence"]
    assert (asked.start_unix_ns, asked.end_unix_ns) == (NOW + 1800 * NS, NOW + (1800 + 129_600) * NS)


@pytest.mark.parametrize("lasts", ["2", "h", "-2h", "2 h", "2w", "1e3h", ""])
def test_a_time_that_is_none_is_refused(central, lasts):
    with pytest.raises(InputError, match=r"^--for must be a time such as 90m, 2h or 3d \(value '"):
        run("silence", "add", "--host", "h1", f"--for={lasts}", "--reason", "x")
    assert not central["asked"]


def test_a_silence_without_an_end_is_refused(central):
    found = run("silence", "add", "--host", "h1", "--reason", "x")
    assert found.exit_code == 2 and "--for" in found.output and not central["asked"]


@pytest.mark.parametrize("command", [("ack", "x", "--reason", "y"), ("note", "-", "y"), ("silence", "end", "x")])
def test_a_number_that_is_none_is_refused(central, command):
    with pytest.raises(InputError, match=r"^NUMBER must be (an incident|a silence)'s number \(value '.'\); see `"):
        run(*command)


def test_silences_are_listed_and_ended(central):
    first = pb.Silence(
        id=3, host="h1", start_unix_ns=NOW, end_unix_ns=NOW + NS, reason="x", by="operator", in_force=True
    )
    later = pb.Silence(id=4, vm="u1", start_unix_ns=NOW + NS, end_unix_ns=NOW + 2 * NS, reason="y", by="operator")
    over = pb.Silence(id=2, job="scan", start_unix_ns=1, end_unix_ns=2, reason="z", by="anna", ended_by="bob")
    central["ListSilences"] = pb.ListSilencesResponse(silences=[later, first, over])
    lines = run("silence", "list", "--all").output.splitlines()
    assert lines[0].split() == ["NO", "STATE", "MATCHES", "FROM", "(UTC)", "UNTIL", "(UTC)", "WHO", "REASON"]
    assert [line.split()[:2] for line in lines[1:]] == [["4", "later"], ["3", "in"], ["2", "over"]]
    assert "host h1" in lines[2] and lines[3].endswith("z (ended by bob)")
    assert not central["asked"]["ListSilences"].current_only
    run("silence", "list")
    assert central["asked"]["ListSilences"].current_only
    central["EndSilence"] = pb.Silence(id=3, end_unix_ns=NOW)
    assert run("silence", "end", "3").output == "silence 3 is over since 2027-01-15 08:00:00 UTC\n"
    central["ListSilences"] = pb.ListSilencesResponse()
    assert run("silence", "list").output == "no silences\n"


def test_the_audit_is_listed(central):
    central["ListAudit"] = pb.ListAuditResponse(
        entries=[
            pb.AuditEntry(id=2, unix_ns=NOW, by="bob", action=pb.AUDIT_ACTION_END_SILENCE, silence=3, text="host h1"),
            pb.AuditEntry(id=1, unix_ns=NOW, by="anna", action=pb.AUDIT_ACTION_ACKNOWLEDGE, incident=7, text="on it"),
        ]
    )
    _, first, second = run("audit").output.splitlines()
    assert first.split() == ["2027-01-15", "08:00:00", "bob", "end", "silence", "silence", "3", "host", "h1"]
    assert second.split() == ["2027-01-15", "08:00:00", "anna", "acknowledge", "incident", "7", "on", "it"]
    assert [e["action"] for e in json.loads(run("audit", "--json").output)["entries"]] == ["end_silence", "acknowledge"]


def test_people_see_the_state_who_has_it_the_notes_and_what_else_changed(central):
    one = pb.Incident(
        id=7, host="h1", first_unix_ns=NOW, last_unix_ns=NOW, open=True, victims_now=1, silenced_by=3,
        acknowledged_by="anna", acknowledgement="on it", acknowledged_unix_ns=NOW,
    )  # fmt: skip
    central["GetIncident"] = pb.IncidentDetail(incident=one, notes=[pb.IncidentNote(by="bob", text="hm", unix_ns=NOW)])
    change = pb.IncidentChange(unix_ns=NOW, kind=pb.CHANGE_KIND_AGENT_UPGRADED, text="agent 1.0 -> 1.1")
    central["GetIncidentTimeline"] = pb.IncidentTimeline(changes=[change])
    shown = run("show", "7").output
    for part in (
        "kept quiet by silence 3; see `incidents silence list`",
        "acknowledged by anna at 2027-01-15 08:00:00 UTC: on it",
        "2027-01-15 08:00:00 UTC, note of bob: hm",
        "what else changed, from 10 minutes before to 10 minutes after:",
        "2027-01-15 08:00:00 agent 1.0 -> 1.1",
    ):
        assert part in shown.replace("  ", " ")
    found = json.loads(run("show", "7", "--json").output)
    assert found["timeline"]["changes"][0]["kind"] == "agent_upgraded"
    for silenced_by, acknowledged_by, state in ((3, "anna", "silenced"), (0, "anna", "acknowledged"), (0, "", "open")):
        one.silenced_by, one.acknowledged_by = silenced_by, acknowledged_by
        central["ListIncidents"] = pb.ListIncidentsResponse(incidents=[one])
        assert run("list").output.splitlines()[1].split()[2] == state
