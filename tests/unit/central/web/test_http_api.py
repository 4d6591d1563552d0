"""The fleet API as JSON: what gRPC answers, its OpenAPI document, who may ask, and what a wrong request is reported."""

import asyncio
import base64
import http.client
import json
import math
import re
import shutil
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from openapi_spec_validator import validate
from prometheus_client.parser import text_string_to_metric_families

from central.api.admission import Turns
from central.api.context import Parts
from central.api.fleet import Fleet
from central.api.requests import ApiError
from central.authorisation.roles import Access
from central.build.builder import Builder
from central.config import BuildSection
from central.incidents.store import IncidentStore
from central.ingest.sessions import StreamRegistry
from central.journal.writer import Journal
from central.lake.errors import LakeError, SlowError
from central.lake.segments import Lake
from central.pki import describe, issue, make_ca, renew
from central.web.openapi import ROUTES, document, read_request, to_json
from central.web.server import HttpApi
from tests.support.waiting import until
from tests.unit.central.incidents.test_incidents import GAP, NOW, row, trigger
from whitepanda.common.config import is_loopback
from whitepanda.common.errors import UnavailableError
from whitepanda.common.tls import OwnCertificate, TlsFiles
from whitepanda.v1 import agent_pb2, fleet_pb2

S = 10**9


class Served:
    def __init__(self, folder, **parts_of_fleet) -> None:
        self.journal = Journal(folder, replica="r", commit_interval_s=0.001)
        self.store = IncidentStore("", folder)
        lake = Lake(folder / "lake")
        self.builder, self.registry = Builder(BuildSection(), lake), StreamRegistry()
        self.roll_error = self.incidents_error = ""
        self.fleet = Fleet(
            self.journal, self.registry, lake, self.builder, self.store,
            parts=Parts(lambda: self.roll_error, lambda: self.incidents_error), **parts_of_fleet,
        )  # fmt: skip

    async def close(self) -> None:
        await self.journal.close()
        self.store.close()


@pytest.fixture
async def served(tmp_path):
    found = Served(tmp_path)
    yield found
    await found.close()


@pytest.fixture
async def local(served):
    api = HttpApi(served.fleet, "127.0.0.1:0", TlsFiles(), Access(("operator",)))
    await api.start()
    yield api
    await api.stop()


def fetch(port: int, path: str, context: ssl.SSLContext | None = None, method="GET", **headers: str):
    """The status and the JSON of an answer."""
    kind = http.client.HTTPConnection if context is None else http.client.HTTPSConnection
    more = {} if context is None else {"context": context}
    connection = kind("127.0.0.1", port, timeout=20, **more)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text.startswith(b"{") else text.decode()
    finally:
        connection.close()


async def ask_only(api: HttpApi, path: str) -> asyncio.StreamWriter:
    """Ask, and read no answer."""
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return writer


async def get(api: HttpApi, path: str, *arguments, **headers):
    return await asyncio.to_thread(fetch, api.port, path, *arguments, **headers)


def test_the_document_is_valid_and_has_every_method():
    found = document()
    validate(found)
    methods = {route.method for route in ROUTES}
    assert methods == set(fleet_pb2.DESCRIPTOR.services_by_name["Fleet"].methods_by_name)
    assert set(found["paths"]) == {route.path for route in ROUTES}
    parameters = found["paths"]["/v1/incidents"]["get"]["parameters"]
    described = {p["name"]: p.get("description") for p in parameters}
    assert described["suspect_job"] == "only those in which some report suspects this job first"
    number, project = found["paths"]["/v1/incidents/{id}"]["get"]["parameters"]
    assert (number["in"], number["required"], number["schema"]["type"]) == ("path", True, "integer")
    assert (project["name"], project["in"], project["required"]) == ("project", "query", False)
    evidence = found["components"]["schemas"]["TriggerSuspect"]["properties"]
    assert evidence["score"] == {"type": ["number", "null"], "description": "coefficient * usage; NaN if not known"}


async def test_a_question_whose_client_left_while_it_waited_is_not_asked(served, local, monkeypatch):
    asked = []
    monkeypatch.setattr(served.journal, "read_events", lambda **wanted: asked.append(wanted) or [])
    turns = served.fleet.turns = Turns(1, most_waiting=2)
    async with turns.turn():
        for waiting in (1, 2):
            writer = await ask_only(local, "/v1/events")
            await until(lambda waiting=waiting: turns.waiting == waiting)
            writer.close()
        status, said = await get(local, "/v1/events")
        assert (status, said["error"]) == (429, "2 questions wait already; ask again in a while")
        await until(lambda: not local._server.server_state.connections)
    await until(lambda: not turns.waiting)
    assert (await get(local, "/v1/events"))[0] == 200
    assert len(asked) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "path", ["/v1/events", "/v1/incidents", "/v1/vms/x/history", "/v1/host-timeline?host=h", "/v1/job?job=j"]
)
async def test_few_questions_ask_the_databases_at_a_time(served, local, monkeypatch, path):
    go, running = threading.Event(), []

    def hang(*_arguments, **_named):
        running.append(None)
        go.wait()
        return []

    monkeypatch.setattr(served.journal, "read_events", hang)
    for name in ("find", "suspect_jobs", "names"):
        monkeypatch.setattr(served.store, name, hang)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(12))  # threads are not what bounds them
    writers = [await ask_only(local, path) for _ in range(12)]
    try:
        turns = served.fleet.turns
        await until(lambda: turns.waiting == 8)
        assert len(running) == 4
    finally:
        go.set()
        for writer in writers:
            writer.close()


def test_messages_as_json():
    event = agent_pb2.VmEvent(vm="u", behaviour=agent_pb2.BEHAVIOUR_VICTIM, unix_ns=2**63, culprits=["a"])
    found = to_json(event)
    assert (found["behaviour"], found["unix_ns"], found["culprits"]) == ("victim", 2**63, ["a"])
    assert found["degradation"] is None and found["before"] == "unspecified"
    suspect = to_json(trigger(score=math.nan).suspects[0])
    assert (suspect["score"], suspect["coefficient"], suspect["reason"]) == (None, 0.5, "unspecified")


def test_requests_from_parameters():
    route = next(route for route in ROUTES if route.method == "ListEvents")
    found = read_request(route, [("behaviour", "victim"), ("page_size", "7"), ("vm", "x")])
    assert (found.behaviour, found.page_size, found.vm) == (agent_pb2.BEHAVIOUR_VICTIM, 7, "x")
    for name, value, said in (
        ("colour", "red", "no parameter 'colour' here; known: page_size, page_token, host"),
        ("page_size", "-1", "page_size must be an integer from 0 to 1000 (value '-1')"),
        ("page_size", "1001", "page_size must be an integer from 0 to 1000 (value '1001')"),
        ("since_unix_ns", "now", "since_unix_ns must be an integer from 0 to 9223372036854775807"),
        ("behaviour", "odd", "behaviour must be one of unspecified, unknown, steady, inflicting, victim"),
    ):
        with pytest.raises(ApiError) as caught:
            read_request(route, [(name, value)])
        assert str(caught.value).startswith(said)
    with pytest.raises(ApiError, match=r"^vm is given twice \(values 'x', 'y'\)$"):
        read_request(route, [("vm", "x"), ("page_size", "7"), ("vm", "y")])


def test_the_document_reports_the_limit_that_is_kept():
    for route in ROUTES:
        for parameter in document()["paths"][route.path][route.verb.lower()]["parameters"]:
            if parameter["name"] == "page_size":
                assert parameter["schema"] == {"type": "integer", "minimum": 0, "maximum": 1000}
                assert parameter["description"] == "at most 1000; 0 means 100" or route.method == "QuerySeries"


@pytest.mark.parametrize("path", ["/v1/incidents", "/v1/events"])
async def test_parameters_that_contradict_are_refused(local, path):
    status, found = await get(local, f"{path}?host=node1&host=node2")
    assert (status, found["field"], found["problem"]) == (400, "host", "is given twice (values 'node1', 'node2')")
    assert found["error"] == "host is given twice (values 'node1', 'node2')"
    status, found = await get(local, f"{path}?since_unix_ns=5&until_unix_ns=3")
    assert (status, found["field"]) == (400, "since_unix_ns")
    assert (await get(local, f"{path}?since_unix_ns=3&until_unix_ns=3"))[0] == 200
    assert (await get(local, f"{path}?since_unix_ns=3"))[0] == 200


async def test_refusals_of_the_server_itself_have_the_form_of_all_errors(local):
    status, found = await get(local, "/v1/incidents", Host="evil.example")
    assert status == 400
    assert found == {"error": "this server does not go by that name (Host 'evil.example'); use its address"}
    for path in ("/v1/incidents/1/", "/v1/incidents/", "/healthz/"):
        status, found = await get(local, path)
        assert (status, found) == (404, {"error": "nothing is here; /openapi.json lists what there is"})


async def test_incidents_page_by_page_and_one_with_its_evidence(served, local):
    rows = [row(n, NOW + n * 2 * GAP, host=f"h{n % 2}") for n in range(5)]
    served.store.take(rows, gap_ns=GAP, oldest_unix_ns=0)
    seen, token = [], ""
    while True:
        status, page = await get(local, f"/v1/incidents?page_size=2&page_token={token}")
        assert status == 200
        seen += [(i["host"], i["first_unix_ns"]) for i in page["incidents"]]
        token = page["next_page_token"]
        if not token:
            break
    assert seen == [(f"h{n % 2}", NOW + n * 2 * GAP) for n in (4, 3, 2, 1, 0)]
    _, page = await get(local, "/v1/incidents?host=h1&page_size=1")
    (incident,) = page["incidents"]
    status, detail = await get(local, f"/v1/incidents/{incident['id']}")
    assert (status, detail["incident"]) == (200, incident)
    assert detail["reports"][0]["suspects"][0]["score"] == 2.0
    assert detail["reports"][0]["suspects"][1]["score"] is None
    assert (detail["recurrence"]["hosts"], detail["recurrence"]["incidents"]) == (2, 5)
    status, wrong = await get(local, f"/v1/incidents?host=h0&page_token={page['next_page_token']}")
    assert status == 400 and "begin again without it" in wrong["error"]
    _, jobs = await get(local, "/v1/suspect-jobs")
    assert [(j["job"], j["hosts"], j["incidents"]) for j in jobs["jobs"]] == [("scan", 2, 5)]
    end = NOW + 9 * GAP
    status, history = await get(
        local, f"/v1/vms/uuid-web/history?since_unix_ns={NOW}&until_unix_ns={end}&max_windows=5"
    )
    assert (status, len(history["incidents"]), history["windows"], history["events"]) == (200, 5, [], [])


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/v1/incidents/77", 404, "no incident 77; it was forgotten"),
        ("/v1/incidents/x", 400, "id must be an integer"),
        ("/v1/incidents?page_size=1001", 400, "page_size must be an integer from 0 to 1000 (value '1001')"),
        ("/v1/incidents?page_token=x", 400, "page_token is not one of this request's pages"),
        ("/v1/hosts?colour=red", 400, "no parameter 'colour' here; known: page_size, page_token"),
        ("/v1/vms/u/history?max_windows=10001", 400, "max_windows must be an integer from 0 to 10000 (value '10001')"),
        ("/v1/vms/u/history?since_unix_ns=1&until_unix_ns=86400000000002", 400, "until_unix_ns must be after"),
        ("/v1/vms/u/history", 404, "nothing is known of VM 'u' in this time; new windows appear after"),
        ("/v1/events?host=nohost", 404, "no host 'nohost' ever connected to this central"),
        ("/v1/events?vm=nope", 404, "no VM 'nope' is known here"),
        ("/v1/suspect-jobs?job=nosuch", 404, "no job 'nosuch' is known here: no host runs it"),
        ("/v1/nothing", 404, "nothing is here; /openapi.json lists what there is"),
    ],
)
async def test_a_wrong_request_is_reported_in_one_line(local, path, status, said):
    found, answer = await get(local, path)
    assert found == status
    assert answer["error"].startswith(said)
    assert "\n" not in answer["error"]


async def test_a_vms_history_is_found_by_a_name_that_only_one_has(served, local):
    served.store.take([row(1, NOW)], gap_ns=GAP, oldest_unix_ns=0)
    times = f"since_unix_ns={NOW}&until_unix_ns={NOW + GAP}"
    served.registry.vm_names.note([("h1", "uuid-web", "shop")])
    status, history = await get(local, f"/v1/vms/shop/history?{times}")
    assert (status, history["vm"], history["name"], len(history["incidents"])) == (200, "uuid-web", "shop", 1)
    served.registry.vm_names.note([("h", "uuid-2", "shop")])
    status, answer = await get(local, f"/v1/vms/shop/history?{times}")
    assert (status, answer["field"]) == (400, "vm")
    assert answer["error"].startswith("2 VMs are named 'shop': uuid-web, uuid-2")
    assert (await get(local, f"/v1/vms/uuid-web/history?{times}"))[0] == 200
    status, answer = await get(local, f"/v1/vms/nosuch/history?{times}")
    assert status == 404
    assert answer["error"].endswith("; a VM that sends none now is found by its UUID only")


async def test_a_vm_that_two_hosts_claim_is_shown_with_both(served, local):
    served.store.take([row(1, NOW)], gap_ns=GAP, oldest_unix_ns=0)
    path = f"/v1/vms/uuid-web/history?since_unix_ns={NOW}&until_unix_ns={NOW + GAP}"
    note = served.registry.vm_names.note
    note([("bad", "uuid-web", "evil")])
    assert (await get(local, path))[1]["name"] == "web-1", "of the host that sent something in this time"
    served.store.take([row(2, NOW, host="bad")], gap_ns=GAP, oldest_unix_ns=0)
    assert (await get(local, path))[1]["name"] == "evil on bad, web-1 on h1"
    note([("h1", "uuid-web", "shop"), ("bad", "shop", "x")])
    assert (await get(local, path))[1]["name"] == "evil on bad, shop on h1"
    status, answer = await get(local, path.replace("uuid-web", "shop"))
    assert (status, answer["field"]) == (400, "vm")


async def test_all_routes_answer_on_loopback(local):
    for route in (route for route in ROUTES if route.verb == "GET"):
        path = route.path.replace("{id}", "1").replace("{vm}", "u")
        status, answer = await get(local, path)
        refused = {
            "GetIncident": 404,
            "GetIncidentTimeline": 404,
            "GetVmHistory": 404,
            "RankHosts": 400,
            "PlanObservation": 400,
            "CompareSides": 400,
            "GetJob": 400,
            "GetHostTimeline": 400,
            "GetFacts": 400,
            "QuerySeries": 400,
            "TopVms": 400,
            "Search": 400,
        }
        assert status == {**refused, "PredictRuntime": 400}.get(route.method, 200), answer
    status, found = await get(local, "/openapi.json")
    assert status == 200 and found == document()
    assert await get(local, "/healthz") == (200, {"status": "serving"})


async def ask(api: HttpApi, method: str, path: str):
    """The status, the headers and the bytes of an answer."""

    def fetched():
        connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    return await asyncio.to_thread(fetched)


@pytest.mark.parametrize("path", ["/v1/hosts", "/v1/incidents/1", "/openapi.json", "/healthz", "/metrics", "/"])
async def test_methods_other_than_get(local, path):
    for method in ("POST", "PUT", "DELETE", "PATCH", "TRACE", "ODD"):
        status, headers, text = await ask(local, method, path)
        assert (status, headers["Allow"]) == (405, "GET, HEAD, OPTIONS"), method
        assert json.loads(text) == {"error": f"{method} is not known here; known: GET, HEAD, OPTIONS"}
    status, headers, text = await ask(local, "OPTIONS", path)
    assert (status, headers["Allow"], text) == (204, "GET, HEAD, OPTIONS", b"")
    status, headers, _ = await ask(local, "GET", path)
    status_of_head, headers_of_head, text = await ask(local, "HEAD", path)
    assert (status_of_head, text) == (status, b"")
    assert headers_of_head["Content-Type"] == headers["Content-Type"]
    assert (await ask(local, "OPTIONS", "/v1/nothing"))[0] == 404


#: The largest of each kind that is answered, and the next one.
LAST_TIME = 2**63 - 1


@pytest.mark.parametrize("path", ["/v1/incidents", "/v1/events", "/v1/overview"])
@pytest.mark.parametrize("name", ["since_unix_ns", "until_unix_ns"])
async def test_times_that_no_clock_shows_are_refused(local, path, name):
    if name == "until_unix_ns" and path == "/v1/overview":
        name = "since_unix_ns"
    assert (await get(local, f"{path}?{name}={LAST_TIME}"))[0] == 200
    for value in (LAST_TIME + 1, 9999999999999999999, 2**64 - 1):
        status, answer = await get(local, f"{path}?{name}={value}")
        assert status == 400
        assert answer["error"] == f"{name} must be an integer from 0 to {LAST_TIME} (value '{value}')"


async def test_requests_by_grpc_have_the_same_limits(served):
    fleet = served.fleet
    for values, said in (
        ({"since_unix_ns": LAST_TIME + 1}, f"since_unix_ns must be at most {LAST_TIME} (value {LAST_TIME + 1})"),
        ({"host": "a\0"}, r"host must have no control characters (value 'a\x00')"),
        ({"vm": "a" * 513}, f"vm must be at most 512 characters (value '{'a' * 80}', 513)"),
    ):
        with pytest.raises(ApiError) as caught:
            await fleet.answer("ListIncidents", fleet_pb2.ListIncidentsRequest(**values))
        assert (caught.value.code, str(caught.value)) == (grpc.StatusCode.INVALID_ARGUMENT, said)
        assert caught.value.field == next(iter(values))
    request = fleet_pb2.ListIncidentsRequest(since_unix_ns=LAST_TIME)
    assert len((await fleet.answer("ListIncidents", request)).incidents) == 0


@pytest.mark.parametrize(
    "path",
    [
        "/v1/vms/u/history?since_unix_ns={0}&until_unix_ns={1}",
        "/v1/host-timeline?host=h&since_unix_ns={0}&until_unix_ns={1}&points=7",
        "/v1/comparison?current_since_unix_ns={0}&current_until_unix_ns={1}",
        "/v1/observation-plan?margin_percent=5&since_unix_ns={0}&until_unix_ns={1}",
    ],
)
async def test_the_last_time_of_all_is_no_failure_of_central(local, path):
    for since, end in ((LAST_TIME - 3600 * S, LAST_TIME), (1, 2), (LAST_TIME - 1, LAST_TIME)):
        status, answer = await get(local, path.format(since, end))
        assert status in (400, 404), answer
        assert "\n" not in answer["error"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/incidents?host={}", "host"),
        ("/v1/incidents?suspect_job={}", "suspect_job"),
        ("/v1/incidents?victim_job={}", "victim_job"),
        ("/v1/incidents?vm={}", "vm"),
        ("/v1/events?host={}", "host"),
        ("/v1/coefficients?job={}", "job"),
        ("/v1/suspect-jobs?job={}", "job"),
        ("/v1/vms/{}/history", "vm"),
        ("/v1/comparison?current_hosts={}", "current_hosts"),
        ("/v1/runtime?job=a&platform=b&beside={}", "beside"),
    ],
)
async def test_names_that_nobody_can_have_are_refused(local, path, name):
    for wrong in ("%00", "a%0ab", "a%1bb", "%C2%85", "%E2%80%A8"):
        status, answer = await get(local, path.format(wrong))
        assert status == 400 and answer["error"].startswith(f"{name} must have no control characters (value ")
        assert answer["error"].isprintable()
    status, answer = await get(local, path.format("a" * 513))
    assert status == 400
    assert answer["error"] == f"{name} must be at most 512 characters (value '{'a' * 80}', 513)"
    status, answer = await get(local, path.format("a" * 512))
    assert "must be at most" not in answer.get("error", "")


def token(*values):
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


@pytest.mark.parametrize(
    ("path", "made", "wrong", "found"),
    [
        ("/v1/hosts?", ("hosts", "", "a"), [("hosts", "", "\0"), ("hosts", "b", "a"), ("events", "", 1)], 200),
        (
            "/v1/suspect-jobs?job=a&",
            ("suspect_jobs", "a", "a"),
            [("suspect_jobs", "a", "\0"), ("loadings", "a", "a")],
            200,
        ),
        (
            "/v1/job-statistics?job=a&",
            ("statistics", "('a', '')", 2**63 - 1, 2**63 - 1),
            [("statistics", "('a', '')", *place) for place in ((2**63, 0), (0, 2**63), (-1, 0), (0, -1), ("1", 0))]
            + [("coefficients", "a", 1, 1), ("statistics", "('b', '')", 1, 1)],
            410,
        ),
    ],
)
async def test_page_tokens_that_central_never_made_are_refused(local, path, made, wrong, found):
    for place in wrong:
        status, answer = await get(local, f"{path}page_token={token(*place)}")
        assert (status, answer["field"]) == (400, "page_token")
    assert (await get(local, f"{path}page_token={token(*made)}"))[0] == found


def test_the_document_has_who_may_ask_the_refusals_and_the_limits():
    found = document()
    assert found["components"]["securitySchemes"]["operator"]["type"] == "mutualTLS"
    schemas = {}
    for route in ROUTES:
        operation = found["paths"][route.path][route.verb.lower()]
        assert operation["security"] == [{"operator": []}, {}]
        own = {"304"} if route.verb == "GET" else {"413", "415"}
        assert set(operation["responses"]) >= {"200", "400", "403", "408", "431", "500", "503"} | own
        schemas |= {(route.method, one["name"]): one["schema"] for one in operation["parameters"]}
    assert "410" in found["paths"]["/v1/coefficients"]["get"]["responses"]
    assert "404" in found["paths"]["/v1/incidents/{id}"]["get"]["responses"]
    assert "429" in found["paths"]["/v1/comparison"]["get"]["responses"]
    for (_, name), schema in schemas.items():
        assert schema["type"] == "boolean" or schema.keys() & {"maximum", "maxLength", "maxItems", "enum", "anyOf"}
        if name.endswith("unix_ns"):
            assert schema == {"type": "integer", "minimum": 0, "maximum": LAST_TIME}
    assert schemas["GetVmHistory", "max_windows"]["maximum"] == 10_000
    assert schemas["GetHostTimeline", "points"]["maximum"] == 500
    assert schemas["CompareSides", "new_hosts"]["maxItems"] == 1000
    assert schemas["PredictRuntime", "epsilons"]["items"] == {
        "type": "number", "exclusiveMinimum": 0.0, "maximum": 0.5,
    }  # fmt: skip
    name = schemas["ListIncidents", "host"]
    assert (name["type"], name["maxLength"]) == ("string", 512)
    assert re.search(name["pattern"], "web-\u202e1") and not re.search(name["pattern"], "a\0")


async def test_as_many_hosts_are_taken_as_the_document_says(local):
    def asked(count):
        return "/v1/comparison?" + "&".join(f"current_hosts={k:048}" for k in range(count))

    status, found = await get(local, asked(1000))
    assert status == 404, found  # the lake is empty
    status, found = await get(local, asked(1001))
    assert (status, found["field"]) == (400, "current_hosts")


async def test_a_page_of_another_name_cannot_ask_through_a_browser(local):
    status, _ = await get(local, "/v1/hosts", Host="evil.example")
    assert status == 400
    status, _ = await get(local, "/v1/hosts", Host=f"localhost:{local.port}")
    assert status == 200


async def test_a_store_that_is_away_is_reported(served, local, monkeypatch):
    served.store.close()
    monkeypatch.setattr(served.store, "_engine", IncidentStoreAway())
    status, answer = await get(local, "/v1/incidents")
    assert (status, answer["error"]) == (503, "incident history does not answer: gone; is its database up?")


async def test_a_vm_history_that_cannot_be_read_is_reported(served, local, monkeypatch):
    for error, said in (
        (SlowError("took longer than 20 s"), "took longer than 20 s; ask for a shorter time by since_unix_ns"),
        (LakeError("x.parquet is damaged"), "x.parquet is damaged; `whitepanda lake verify` tells more"),
    ):

        def fail(*_arguments, error=error):
            raise error

        monkeypatch.setattr(served.fleet.windows, "read", fail)
        status, answer = await get(local, "/v1/vms/u/history")
        assert status == 503 and answer["error"].startswith(f"windows of VM 'u' in the lake: {said}")


class IncidentStoreAway:
    def connect(self):
        from sqlalchemy.exc import OperationalError  # noqa: PLC0415 - of this fake only

        raise OperationalError("SELECT", {}, Exception("gone"))

    def dispose(self) -> None:
        pass


async def test_beyond_loopback_only_operators_may_ask(served, tmp_path, monkeypatch):
    monkeypatch.setattr("central.web.server.is_loopback", lambda _host: False)
    pki = tmp_path / "pki"
    make_ca(pki)
    central = issue(pki, "central", server=True, addresses=["127.0.0.1"])
    operator, host = issue(pki, "operator"), issue(pki, "h1")
    api = HttpApi(served.fleet, "127.0.0.1:0", central, Access(("operator",)))
    await api.start()

    def context(files: TlsFiles | None) -> ssl.SSLContext:
        found = ssl.create_default_context(cafile=central.ca)
        if files is not None:
            found.load_cert_chain(files.certificate, files.key)
        return found

    try:
        assert (await get(api, "/v1/hosts", context(operator)))[0] == 200
        assert (await get(api, "/", context(operator)))[0] == 200
        assert (await get(api, "/", context(host)))[0] == 403, "the page, too"
        status, answer = await get(api, "/v1/hosts", context(host))
        assert (status, answer["error"]) == (
            403,
            "only operators may ask; none of this certificate's names (h1) is in central.operators",
        )
        with pytest.raises((ssl.SSLError, OSError)):
            await get(api, "/v1/hosts", context(None))
        with pytest.raises((http.client.HTTPException, OSError)):
            await get(api, "/v1/hosts")
    finally:
        await api.stop()


async def test_renewed_files_are_taken_up_and_those_that_do_not_fit_spoil_nothing(
    served, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("central.web.server.is_loopback", lambda _host: False)
    monkeypatch.setattr("central.web.server._RELOAD_S", 0.01)
    make_ca(tmp_path)
    tls = issue(tmp_path, "central", server=True, addresses=["127.0.0.1"])
    operator, other = issue(tmp_path, "operator"), issue(tmp_path, "other")
    context = ssl.create_default_context(cafile=tls.ca)
    context.load_cert_chain(operator.certificate, operator.key)
    api = HttpApi(served.fleet, "127.0.0.1:0", tls, Access(("operator",)))
    await api.start()

    def serial():
        with (
            socket.create_connection(("127.0.0.1", api.port), 10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
        ):
            return f"{int(stream.getpeercert()['serialNumber'], 16):x}"

    async def until_told(what):
        reported = ""
        async with asyncio.timeout(30):
            while what not in reported:
                await asyncio.sleep(0.01)
                read = capsys.readouterr()
                reported += read.out + read.err

    try:
        old, before = await asyncio.to_thread(serial), (tmp_path / "central.crt").read_bytes()
        shutil.copy(other.certificate, tls.certificate)
        await until_told("cannot be used for HTTP; the previous ones stay in use")
        assert await asyncio.to_thread(serial) == old
        (tmp_path / "central.crt").write_bytes(before)
        renew(tmp_path, "central")
        new = describe(tls.certificate).serial
        async with asyncio.timeout(30):
            while await asyncio.to_thread(serial) != new:
                await asyncio.sleep(0.01)
    finally:
        await api.stop()


async def test_what_cannot_be_listened_on_is_one_line(served, local):
    taken = HttpApi(served.fleet, f"127.0.0.1:{local.port}", TlsFiles(), Access(()))
    with pytest.raises(UnavailableError, match=r"central\.http_listen 127.*Address already in use; set another"):
        await taken.start()
    wrong = HttpApi(served.fleet, "0.0.0.0:0", TlsFiles("/no/ca", "/no/crt", "/no/key"), Access(()))
    with pytest.raises(UnavailableError, match=r"central\.http_listen 0.*cannot use central\.tls"):
        await wrong.start()


def test_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.example.net", "")))  # noqa: S104 - no


async def test_totals_are_there_for_prometheus_too(served, local, tmp_path) -> None:
    served.registry.refused.update(wrong_host=2, tls_expired=1)
    served.journal.stats.accepted_rows = 2**40 + 1
    served.journal.stats.rejected_rows["bad_cpi"] = 7
    status, text = await asyncio.to_thread(fetch, local.port, "/metrics")
    assert status == 200
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["whitepanda_central_refused_streams_total", "wrong_host"] == 2
    assert found["whitepanda_central_refused_streams_total", "tls_expired"] == 1
    assert found["whitepanda_central_rejected_rows_total", "bad_cpi"] == 7
    assert found["whitepanda_central_accepted_rows_total",] == 2**40 + 1
    failures = [f"whitepanda_central_{what}_failed" for what in ("build", "commit", "roll", "incidents", "revocation")]
    assert [found[name,] for name in failures] == [0, 0, 0, 0, 0]
    assert found["whitepanda_central_acknowledgement_seconds_bucket", "+Inf"] == 0
    counted = [found["whitepanda_central_open_incidents", state] for state in ("new", "acknowledged", "silenced")]
    assert counted == [0, 0, 0]
    served.builder.last_error = "OSError: no space"
    served.journal.failure = "disk is full"
    served.roll_error, served.incidents_error = "no bucket", "away"
    assert "whitepanda_central_certificate_expiry_timestamp_seconds" not in {name for name, *_ in found}
    make_ca(tmp_path)
    files = issue(tmp_path, "central", server=True)
    served.fleet.parts.certificate = OwnCertificate(files)
    served.fleet.parts.revoked.problem = "no such file"
    times = [0, 9 * 10**6, 200 * 10**6, 11 * S, -S]  # the clock may be set back
    served.journal.ack_times.take([NOW - time for time in times], NOW)
    _, text = await asyncio.to_thread(fetch, local.port, "/metrics")
    assert [f"{name} 1.0" in text for name in failures] == [True] * 5
    expiry_s = describe(files.certificate).not_after.timestamp()
    [line] = [line for line in text.splitlines() if "_certificate_expiry_" in line and line[0] != "#"]
    assert float(line.split()[1]) == expiry_s
    name = "whitepanda_central_acknowledgement_seconds"
    for part, value in (('bucket{le="0.01"}', 3), ('bucket{le="0.25"}', 4), ('bucket{le="10"}', 4)):
        assert f"{name}_{part} {value}.0\n" in text
    assert f"{name}_count 5.0\n" in text and f"{name}_sum 11.209\n" in text
    _, status = await get(local, "/v1/status")
    assert (status["last_commit_error"], status["last_roll_error"]) == ("disk is full", "no bucket")
    assert (status["last_incidents_error"], status["open_incidents"]) == ("away", None)
    assert "\nwhitepanda_central_open_incidents{" not in text
    served.incidents_error = ""
    served.store.take([row(1)], gap_ns=GAP, oldest_unix_ns=0)  # its time is in the future: it continues
    _, status = await get(local, "/v1/status")
    assert status["open_incidents"] == 1
