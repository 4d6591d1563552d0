import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SKIPPING = """
import pytest

@pytest.mark.skip(reason='no such hardware')
def test_sleepy():
    pass

def test_awake():
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "tests" / "skips.toml").write_text("skip = []\n")
    (tmp_path / "tests" / "test_it.py").write_text(SKIPPING)
    return tmp_path


def run(project: Path, *, ci: bool) -> subprocess.CompletedProcess[str]:
    # It needs no plugins, which are most of what it takes to start.
    environment = {**os.environ, "CI": "true" if ci else "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def test_unlisted_skip_fails_in_ci_and_is_named(project: Path) -> None:
    done = run(project, ci=True)
    assert done.returncode == 1
    assert "NOT LISTED in tests/skips.toml: tests/test_it.py::test_sleepy" in done.stdout
    assert "no such hardware" in done.stdout


def test_listed_skip_passes_in_ci(project: Path) -> None:
    listed = '[[skip]]\ntest = "tests/test_it.py::test_sleepy"\nreason = "here"\n'
    (project / "tests" / "skips.toml").write_text(listed)
    assert run(project, ci=True).returncode == 0


def test_skips_are_free_outside_ci(project: Path) -> None:
    assert run(project, ci=False).returncode == 0


def test_module_level_skip_fails_in_ci(project: Path) -> None:
    (project / "tests" / "test_whole.py").write_text(
        "import pytest\npytest.skip('not here', allow_module_level=True)\n"
    )
    done = run(project, ci=True)
    assert done.returncode == 1
    assert "test_whole.py" in done.stdout
