"""A real Prometheus in a folder of its own, on a port of its own; and promtool."""

import contextlib
import http.client
import json
import re
import shutil
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


def queries() -> list[tuple[tuple[str, str, int], str]]:
    """Every query of every dashboard, as Grafana sends it with all hosts and VMs chosen."""
    found = []
    for name in ("fleet", "host", "central"):
        for panel in json.loads((ROOT / "packaging" / "grafana" / f"{name}.json").read_text())["panels"]:
            for number, target in enumerate(panel.get("targets", [])):
                expression = target["expr"].replace("$__rate_interval", "10s")
                for variable in ("$instance", "$vm"):
                    expression = expression.replace(variable, ".*")
                assert "$" not in expression, expression
                found.append(((name, panel["title"], number), expression))
    return found


def promtool(*arguments: str | Path, text: bytes = b"") -> subprocess.CompletedProcess[str]:
    """Run promtool; skips where there is none."""
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool: apt-get install prometheus")
    done = subprocess.run(["promtool", *map(str, arguments)], input=text, capture_output=True, timeout=200, check=False)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def get(port: int, path: str) -> bytes:
    """Return what a server of this machine answers; its own words where it is an error."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return text


class PrometheusServer:
    """Runs until `close`. `jobs` are scrape_configs, as JSON can say them; YAML is a superset."""

    def __init__(self, folder: Path, jobs: list[dict[str, Any]], rules: Path) -> None:
        if shutil.which("prometheus") is None:
            pytest.skip("needs Prometheus: apt-get install prometheus")
        folder.mkdir()
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": jobs,
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/data",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: self._port() or self._process.poll() is not None)
        assert self._process.poll() is None, self.log.read_text()
        self.port = self._port()

    def _port(self) -> int:
        found = re.search(r'msg="Listening on" address=127\.0\.0\.1:(\d+)', self.log.read_text())
        return int(found[1]) if found else 0

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query; fails where it is no PromQL."""
        parameters = urllib.parse.urlencode({"query": expression})
        found = json.loads(get(self.port, f"/api/v1/query?{parameters}"))
        assert found["status"] == "success", found
        return found["data"]["result"]

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
