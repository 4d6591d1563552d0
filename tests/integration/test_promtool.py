"""What we ship for Prometheus, and our pages, as promtool sees them."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from central.incidents.webhooks import DROP_REASONS
from central.journal.latency import BOUNDS_S
from central.web import metrics
from tests.support.prometheus_server import promtool, queries
from tests.unit.agent.api.test_cardinality import documented, everything, page
from whitepanda.v1 import agent_pb2, fleet_pb2

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "packaging" / "prometheus"
RULES = FOLDER / "whitepanda.rules.yml"


def alerts() -> list[dict]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_every_alert_fires_and_is_quiet() -> None:
    done = promtool("test", "rules", FOLDER / "whitepanda.rules.test.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    tests = yaml.safe_load((FOLDER / "whitepanda.rules.test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", ())]
    for rule in alerts():
        found = [bool(case["exp_alerts"]) for case in cases if case["alertname"] == rule["alert"]]
        assert set(found) == {False, True}, rule["alert"]


@pytest.mark.long
@pytest.mark.parametrize("what", ["deaf", "loud"])
def test_that_notices_each_alert_that_is_wrong(tmp_path, what) -> None:
    """Alerts that never fire, and alerts that always do, each by itself."""
    document = yaml.safe_load(RULES.read_text())
    for group in document["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                rule["expr"] = f"({rule['expr']}) < -1e300" if what == "deaf" else "vector(1)"
                rule.pop("for", None)
    (tmp_path / RULES.name).write_text(yaml.safe_dump(document))
    shutil.copy(FOLDER / "whitepanda.rules.test.yml", tmp_path)
    done = promtool("test", "rules", tmp_path / "whitepanda.rules.test.yml")
    assert done.returncode != 0
    failed = set(re.findall(r"alertname: (\w+),", done.stdout + done.stderr))
    assert failed == {rule["alert"] for rule in alerts()}


def test_rules_and_the_example_are_of_prometheus_format() -> None:
    assert promtool("check", "rules", "--lint-fatal", RULES).returncode == 0
    # Its certificates are not on this machine.
    done = promtool("check", "config", "--syntax-only", "--lint-fatal", FOLDER / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_query_of_the_dashboards_is_promql(tmp_path) -> None:
    """As expressions of rules, which promtool reads without a server; test_monitoring_demo.py runs them."""
    rules = [{"record": f"query:{n}", "expr": expression} for n, (_, expression) in enumerate(queries())]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "q", "rules": rules}]}))
    done = promtool("check", "rules", tmp_path / "queries.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_agents_page_passes() -> None:
    done = promtool("check", "metrics", text=page(everything(3)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_centrals_page_passes() -> None:
    reason = [agent_pb2.RejectedRows(reason="bad_cpi", count=3)]
    dropped = [agent_pb2.RejectedRows(reason=name) for name in DROP_REASONS]
    status = fleet_pb2.FleetStatus(
        central_version="1",
        rejected=reason,
        rejected_batches=reason,
        rejected_events=reason,
        refused_streams=reason,
        open_incidents=3,
        silenced_incidents=1,
        acknowledged_incidents=1,
        quiet_victims=["u1"],
        silenced_vms=["u1", "u2"],
        silenced_hosts=["h1"],
        certificate_expiry_unix_ns=10**18,
        coefficient_created_unix_ns=10**18,
        acknowledgements=fleet_pb2.AcknowledgementTimes(bound_s=BOUNDS_S, batches=[1] * (len(BOUNDS_S) + 1), sum_s=1.0),
        webhooks=[
            fleet_pb2.WebhookReceiver(receiver=name, dropped=dropped, oldest_waiting_unix_ns=10**18)
            for name in ("h:1", "h:1#2")
        ],
    )
    lines = metrics.render(status).decode().splitlines()
    assert sum(not line.startswith("#") for line in lines) == documented("central") + 2 * 7 + 4 + 3
    for reported in (fleet_pb2.FleetStatus(), status):
        done = promtool("check", "metrics", text=metrics.render(reported))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
