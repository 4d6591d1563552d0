"""Acknowledge, note and silence over real mTLS gRPC and over HTTP: who may, as whom it is kept, and what is refused."""

import asyncio
import contextlib
import http.client
import json
from types import SimpleNamespace

import pytest

from central import pki
from central.api.silences import get_timeline
from central.authorisation.roles import Access
from central.facts.store import FactStore
from central.incidents.store import IncidentStore
from central.validation.facts import FactRow
from central.vms.listing import VmEntry, VmList
from central.web import metrics
from central.web.server import HttpApi
from tests.support.spoken_streams import https
from tests.unit.central.api.test_fleet_api import Served
from tests.unit.central.incidents.test_incidents import GAP, row
from whitepanda.common.tls import TlsFiles
from whitepanda.v1 import agent_pb2
from whitepanda.v1 import fleet_pb2 as pb

S = 10**9
NOW = 77  # of the fleet behind `served`
DAY = 86_400 * S


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    pki.make_ca(folder)
    made = {"central": pki.issue(folder, "central", server=True, addresses=["127.0.0.1"])}
    return made | {name: pki.issue(folder, name) for name in ("operator", "reader", "host-1")}


@pytest.fixture
async def served(tmp_path, certificates):
    found = Served(tmp_path, certificates)
    access = Access(("operator", "reader"), responders=("operator",))
    found.access = access
    found.door._access = access
    await found.start()
    found.written = []
    found.fleet.on_written = lambda: found.written.append(1)
    found.incidents.take([row(1, NOW)], gap_ns=GAP, oldest_unix_ns=0)
    yield found
    await found.stop()


def silence(**changes) -> pb.CreateSilenceRequest:
    return pb.CreateSilenceRequest(**{"host": "h1", "reason": "moving it", "end_unix_ns": NOW + DAY, **changes})


WRITES = {
    "AcknowledgeIncident": pb.AcknowledgeIncidentRequest(id=1, reason="on it"),
    "AddIncidentNote": pb.AddIncidentNoteRequest(id=1, text="disk is new"),
    "CreateSilence": silence(),
    "EndSilence": pb.EndSilenceRequest(id=1),
}


@pytest.mark.parametrize("method", WRITES)
async def test_only_responders_change_anything(served, method):
    code, details = await served.refusal(method, WRITES[method], "reader")
    assert code == "PERMISSION_DENIED"
    assert details == (
        "only responders may change anything; none of this certificate's names (reader) is in central.responders"
    )
    code, details = await served.refusal(method, WRITES[method], "host-1")
    assert code == "PERMISSION_DENIED" and "only operators may ask" in details
    assert not served.written
    assert not (await served.ask("ListAudit", pb.ListAuditRequest(), "reader")).entries


async def test_what_a_responder_does_is_shown_and_kept_with_its_name(served):
    taken = await served.ask("AcknowledgeIncident", WRITES["AcknowledgeIncident"])
    assert (taken.acknowledged_by, taken.acknowledgement, taken.open) == ("operator", "on it", True)
    noted = await served.ask("AddIncidentNote", pb.AddIncidentNoteRequest(id=1, text=" disk is new ", operator="anna"))
    assert (noted.by, noted.text) == ("operator as anna", "disk is new")
    made = await served.ask("CreateSilence", silence(operator="operator"))
    assert (made.id, made.by, made.host, made.in_force, made.end_unix_ns) == (1, "operator", "h1", True, NOW + DAY)
    detail = await served.ask("GetIncident", pb.GetIncidentRequest(id=1), "reader")
    assert (detail.incident.silenced_by, [n.text for n in detail.notes]) == (1, ["disk is new"])
    (listed,) = (await served.ask("ListIncidents", pb.ListIncidentsRequest())).incidents
    assert (listed.silenced_by, listed.acknowledged_by) == (1, "operator")
    (shown,) = (await served.ask("GetOverview", pb.GetOverviewRequest(since_unix_ns=1))).open
    assert shown.silenced_by == 1
    status = await served.ask("GetFleetStatus", pb.GetFleetStatusRequest())
    assert (status.open_incidents, status.silenced_incidents, status.acknowledged_incidents) == (1, 1, 0)
    assert list(status.quiet_victims) == ["uuid-web"]
    assert (status.silenced_hosts, status.silenced_vms) == (["h1"], [])
    ended = await served.ask("EndSilence", pb.EndSilenceRequest(id=1))
    assert (ended.in_force, ended.ended_by) == (False, "operator")
    assert len(served.written) == 4, "webhooks look at once"
    entries = (await served.ask("ListAudit", pb.ListAuditRequest())).entries
    assert [(pb.AuditAction.Name(e.action).removeprefix("AUDIT_ACTION_"), e.by, e.text) for e in entries] == [
        ("END_SILENCE", "operator", "host h1"),
        ("SILENCE", "operator", "host h1: moving it"),
        ("NOTE", "operator as anna", "disk is new"),
        ("ACKNOWLEDGE", "operator", "on it"),
    ]
    timeline = await served.ask("GetIncidentTimeline", pb.GetIncidentTimelineRequest(id=1))
    assert [pb.ChangeKind.Name(c.kind).removeprefix("CHANGE_KIND_") for c in timeline.changes][:2] == [
        "ACKNOWLEDGED", "NOTED",
    ]  # fmt: skip


async def test_a_remedy_and_a_clock_that_was_set_are_on_the_timeline(tmp_path):
    with contextlib.closing(IncidentStore("", tmp_path)) as database:
        facts, at = FactStore(database), 2000 * S
        database.take([row(1, at)], gap_ns=GAP, oldest_unix_ns=0)

        def said(second, kind=agent_pb2.VmFacts, vm="", **more):
            named = {"vm": vm} if vm else {}
            payload = kind(unix_ns=second * S, **named, **more).SerializeToString()
            return FactRow("h1", vm, second * S, payload)

        facts.take([
            said(1000, vm="u1", name="scan-1"),
            said(2030, vm="u1", name="scan-1", limits=["limit-cache 4 ways: incident 1"]),
            said(2040, agent_pb2.HostFacts, clock_set_unix_ns=2040 * S, clock_step_s=2.5),
            said(2090, vm="u1", name="scan-1"),
        ])  # fmt: skip

        async def ask(call, *given, **more):
            return call(*given, **more)

        history = SimpleNamespace(ask=ask, store=database)
        context = SimpleNamespace(history=history, facts=facts, clock_unix_ns=lambda: 3000 * S)
        timeline = await get_timeline(context, pb.GetIncidentTimelineRequest(id=1))
    kinds = [(one.unix_ns // S, pb.ChangeKind.Name(one.kind), one.name) for one in timeline.changes]
    assert kinds == [
        (2030, "CHANGE_KIND_REMEDY_BEGUN", "scan-1"),
        (2040, "CHANGE_KIND_CLOCK_SET", ""),
        (2090, "CHANGE_KIND_REMEDY_ENDED", "scan-1"),
    ]


async def test_the_status_has_the_vms_that_silences_match_once_it_is_known_who_runs(served):
    context = served.fleet
    context.listed = VmList([VmEntry(f"u{n}", f"web-{n}", "", "web", f"h{n}", "", 1.0, 1.0, 0, "") for n in range(3)])
    await served.ask("CreateSilence", silence(host="", job="web"))
    ended = await served.ask("CreateSilence", silence())
    await served.ask("EndSilence", pb.EndSilenceRequest(id=ended.id))
    status = await served.ask("GetFleetStatus", pb.GetFleetStatusRequest())
    assert (status.silenced_vms, status.silenced_hosts) == (["u0", "u1", "u2"], [])
    lines = metrics.render(status).decode().splitlines()
    assert {line for line in lines if line.startswith("whitepanda_central_quiet_vm{")} == {
        f'whitepanda_central_quiet_vm{{vm="{vm}"}} 1.0'
        for vm in ("u0", "u1", "u2", "uuid-web")  # the last suffers, all victims are of job web
    }
    # A central that is only scraped finds out who runs, because a silence is in force.
    assert context.refreshing is not None


async def test_lists_come_in_pages(served):
    for n in range(5):
        await served.ask("CreateSilence", silence(key=f"k{n}", reason=f"r{n}"))
    for method, field, request in (
        ("ListSilences", "silences", pb.ListSilencesRequest(page_size=2, current_only=True)),
        ("ListAudit", "entries", pb.ListAuditRequest(page_size=2)),
    ):
        found, sizes = [], []
        while True:
            page = await served.ask(method, request)
            sizes.append(len(getattr(page, field)))
            found += [one.id for one in getattr(page, field)]
            request.page_token = page.next_page_token
            if not page.next_page_token:
                break
        assert (found, sizes) == ([5, 4, 3, 2, 1], [2, 2, 1])


REFUSED = [
    ("AcknowledgeIncident", {"id": 1}, "reason is missing: write one line for who reads it later"),
    ("AcknowledgeIncident", {"id": 1, "reason": "  "}, "reason is missing: write one line for who reads it later"),
    ("AcknowledgeIncident", {"id": 1, "reason": "a\nb"}, "reason must have no control characters (value 'a\\nb')"),
    ("AcknowledgeIncident", {"id": 9, "reason": "x"}, "no incident 9; it was forgotten, became part of an earlier one"),
    ("AddIncidentNote", {"id": 1}, "text is missing: write one line for who reads it later"),
    ("AddIncidentNote", {"id": 1, "text": "x" * 1001}, "text must be at most 1,000 characters (value 'xxx"),
    ("AddIncidentNote", {"id": 9, "text": "x"}, "no incident 9; it was forgotten, became part of an earlier one"),
    ("CreateSilence", {"host": ""}, "host, vm, job and project are missing: give at least one"),
    (
        "CreateSilence",
        {"end_unix_ns": 0},
        "end_unix_ns is missing: a silence must end, at most 30 days after it starts",
    ),
    ("CreateSilence", {"end_unix_ns": 76}, "end_unix_ns must be after the start and at most 30 days later (value 76,"),
    (
        "CreateSilence",
        {"end_unix_ns": 31 * DAY},
        "end_unix_ns must be after the start and at most 30 days later (value",
    ),
    ("CreateSilence", {"start_unix_ns": 2 * DAY}, "end_unix_ns must be after the start and at most 30 days later"),
    ("CreateSilence", {"reason": ""}, "reason is missing: write one line for who reads it later"),
    ("CreateSilence", {"host": "h11"}, "no host 'h11' ever connected to this central"),
    ("CreateSilence", {"vm": "no-such-vm"}, "no VM 'no-such-vm' is known here"),
    ("CreateSilence", {"job": "webb"}, "no job 'webb' is known here"),
    (
        "CreateSilence",
        {"project": "shop"},
        "no project 'shop' is known here: no VM that runs is of it, and none in an incident",
    ),
    ("EndSilence", {"id": 9}, "no silence 9; it was over long ago, or never was"),
    ("GetIncidentTimeline", {"id": 9}, "no incident 9; it was forgotten, became part of an earlier one"),
    ("ListAudit", {"page_size": 1001}, "page_size must be at most 1000 (value 1001)"),
    ("ListSilences", {"page_token": "x"}, "page_token is not one of this request's pages (value 'x')"),
]


@pytest.mark.parametrize(("method", "fields", "said"), REFUSED)
async def test_bad_input_is_refused_with_one_line(served, method, fields, said):
    request = silence(**fields) if method == "CreateSilence" else getattr(pb, f"{method}Request")(**fields)
    code, details = await served.refusal(method, request)
    assert code in ("INVALID_ARGUMENT", "NOT_FOUND")
    assert details.startswith(said) and "\n" not in details
    assert not (await served.ask("ListAudit", pb.ListAuditRequest())).entries


async def test_a_silence_that_began_before_or_has_another_ones_key_is_refused(served):
    served.fleet.clock_unix_ns = lambda: DAY
    code, details = await served.refusal("CreateSilence", silence(start_unix_ns=DAY - 61 * S, end_unix_ns=2 * DAY))
    assert code == "INVALID_ARGUMENT" and details.endswith("61 s ago)")
    made = await served.ask("CreateSilence", silence(start_unix_ns=DAY - 59 * S, end_unix_ns=2 * DAY, key="k"))
    assert made.start_unix_ns == DAY, "a clock may be wrong by a minute"
    assert await served.ask("CreateSilence", silence(end_unix_ns=2 * DAY, key="k")) == made
    code, details = await served.refusal("CreateSilence", silence(job="web", end_unix_ns=2 * DAY, key="k"))
    assert (code, details) == ("INVALID_ARGUMENT", "key is another silence's (value 'k'); make a new one")


async def test_a_vm_is_silenced_by_its_uuid_whatever_is_given_and_a_name_of_several_is_refused(served):
    names = served.registry.vm_names
    names.note([("h1", "uuid-web", "web-1"), ("h1", "u2", "twin"), ("h2", "u3", "twin")])
    made = await served.ask("CreateSilence", silence(host="", vm="web-1"))
    assert (made.vm, made.name) == ("uuid-web", "web-1")
    code, details = await served.refusal("CreateSilence", silence(vm="twin"))
    assert (code, details) == ("INVALID_ARGUMENT", "2 VMs are named 'twin': u2, u3; give the UUID")


async def test_notes_beyond_the_bound_are_refused(served, monkeypatch):
    monkeypatch.setattr("central.incidents.people.MAX_NOTES", 0)
    code, details = await served.refusal("AddIncidentNote", WRITES["AddIncidentNote"])
    assert (code, details) == ("RESOURCE_EXHAUSTED", "incident 1 has 0 notes, and more are not kept; write elsewhere")


# -- HTTP


@pytest.fixture
async def local(served):
    api = HttpApi(served.fleet, "127.0.0.1:0", TlsFiles(), served.access)
    await api.start()
    yield api
    await api.stop()


def posted(connection, path, body=b"{}", **headers):
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


async def post(api, path, body=b"{}", **headers):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
    return await asyncio.to_thread(posted, connection, path, raw, **headers)


async def test_over_http_on_the_machine_itself_people_say_who_they_are_and_nobody_verified_it(served, local):
    path = "/v1/incidents/1/acknowledgement"
    status, found = await post(local, path, {"reason": "on it"})
    assert (status, found["field"]) == (400, "operator")
    assert found["error"] == "operator is missing: say who you are, as this connection has no certificate"
    status, found = await post(local, path, {"reason": "on it", "operator": "anna"})
    assert (status, found["acknowledged_by"]) == (200, "anna (unverified)")
    body = {"host": "h1", "reason": "moving it", "end_unix_ns": NOW + DAY, "operator": "anna"}
    status, found = await post(local, "/v1/silences", body)
    assert (status, found["id"], found["by"], found["in_force"]) == (200, 1, "anna (unverified)", True)
    status, found = await post(local, "/v1/silences/1/end", {"operator": "bob"})
    assert (status, found["ended_by"]) == (200, "bob (unverified)")
    status, found = await post(local, "/v1/incidents/1/notes", {"text": "x", "operator": "bob"})
    assert (status, found["by"]) == (200, "bob (unverified)")


@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        (b"reason=x", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "the body must be JSON"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "the body must be JSON"),
        (b"{}", {"Origin": "https://evil.example"}, 403, "a page of 'https://evil.example' may change nothing here"),
        (b"{}", {"Origin": "null"}, 403, "a page of 'null' may change nothing here"),
        (b"{}", {"Host": "evil.example"}, 400, "this server does not go by that name"),
        (b"{", {}, 400, "the body must be a JSON object of texts, integers and true or false: "),
        (b"[1]", {}, 400, "the body must be a JSON object of texts, integers and true or false: "),
        (b'{"reason": 7}', {}, 400, "reason must be a text (value '7')"),
        (b'{"why": "x"}', {}, 400, "no parameter 'why' here; known: id, reason, operator"),
        (b'{"id": 2}', {}, 400, "id is given twice (values '2', '1')"),
        (b'"' + b"x" * 70_000 + b'"', {}, 413, "the body is longer than 65,536 bytes"),
    ],
)
async def test_a_post_that_is_no_json_of_a_page_of_central_is_refused(served, local, body, headers, status, said):
    found, answer = await post(local, "/v1/incidents/1/acknowledgement", body, **headers)
    assert found == status and answer["error"].startswith(said)
    assert not served.incidents.audit(limit=1, before_id=9)


async def test_central_own_page_may_post(served, local):
    body = {"reason": "x", "operator": "anna"}
    origin = f"http://127.0.0.1:{local.port}"
    assert (await post(local, "/v1/incidents/1/acknowledgement", body, Origin=origin))[0] == 200


async def test_methods_that_a_path_does_not_have(served, local):
    def allowed(method, path):
        connection = http.client.HTTPConnection("127.0.0.1", local.port, timeout=20)
        connection.request(method, path)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.getheader("Allow")

    for asked, found in {
        ("PUT", "/v1/silences"): (405, "GET, HEAD, OPTIONS, POST"),
        ("GET", "/v1/silences/1/end"): (405, "OPTIONS, POST"),
        ("POST", "/v1/incidents"): (405, "GET, HEAD, OPTIONS"),
        ("OPTIONS", "/v1/silences/1/end"): (204, "OPTIONS, POST"),
    }.items():
        assert await asyncio.to_thread(allowed, *asked) == found


async def test_beyond_loopback_the_certificate_counts_over_http_too(served, certificates, monkeypatch):
    monkeypatch.setattr("central.web.server.is_loopback", lambda _host: False)
    api = HttpApi(served.fleet, "127.0.0.1:0", certificates["central"], served.access)
    await api.start()
    path, body = "/v1/incidents/1/acknowledgement", b'{"reason": "on it", "operator": "anna"}'

    class Central:
        class _http:  # noqa: N801 - as the daemon has it
            port = api.port

    async def as_(name):
        return await asyncio.to_thread(posted, https(Central, certificates[name]), path, body)

    try:
        assert (await as_("host-1"))[0] == 403
        status, found = await as_("reader")
        assert status == 403 and found["error"].startswith("only responders may change anything")
        status, found = await as_("operator")
        assert (status, found["acknowledged_by"]) == (200, "operator as anna")
    finally:
        await api.stop()
