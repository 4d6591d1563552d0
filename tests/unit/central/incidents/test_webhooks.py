"""Webhooks: what a receiver learns of an incident, and how it is posted; over real HTTP."""

import asyncio
import contextlib
import hashlib
import hmac
import json
import math
import ssl

import httpx
import pytest

from central.incidents import webhook_messages
from central.incidents.webhook_sender import Answer, Sender, receiver_names, sign
from central.pki import issue, make_ca
from tests.support.webhook_receiver import HANG, Receiver
from tests.unit.central.incidents.test_incidents import NOW, S
from whitepanda.common.errors import ConfigError, TlsError
from whitepanda.v1 import agent_pb2, fleet_pb2

SECRET = b"0123456789abcdef0123456789abcdef"


@pytest.fixture
def receiver():
    found = Receiver()
    yield found
    found.close()


# -- what is reported

#: As Prometheus' documentation of Alertmanager's <webhook_config> lists them.
KEYS = {
    "version", "groupKey", "truncatedAlerts", "status", "receiver", "groupLabels", "commonLabels", "commonAnnotations",
    "externalURL", "alerts",
}  # fmt: skip
ALERT_KEYS = {"status", "labels", "annotations", "startsAt", "endsAt", "generatorURL", "fingerprint"}
IDENTITY = ("labels", "startsAt", "fingerprint")
URL = "https://central.example.net:7480/v1/incidents/{id}"


def incident(**changes) -> fleet_pb2.Incident:
    found = fleet_pb2.Incident(
        id=17, host="h1", suspect_job="scan", first_unix_ns=NOW, last_unix_ns=NOW + 300 * S, reports=2,
        peak_mn_cpi=3.25, peak_threshold=2.0, found_by=[agent_pb2.ANALYSIS_HOST, agent_pb2.ANALYSIS_FLEET],
        victims=[
            fleet_pb2.IncidentVm(vm="u1", name="web-1", job="web", peak=4.0, reports=2,
                                 slow_down=agent_pb2.Degradation(ratio=1.52, low=1.31, high=1.78)),
        ],
        suspect=fleet_pb2.IncidentVm(vm="u2", name="scan-1", job="scan", peak=2.0, reports=2),
        suspects=[
            fleet_pb2.IncidentVm(vm="u2", name="scan-1", job="scan", peak=2.0, reports=2),
            fleet_pb2.IncidentVm(vm="u3", job="odd", peak=math.nan, reports=2),
        ],
    )  # fmt: skip
    found.MergeFrom(fleet_pb2.Incident(**changes))
    return found


def test_an_incident_is_an_alert_of_alertmanagers_format():
    found = json.loads(webhook_messages.firing(incident(), URL))
    assert set(found) == KEYS
    assert (found["version"], found["status"], found["truncatedAlerts"]) == ("4", "firing", 0)
    assert found["groupKey"] == '{}:{alertname="WhitepandaContention", incident="17"}'
    assert found["externalURL"] == "https://central.example.net:7480"
    (alert,) = found["alerts"]
    assert set(alert) == ALERT_KEYS
    assert alert["labels"] == found["commonLabels"] == {
        "alertname": "WhitepandaContention", "severity": "warning", "host": "h1", "incident": "17",
    }  # fmt: skip
    assert (alert["startsAt"], alert["endsAt"]) == ("2027-01-15T08:00:00.000Z", "0001-01-01T00:00:00Z")
    assert alert["generatorURL"] == "https://central.example.net:7480/v1/incidents/17"
    assert alert["annotations"] == found["commonAnnotations"] == {
        "summary": (
            "1 VM suffers on host h1: web-1 of job web 1.52x [1.31, 1.78]; first suspect scan-1 of job scan"
        ),
        "description": (
            "found by the host's own analysis and by the fleet's statistics; victims (slow-down): web-1 of job web "
            "1.52x [1.31, 1.78]; suspects: scan-1 of job scan (score 2), u3 of job odd; 2 reports; mean nCPI up to "
            "3.25, threshold 2; more: whitepanda incidents show 17"
        ),
        "suspect_vm": "scan-1",
        "suspect_job": "scan",
        "slow_down": "1.52x [1.31, 1.78]",
    }  # fmt: skip


def test_a_slow_down_of_the_cpi_says_so():
    found = incident()
    found.victims[0].slow_down.model = "cpi"
    (alert,) = json.loads(webhook_messages.firing(found, ""))["alerts"]
    assert alert["annotations"]["slow_down"] == "1.52x CPI [1.31, 1.78]"


def test_its_end_has_the_labels_and_the_beginning_that_were_reported():
    first = webhook_messages.firing(incident(), "")
    later = incident()
    later.first_unix_ns -= 900 * S  # a report of before came late
    later.suspect.CopyFrom(fleet_pb2.IncidentVm(vm="u4", name="dedup-1", job="dedup"))
    again = json.loads(webhook_messages.firing(later, "", first))
    assert again["status"] == "firing" and again["alerts"][0]["annotations"]["suspect_vm"] == "dedup-1"
    assert {key: again["alerts"][0][key] for key in IDENTITY} == {
        key: json.loads(first)["alerts"][0][key] for key in IDENTITY
    }
    found = json.loads(webhook_messages.resolved(later, first, "", ended_unix_ns=0))
    (alert,), (before,) = found["alerts"], json.loads(first)["alerts"]
    assert found["status"] == alert["status"] == "resolved"
    assert alert["endsAt"] == "2027-01-15T08:05:00.000Z"
    for key in IDENTITY:
        assert alert[key] == before[key]
    assert (alert["generatorURL"], found["externalURL"]) == ("", "")
    gone = json.loads(webhook_messages.resolved(None, first, "", ended_unix_ns=NOW))["alerts"][0]
    assert gone == before | {"status": "resolved", "endsAt": "2027-01-15T08:00:00.000Z"}


def test_many_victims_and_no_suspect():
    many = [fleet_pb2.IncidentVm(vm=f"u{n}", job="web", peak=1.0) for n in range(7)]
    found = incident(victims=many)
    found.ClearField("suspect")
    annotations = json.loads(webhook_messages.firing(found, ""))["alerts"][0]["annotations"]
    assert annotations["summary"] == ("8 VMs suffer on host h1, most web-1 of job web 1.52x [1.31, 1.78]; no suspect")
    assert "u0 of job web (slow-down not known)" in annotations["description"]
    assert "and 3 more; suspects" in annotations["description"]
    assert not {"suspect_vm", "suspect_job"} & annotations.keys()


def test_what_the_host_alone_found_is_reported_without_what_is_not_known():
    found = incident(peak_mn_cpi=math.nan, peak_threshold=math.nan)
    del found.victims[:], found.found_by[1:]
    found.victims.add(vm="u1", name="web-1", job="web", peak=math.nan)
    annotations = json.loads(webhook_messages.firing(found, ""))["alerts"][0]["annotations"]
    assert "nan" not in str(annotations) and "nCPI" not in str(annotations)
    assert annotations["description"].startswith("found by the host's own analysis; victims (slow-down): web-1 of")
    assert "slow_down" not in annotations


# -- posting


def verify(post, secret: bytes = SECRET) -> None:
    """What docs/monitoring.md tells receivers to do."""
    text = post.headers["x-whitepanda-timestamp"].encode() + b"." + post.body
    expected = "sha256=" + hmac.new(secret, text, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(post.headers["x-whitepanda-signature"], expected)


def secret_file(tmp_path, text: bytes = SECRET + b"\n", mode: int = 0o600):
    path = tmp_path / "secret"
    path.touch()
    path.chmod(0o600)
    path.write_bytes(text)
    path.chmod(mode)
    return path


async def post(url: str, message: str | None = None, **options) -> Answer:
    sender = Sender(url, **options)
    try:
        return await sender.post(message or webhook_messages.firing(incident(), ""))
    finally:
        await sender.close()


async def test_a_message_is_signed_and_a_secret_may_be_changed(receiver, tmp_path, monkeypatch):
    path = secret_file(tmp_path)
    monkeypatch.setattr("central.incidents.webhook_sender.time.time", lambda: 1_800_000_000.9)
    sender = Sender(receiver.url, secret_file=str(path))
    assert await sender.post(webhook_messages.firing(incident(), "")) == Answer()
    secret_file(tmp_path, b"another secret of some length")
    assert await sender.post(webhook_messages.firing(incident(), "")) == Answer()
    path.chmod(0o640)
    answer = await sender.post(webhook_messages.firing(incident(), ""))
    assert "others may read" in answer.why and not answer.is_final
    await sender.close()
    first, second = receiver.posts
    verify(first)
    verify(second, b"another secret of some length")
    with pytest.raises(AssertionError):
        verify(second)
    assert first.headers["x-whitepanda-timestamp"] == "1800000000"
    assert first.headers["content-type"] == "application/json"
    assert first.path == "/hook"


def test_a_signature_is_over_time_and_body():
    assert sign(SECRET, "1", b"a") != sign(SECRET, "2", b"a") != sign(SECRET, "2", b"b")
    # Reckoned by OpenSSL: printf '1.a' | openssl dgst -sha256 -hmac 0123456789abcdef0123456789abcdef
    assert sign(SECRET, "1", b"a") == f"sha256={OPENSSL}"


OPENSSL = "2124fcfeccda933b19c486cedf20a83fe77c6940825439e44739c1d2d7eb50b5"


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [
        (SECRET, 0o640, "others may read or write it (mode 0640); chmod 0600"),
        (SECRET, 0o604, "others may read or write it (mode 0604)"),
        (b"  short\n", 0o600, "must have 16 to 4096 bytes (it has 5); try: openssl rand -hex 32"),
        (b"x" * 5000, 0o600, "must have 16 to 4096 bytes"),
    ],
)
def test_a_secret_that_is_none(tmp_path, text, mode, problem):
    path = secret_file(tmp_path, text, mode)
    with pytest.raises(ConfigError) as caught:
        Sender("https://a/", secret_file=str(path))
    assert str(caught.value).startswith(f"webhooks.secret_file {path}: ") and problem in str(caught.value)
    with pytest.raises(ConfigError, match=r"nothing: cannot read: No such file"):
        Sender("https://a/", secret_file=str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (202, Answer()),
        (500, Answer("answered 500 Internal Server Error")),
        (404, Answer("answered 404 Not Found")),
        (400, Answer("answered 400 Bad Request", is_final=True)),
        ((429, {"Retry-After": "7"}), Answer("answered 429 Too Many Requests", delay_s=7.0)),
        ((503, {"Retry-After": "99999"}), Answer("answered 503 Service Unavailable", delay_s=3600.0)),
        ((503, {"Retry-After": "Fri, 1 Jan 2027"}), Answer("answered 503 Service Unavailable")),
        (
            (302, {"Location": "http://127.0.0.1:1/elsewhere"}),
            Answer("answered 302 Found; webhooks.urls must be where it is, redirections are not followed"),
        ),
    ],
)
async def test_answers(receiver, answer, expected):
    receiver.answers.append(answer)
    assert await post(receiver.url) == expected
    assert len(receiver.posts) == 1


async def test_a_receiver_that_hangs_or_is_not_there(receiver):
    receiver.answers.append(HANG)
    assert await post(receiver.url, timeout_s=0.2) == Answer("no answer in 0.2 s")
    receiver.close()
    answer = await post(receiver.url)
    assert "connection" in answer.why.lower() and not answer.is_final


async def test_a_receiver_that_answers_byte_by_byte_has_no_more_time(tmp_path):
    async def drip(_reader, writer):
        with contextlib.suppress(OSError):
            while True:
                writer.write(b"H")
                await writer.drain()
                await asyncio.sleep(0.01)

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    answer = await post(f"http://127.0.0.1:{port}/", timeout_s=0.3)
    assert answer.why and not answer.is_final
    server.close()


async def test_over_tls_by_whom_the_configuration_trusts(tmp_path):
    make_ca(tmp_path / "pki")
    make_ca(tmp_path / "other")
    files = issue(tmp_path / "pki", "hook", server=True, addresses=["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    receiver = Receiver(context)
    try:
        assert await post(receiver.url, ca=files.ca) == Answer()
        for ca in ("", str(tmp_path / "other" / "ca.crt")):
            answer = await post(receiver.url, ca=ca)
            assert "certificate verify failed" in answer.why and not answer.is_final
    finally:
        receiver.close()
    with pytest.raises(TlsError, match=r"webhooks\.ca .*secret: cannot be used"):
        Sender(receiver.url, ca=str(secret_file(tmp_path)))


async def test_an_alert_after_the_handshake_is_an_answer_as_any(tmp_path):
    make_ca(tmp_path / "pki")
    files = issue(tmp_path / "pki", "hook", server=True, addresses=["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.ca)
    context.verify_mode = ssl.CERT_REQUIRED  # in TLS 1.3 a client hears of it after its handshake
    receiver = Receiver(context)
    try:
        answer = await post(receiver.url, ca=files.ca)
    finally:
        receiver.close()
    assert answer.why and not answer.is_final

    def alert(_request):
        raise ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required")

    sender = Sender(receiver.url, ca=files.ca)
    await sender.close()
    sender._client = httpx.AsyncClient(transport=httpx.MockTransport(alert))
    answer = await sender.post(webhook_messages.firing(incident(), ""))
    assert "alert certificate required" in answer.why and not answer.is_final
    await sender.close()


def test_names_of_receivers_have_no_secrets():
    urls = (
        "https://u:pw@a.example:99/T0/xyz",
        "https://a.example:99/other?k=1",
        "https://b/x",
        "https://a.example:99/3",
    )
    assert receiver_names(urls) == ["a.example:99", "a.example:99#2", "b", "a.example:99#3"]
    with pytest.raises(ConfigError, match=r"^webhooks\.urls: the one to h: ") as caught:
        Sender("https://h/secret\x00")
    assert "secret" not in str(caught.value)
