"""A real Prometheus scrapes the demonstration: every query of every dashboard has an answer, the pages are sound.

And the webhook of the same central reports the incident that the demonstration injects.
"""

import socket
import time
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from central.demo import fleet
from central.demo.run import Demo
from central.demo.show import PlainShow
from tests.support.prometheus_server import PrometheusServer, get, promtool, queries
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import Receiver
from tests.unit.agent.api.test_cardinality import documented
from whitepanda.common.cli import PlainConsole

pytestmark = [pytest.mark.integration, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "packaging" / "prometheus" / "whitepanda.rules.yml"

#: Panels that rightly have no data in the demonstration: (dashboard, panel, number of the query) and why.
_SIMULATED = "simulated hosts have no memory, load, pressures and quotas of their own"
_REFUSED = "the demonstration sends nothing that central refuses"
NO_DATA: dict[tuple[str, str, int], str] = {
    ("central", "Batches and events, by reason", 0): _REFUSED,
    ("central", "Batches and events, by reason", 1): _REFUSED,
    ("central", "Failed posts", 1): "nothing is given up",
    ("central", "Streams and handshakes, by reason", 0): _REFUSED,
    ("central", "Windows, by reason", 0): _REFUSED,
    ("fleet", "Memory left", 0): _SIMULATED,
    ("fleet", "Some task waits for a CPU (PSI)", 0): _SIMULATED,
    ("host", "Held back by its quota", 0): _SIMULATED,
    ("host", "Load", 0): _SIMULATED,
    ("host", "Memory charged", 0): _SIMULATED,
    ("host", "Memory left", 0): _SIMULATED,
    ("host", "Pressure (PSI)", 0): _SIMULATED,
    ("host", "Pressure (PSI)", 1): _SIMULATED,
    ("host", "Pressure (PSI)", 2): _SIMULATED,
    ("host", "Waits for I/O (PSI)", 0): _SIMULATED,
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Watched:
    """The demonstration with metrics and a webhook, played to its end and still running, under a Prometheus."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.agents: dict[str, int] = {}
        self.central = free_port()
        self.receiver = Receiver()
        agent_config, central_config = fleet.agent_config, fleet.central_config

        def with_metrics(shown, host, *arguments):
            self.agents[host.name] = free_port()
            text = agent_config(shown, host, *arguments)
            return f'{text}\n[metrics]\nlisten = "127.0.0.1:{self.agents[host.name]}"\n'

        def with_http(*arguments):
            text = central_config(*arguments)
            assert 'http_listen = "127.0.0.1:0"' in text
            text = text.replace('http_listen = "127.0.0.1:0"', f'http_listen = "127.0.0.1:{self.central}"')
            return f'{text}\n[webhooks]\nurls = ["{self.receiver.url}"]\n'

        monkeypatch.setattr(fleet, "agent_config", with_metrics)
        monkeypatch.setattr(fleet, "central_config", with_http)
        work, sockets = folder / "work", folder / "s"
        work.mkdir()
        sockets.mkdir()
        self.demo = Demo(7, work, sockets, PlainShow(PlainConsole()))
        write_files = self.demo._write_files

        def and_watch(address):
            files = write_files(address)
            targets = [f"127.0.0.1:{port}" for port in self.agents.values()]
            jobs = [
                {"job_name": "whitepanda-agent", "honor_labels": True, "static_configs": [{"targets": targets}]},
                {"job_name": "whitepanda-central", "static_configs": [{"targets": [f"127.0.0.1:{self.central}"]}]},
            ]
            self.prometheus = PrometheusServer(folder / "prometheus", jobs, RULES)
            return files

        self.demo._write_files = and_watch
        self.outcome = self.demo.run()

    def page(self, port: int) -> bytes:
        return get(port, "/metrics")

    def close(self) -> None:
        self.demo.close()
        self.receiver.close()
        if hasattr(self, "prometheus"):
            self.prometheus.close()


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("m")  # sockets live below it, and their paths are limited
        found = Watched.__new__(Watched)
        try:
            found.__init__(folder, monkeypatch)
            yield found
        finally:
            found.close()


def test_every_query_of_the_dashboards_has_data(watched) -> None:
    assert watched.outcome.correct
    asked = dict(queries())
    assert len(asked) > 90
    empty = asked
    for _ in range(20):  # rates want two scrapes, and what VMs do now changes
        empty = {key: text for key, text in empty.items() if not watched.prometheus.query(text)}
        if empty.keys() <= NO_DATA.keys():
            break
        time.sleep(1.0)
    unlisted = sorted(set(empty) - set(NO_DATA))
    assert not unlisted, f"no data: {unlisted}"
    spoken = sorted(set(NO_DATA) - set(empty))
    assert not spoken, f"these have data, so they are no exceptions: {spoken}"


def test_variables_of_the_dashboards_find_something(watched) -> None:
    for metric, label in (
        ("whitepanda_agent_info", "instance"),
        ("whitepanda_vm_cpu_usage_cores", "name"),
        ("whitepanda_central_info", "instance"),
    ):
        values = {series["metric"][label] for series in watched.prometheus.query(metric)}
        assert len(values) >= (1 if "central" in metric else 4)


def test_recording_rules_have_data_and_quiet_alerts_are_quiet(watched) -> None:
    names = [line.split()[2] for line in RULES.read_text().splitlines() if line.strip().startswith("- record:")]
    assert len(names) == 9
    wait_until(lambda: all(watched.prometheus.query(name) for name in names))
    firing = watched.prometheus.query('ALERTS{alertstate="firing"}')
    assert {series["metric"]["alertname"] for series in firing} <= {"WhitepandaIncidentsOpen"}
    wait_until(lambda: watched.prometheus.query('ALERTS{alertname="WhitepandaIncidentsOpen"}'))


def test_pages_pass_promtool_and_have_as_many_series_as_documented(watched) -> None:
    for port in (*watched.agents.values(), watched.central):
        page = watched.page(port)
        done = promtool("check", "metrics", text=page)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        per_vm: Counter[str] = Counter()
        for family in text_string_to_metric_families(page.decode()):
            for sample in family.samples:
                assert all(len(value) <= 256 for value in sample.labels.values())
                per_vm[sample.labels.get("vm", "")] += 1
        others = per_vm.pop("")
        assert others <= (documented("central") + 57 if port == watched.central else documented("a host, at most"))
        assert all(count <= documented("a VM, at most") for count in per_vm.values())


def test_the_webhook_is_reported_of_the_injected_antagonist(watched) -> None:
    def suspected() -> set[str]:
        alerts = [post.alert for post in watched.receiver.posts]
        return {
            alert["annotations"].get("suspect_job", "")
            for alert in alerts
            if alert["labels"]["host"] == watched.outcome.host
        }

    wait_until(lambda: watched.outcome.injected_antagonist in suspected())
