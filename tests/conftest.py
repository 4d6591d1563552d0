"""What all tests share: the skip policy of CI, and where real data is."""

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog

ROOT = Path(__file__).resolve().parent.parent
SKIPS = ROOT / "tests" / "skips.toml"


# How long an example takes says how busy the machine is. In CI this is hypothesis' own profile, which stays.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")


def _allowed() -> dict[str, str]:
    """Tests that may skip in CI, with the reason, by node id (or the start of it)."""
    return {row["test"]: row["reason"] for row in tomllib.loads(SKIPS.read_text())["skip"]} if SKIPS.exists() else {}


class SkipPolicy:
    """In CI a skipped test is a failure unless skips.toml lists it: what silently stops running proves nothing."""

    def __init__(self) -> None:
        self.allowed = _allowed()
        self.unlisted: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report.nodeid, report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report.nodeid, report.longrepr)

    def _note(self, nodeid: str, longrepr: object) -> None:
        if not any(nodeid.startswith(test) for test in self.allowed):
            why = longrepr[2] if isinstance(longrepr, tuple) else longrepr
            self.unlisted.append(f"{nodeid}: {why}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.unlisted:
            terminalreporter.write_line(f"SKIPPED IN CI, NOT LISTED in tests/skips.toml: {line}", red=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lengthen the limits of tests that run at idle priority."""
    patience = float(os.environ.get("WHITEPANDA_TEST_PATIENCE", "1"))
    for item in items if patience != 1 else ():
        limit = item.get_closest_marker("timeout")
        if limit is not None:
            item.add_marker(pytest.mark.timeout(limit.args[0] * patience), append=False)


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI") == "true":
        config.pluginmanager.register(SkipPolicy(), "whitepanda-skip-policy")


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """A test that runs a command configures the process's log; the next test has it as it was."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real data: the folder $WHITEPANDA_DATA, else ../shared/data; skips where there is none."""
    folder = Path(os.environ.get("WHITEPANDA_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set WHITEPANDA_DATA")
    return folder
