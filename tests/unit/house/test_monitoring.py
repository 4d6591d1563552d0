"""What is shipped for Prometheus and Grafana agrees with the code and with the docs."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families

from agent.api.prometheus_text import family_name
from agent.sampling.metric_table import METRICS
from central.config import load
from central.web import metrics as central
from whitepanda.v1 import fleet_pb2

ROOT = Path(__file__).resolve().parents[3]
GRAFANA = ROOT / "packaging" / "grafana"
RULES = ROOT / "packaging" / "prometheus" / "whitepanda.rules.yml"
NAMES = ("fleet", "host", "central")
#: The alerts' page as central's package installs it (tools/build_debs.py).
RUNBOOKS = "file:///usr/share/doc/whitepanda-central/alerts.md"
#: Metrics of VMs in addition to the table of metrics (docs/metrics.md).
OF_VMS = (
    "victim", "degradation_ratio", "behaviour", "baseline_ticks", "baseline_ready",
    "part_age_seconds", "part_absent", "metric_absent", "slow_down_ratio", "slow_down_low_ratio",
    "slow_down_high_ratio", "suspect", "info", "slow_down_absent",
)  # fmt: skip


def rules() -> list[dict]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def known_names() -> set[str]:
    agent = {family_name(metric) for metric in METRICS} | {f"whitepanda_vm_{name}" for name in OF_VMS}
    found = set()
    for family in text_string_to_metric_families(central.render(fleet_pb2.FleetStatus()).decode()):
        endings = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
        found |= {family.name + ending for ending in endings}
    return agent | found | {"whitepanda_agent_info"}


def expressions() -> list[str]:
    found = [rule["expr"] for rule in rules()]
    for name in NAMES:
        text = (GRAFANA / f"{name}.json").read_text()
        found += re.findall(r'"(?:expr|query)": "((?:[^"\\]|\\.)*)"', text)
    return found


def test_rules_and_dashboards_know_no_metric_that_is_not_there() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used = {name for text in expressions() for name in re.findall(r"(?:\w+:)*whitepanda_\w+(?::\w+)*", text)}
    assert len(used) > 80
    assert used - known_names() - recorded == set()


def test_every_alert_is_explained_and_no_other() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL))
    alerts = {rule["alert"]: rule for rule in rules() if "alert" in rule}
    assert list(sections) == list(alerts), "in the rules' order"
    for name, rule in alerts.items():
        assert sections[name].startswith(rule["labels"]["severity"]), name
        assert " ".join(rule["expr"].split()) in " ".join(sections[name].split()), name
        assert "**What to do.** " in sections[name], name
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}, name
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOKS}#{name.lower()}"
        assert rule["labels"].keys() == {"severity"} and rule["labels"]["severity"] in {"critical", "warning", "info"}
        if rule.get("for"):
            assert f"after {rule['for']}: " in sections[name], name


def test_the_runbooks_are_absolute_and_the_guides_command_moves_them_all(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    (command,) = re.findall(r"^    (sed -i .*)$", page, re.MULTILINE)
    for name in ("whitepanda.rules.yml", "whitepanda.rules.test.yml"):
        shutil.copy(RULES.with_name(name), tmp_path)
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    for name in ("whitepanda.rules.yml", "whitepanda.rules.test.yml"):
        shipped, moved = RULES.with_name(name).read_text(), (tmp_path / name).read_text()
        urls = re.findall(r"runbook_url: (\S+)", shipped)
        assert urls and all(urlsplit(url).scheme and urlsplit(url).fragment for url in urls)
        assert re.findall(r"runbook_url: (\S+)", moved) == [
            url.replace(RUNBOOKS, "https://docs.example.net/whitepanda/alerts.html") for url in urls
        ]


def test_dashboards_are_fresh() -> None:
    command = [sys.executable, str(ROOT / "tools" / "generate_dashboards.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_dashboards_are_grafanas(name: str) -> None:
    board = json.loads((GRAFANA / f"{name}.json").read_text())
    assert board["schemaVersion"] >= 39 and board["uid"] == f"whitepanda-{name}"
    source, *variables = board["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert {panel["type"] for panel in panels} <= {"timeseries", "stat", "table", "state-timeline"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["unit"]
        for each in (panel, *panel["targets"]):
            assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    names = {f"${variable['name']}" for variable in variables} | {"$__rate_interval"}
    used = {name for panel in panels for t in panel["targets"] for name in re.findall(r"\$\w+", t["expr"])}
    assert used <= names


def leaves(value: object, at: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(one, f"{at}/{key}")
    else:
        yield at, value


def unknown_to_grafana(board: dict) -> set[str]:
    """What Grafana's types of dashboards, panels and Prometheus queries do not take over as it stands there."""
    register_default_plugins()
    known = dict(leaves(json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))))
    return {at for at, value in leaves(board) if at not in known or known[at] != value}


@pytest.mark.parametrize("name", NAMES)
def test_dashboards_say_nothing_that_grafanas_own_types_do_not_know(name: str) -> None:
    board = json.loads((GRAFANA / f"{name}.json").read_text())
    # Grafana's editor writes a variable's query there once more, for its own list; its types have no such field.
    assert {at for at in unknown_to_grafana(board) if not re.fullmatch(r"/templating/list/\d/definition", at)} == set()
    panel = next(panel for panel in board["panels"] if panel["type"] == "timeseries")
    panel["options"]["legendary"] = panel["gridPos"]["width"] = panel["targets"][0]["expression"] = "x"
    assert {at.rpartition("/")[2] for at in unknown_to_grafana(board)} == {
        "definition",
        "legendary",
        "width",
        "expression",
    }


def test_units_are_those_of_the_metrics() -> None:
    """What Grafana learns of a panel is what the names say."""
    units = {"bytes": ("bytes",), "bytes_per_second": ("Bps",), "seconds": ("s", "none")}
    for name in NAMES:
        for panel in json.loads((GRAFANA / f"{name}.json").read_text())["panels"]:
            if panel["type"] not in {"timeseries", "stat"}:
                continue
            for target in panel["targets"]:
                expression = target["expr"]
                if "/" in expression or "rate(" in expression:
                    continue
                for word in re.findall(r"whitepanda_\w+", expression):
                    for suffix, allowed in units.items():
                        if word.endswith(f"_{suffix}"):
                            assert panel["fieldConfig"]["defaults"]["unit"] in allowed, (panel["title"], word)


def test_the_example_of_the_guide_is_taken(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    (example,) = re.findall(r"^((?:    .*\n)*    \[webhooks\]\n(?:    .*\n)+)", page, re.MULTILINE)
    text = "\n".join(line.removeprefix("    ") for line in example.splitlines())
    (tmp_path / "central.toml").write_text(f"[central]\n{text}\n")
    webhooks = load(tmp_path / "central.toml").webhooks
    assert webhooks.urls == ("https://hooks.example.net/whitepanda",)


def test_the_check_of_signatures_in_the_guide_works() -> None:
    from central.incidents.webhook_sender import sign  # noqa: PLC0415 - httpx is loaded for nothing else here

    page = (ROOT / "docs" / "monitoring.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    found: dict = {}
    exec(code, found)  # noqa: S102 - our own page
    now = str(int(found["time"].time()))
    headers = {"X-Whitepanda-Timestamp": now, "X-Whitepanda-Signature": sign(b"s" * 16, now, b"{}")}
    assert found["is_genuine"](b"s" * 16, headers, b"{}")
    assert not found["is_genuine"](b"s" * 16, headers, b"{ }")
    assert not found["is_genuine"](b"t" * 16, headers, b"{}")
    old = str(int(now) - 400)
    headers = {"X-Whitepanda-Timestamp": old, "X-Whitepanda-Signature": sign(b"s" * 16, old, b"{}")}
    assert not found["is_genuine"](b"s" * 16, headers, b"{}")
