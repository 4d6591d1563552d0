"""Webhooks of a real central: kill -9 while a receiver is being told loses and confuses nothing."""

import contextlib
import http.client
import json
import sqlite3
import subprocess
import sys
import time

import pytest

from central.incidents.store import IncidentStore
from tests.support.central_process import MAIN, CentralProcess
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import HANG, Receiver
from tests.unit.central.incidents.test_incidents import GAP, row
from tests.unit.central.incidents.test_webhooks import secret_file, verify
from tests.unit.central.web.test_http_api import fetch

pytestmark = pytest.mark.integration


@pytest.fixture
def receiver():
    found = Receiver()
    yield found
    found.close()


@pytest.fixture
def central(tmp_path, receiver):
    secret = secret_file(tmp_path)
    settings = f"""
[webhooks]
urls = ["{receiver.url}"]
secret_file = "{secret}"
"""
    process = CentralProcess(tmp_path, build=settings)
    process.http_listen = "127.0.0.1:0"
    yield process
    process.end()


def test_a_killed_central_reports_all_of_it(central, receiver):
    now = time.time_ns()
    with contextlib.closing(IncidentStore("", make(central.state_dir))) as store:
        store.take([row(n, now + n, host=f"h{n}") for n in (1, 2)], gap_ns=GAP, oldest_unix_ns=0)
    receiver.answers.extend([200, HANG])
    central.start()
    wait_until(lambda: len(receiver.posts) == 2)  # the second is on its way
    central.kill()
    central.start()
    wait_until(lambda: receiver.taken() == [("1", "firing"), ("2", "firing")])
    assert receiver.posts[1].body == receiver.posts[2].body
    for post in receiver.posts:
        verify(post)
        assert json.loads(post.body)["version"] == "4"
    # Over: as if there had been no report for long.
    with contextlib.closing(sqlite3.connect(central.state_dir / "incidents.sqlite", timeout=20)) as database:
        database.execute("UPDATE incidents SET last_unix_ns = last_unix_ns - ?", (2 * GAP,))
        database.commit()
    wait_until(lambda: len(receiver.taken()) == 4)
    assert receiver.taken()[2:] == [("1", "resolved"), ("2", "resolved")]
    wait_until(lambda: f'webhook_waiting_notices{{receiver="127.0.0.1:{receiver.port}"}} 0.0' in metrics(central))
    assert 'whitepanda_central_open_incidents{state="new"} 0.0' in metrics(central)
    assert central.stop() == 0
    log = central.log.read_text()
    assert "Traceback" not in log and "/hook" not in log


def metrics(central) -> str:
    port = int((central.state_dir / "http_port").read_text())
    return fetch(port, "/metrics")[1]


def make(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_a_secret_that_others_may_read_is_reported_at_the_start(central, tmp_path):
    (tmp_path / "secret").chmod(0o644)
    central.start(wait=False)
    assert central.process.wait(30) == 2
    assert "others may read or write it (mode 0644); chmod 0600" in central.log.read_text()


def post(central, path, **body):
    port = int((central.state_dir / "http_port").read_text())
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", path, json.dumps({"operator": "anna", **body}), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_a_silence_survives_a_kill_and_what_is_open_is_sent_when_it_is_over(central, receiver):
    now = time.time_ns()
    with contextlib.closing(IncidentStore("", make(central.state_dir))) as store:
        # Suspects are silenced before the host is: no incident is of a host that central never saw.
        store.take([row(n, now + n, host=f"h{n}", suspect=f"scan{n}") for n in (1, 2, 3)], gap_ns=GAP, oldest_unix_ns=0)
        values = {
            "host": "",
            "vm": "",
            "job": "scan1",
            "project": "",
            "name": "",
            "key": "k",
            "reason": "x",
            "who": "b",
        }
        values |= {"start_unix_ns": now, "end_unix_ns": now + 10**12}
        assert store.create_silence(values, now_unix_ns=now).id == 1
    central.start()
    wait_until(lambda: receiver.taken() == [("2", "firing"), ("3", "firing")])
    status, made = post(central, "/v1/silences", job="scan2", reason="known", end_unix_ns=time.time_ns() + 10**12)
    assert (status, made["id"], made["by"]) == (200, 2, "anna (unverified)")
    assert post(central, "/v1/incidents/3/acknowledgement", reason="on it")[0] == 200
    text = metrics(central)
    central.kill()
    central.start()
    wait_until(lambda: 'open_incidents{state="silenced"} 2.0' in metrics(central))
    text = metrics(central)
    for line in (
        'open_incidents{state="acknowledged"} 1.0',
        'open_incidents{state="new"} 0.0',
        'quiet_vm{vm="uuid-web"}',
    ):
        assert line in text
    time.sleep(3)  # more than one look of the webhooks
    assert receiver.taken() == [("2", "firing"), ("3", "firing")]
    for number in (1, 2):
        assert post(central, f"/v1/silences/{number}/end")[0] == 200
    wait_until(lambda: len(receiver.taken()) == 4)
    assert sorted(receiver.taken()[2:]) == [("1", "firing"), ("2", "firing")]
    port = int((central.state_dir / "http_port").read_text())
    actions = [e["action"] for e in fetch(port, "/v1/audit")[1]["entries"]]
    assert actions == ["end_silence", "end_silence", "acknowledge", "silence", "silence"]
    assert central.stop() == 0
    assert "Traceback" not in central.log.read_text()


def incidents(central, *arguments):
    """Run `whitepanda incidents` as an operator; return its exit status, and what it prints."""
    command = [sys.executable, *MAIN, "incidents", *arguments, "--central", central.address, "--tls", str(central.pki)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout or done.stderr


@pytest.mark.long
def test_the_command_line_acknowledges_notes_and_silences_over_mutual_tls(central, receiver):
    now = time.time_ns()
    with contextlib.closing(IncidentStore("", make(central.state_dir))) as store:
        store.take([row(n, now + n, host=f"h{n}", suspect=f"scan{n}") for n in (1, 2)], gap_ns=GAP, oldest_unix_ns=0)
    central.start()
    central.client("operator")
    wait_until(lambda: len(receiver.taken()) == 2)
    status, said = incidents(central, "silence", "add", "--job", "scan1", "--for", "2h", "--reason", "known")
    assert status == 0 and said.startswith("silence 1 until 20") and said.endswith(" UTC: job scan1\n"), said
    status, said = incidents(central, "ack", "2", "--reason", "on it", "--by", "anna")
    assert status == 0 and said.startswith("incident 2: acknowledged by operator as anna at 20"), said
    assert incidents(central, "note", "2", "disk is new") == (0, "incident 2: noted by operator\n")
    status, said = incidents(central, "silence", "add", "--job", "scan1", "--for", "31d", "--reason", "known")
    assert status == 3 and said.count("\n") == 1 and "must be after the start and at most 30 days later" in said
    states = [line.split(",")[2] for line in incidents(central, "list", "--csv")[1].splitlines()]
    assert states == ["STATE", "acknowledged", "silenced"]
    assert "note of operator: disk is new" in incidents(central, "show", "2")[1]
    wait_until(lambda: 'open_incidents{state="silenced"} 1.0' in metrics(central))
    assert incidents(central, "silence", "end", "1")[0] == 0
    wait_until(lambda: receiver.taken()[2:] == [("1", "firing")])
    done = [line.split(",")[2] for line in incidents(central, "audit", "--csv")[1].splitlines()]
    assert done == ["DID", "end silence", "note", "acknowledge", "silence"]
