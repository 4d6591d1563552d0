"""Our messages beside those of a real Alertmanager: the same keys of the same kinds, all the way down."""

import contextlib
import http.client
import json
import re
import shutil
import subprocess
import time
from typing import Any

import pytest

from central.incidents import webhook_messages
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import Receiver
from tests.unit.central.incidents.test_webhooks import URL, incident

pytestmark = [pytest.mark.integration, pytest.mark.long]

NAME = "prometheus-alertmanager"


@pytest.fixture
def receiver():
    found = Receiver()
    yield found
    found.close()


@pytest.fixture
def alertmanager(tmp_path, receiver):
    """Its port; it tells the receiver of each alert at once, and of its end."""
    if shutil.which(NAME) is None:
        pytest.skip(f"needs Alertmanager: apt-get install {NAME}")
    hook = {"name": "hook", "webhook_configs": [{"url": receiver.url, "send_resolved": True}]}
    route = {"receiver": "hook", "group_by": ["alertname", "incident"], "group_wait": "1ms", "group_interval": "100ms"}
    (tmp_path / "am.yml").write_text(json.dumps({"route": route, "receivers": [hook]}))
    options = ["config.file=am.yml", "storage.path=data", "web.listen-address=127.0.0.1:0", "cluster.listen-address="]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [NAME, *(f"--{option}" for option in options)], stdout=output, stderr=output, cwd=tmp_path
        )

    def port() -> int:
        assert process.poll() is None, log.read_text()
        found = re.search(r'msg="Listening on" address=127\.0\.0\.1:(\d+)', log.read_text())
        return int(found[1]) if found else 0

    try:
        wait_until(port)
        yield port()
    finally:
        process.terminate()
        process.wait(20)


def submit(port: int, alert: dict[str, Any]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/api/v2/alerts", json.dumps([alert]), headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()


def shape(value: Any, path: str = "") -> dict[str, str]:
    """Each key, with the kind of its value; labels and annotations are people's own."""
    if isinstance(value, dict) and not re.search(r"(abels|nnotations)$", path):
        return {name: kind for key, one in value.items() for name, kind in shape(one, f"{path}.{key}").items()}
    if isinstance(value, list):
        return {name: kind for one in value for name, kind in shape(one, f"{path}[]").items()}
    return {path: type(value).__name__}


def test_what_alertmanager_makes_of_our_alert_is_what_we_send(alertmanager, receiver) -> None:
    """It is given our very alert, by its own interface, and tells a webhook of it."""
    now = (int(time.time()) - 5) * 10**9 + 123_000_000  # Go leaves out zeros at the end
    found = incident()
    found.first_unix_ns = found.last_unix_ns = now
    ours = json.loads(webhook_messages.firing(found, URL))
    (alert,) = ours["alerts"]
    submit(alertmanager, {key: alert[key] for key in ("labels", "annotations", "startsAt", "generatorURL")})
    wait_until(lambda: receiver.posts)
    theirs = json.loads(receiver.posts[0].body)
    assert shape(ours) == shape(theirs)
    same = ("version", "status", "groupLabels", "commonLabels", "commonAnnotations", "truncatedAlerts", "groupKey")
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
    reported = theirs["alerts"][0]
    assert {**alert, "fingerprint": ""} == {**reported, "fingerprint": ""}
    assert len(alert["fingerprint"]) == len(reported["fingerprint"]) == 16

    over = json.loads(webhook_messages.resolved(found, json.dumps(ours), URL, ended_unix_ns=now))["alerts"][0]
    submit(alertmanager, {key: over[key] for key in ("labels", "annotations", "startsAt", "endsAt", "generatorURL")})
    wait_until(lambda: receiver.taken()[1:])
    reported = receiver.posts[-1].alert
    assert receiver.taken()[-1] == ("17", "resolved")
    assert {**reported, "fingerprint": ""} == {**over, "fingerprint": ""}
