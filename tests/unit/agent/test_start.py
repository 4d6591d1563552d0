"""The program `whitepanda` and what `agent run` loads."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
sys.modules["rich"] = None
from agent import daemon, start
daemon.run = lambda settings: print(json.dumps([settings.agent.host, sorted(sys.modules)]))
start.main()
"""


def run(*words, program="from agent.start import main; main()"):
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("option", ["-c", "--config"])
def test_the_daemon_loads_nothing_of_the_command_line(tmp_path, option):
    file = tmp_path / "agent.toml"
    file.write_text(f'[agent]\nhost = "here"\nstate_dir = "{tmp_path}"\n')
    done = run("agent", "run", option, str(file), program=PROGRAM)
    host, modules = json.loads(done.stdout)
    assert host == "here"
    assert not {"typer", "rich.console", "pydantic", "click"} & set(modules)


def test_a_wrong_configuration_is_one_line_and_an_exit_code(tmp_path):
    file = tmp_path / "agent.toml"
    file.write_text("[agent]\nhostt = 1\n")
    done = run("agent", "run", "--config", str(file))
    assert done.returncode == run("check-config", str(file)).returncode != 0
    assert done.stderr.startswith(f"error: {file}")
    assert done.stderr.count("\n") == 1


def test_everything_else_is_the_command_lines(tmp_path):
    assert "Usage: whitepanda agent run" in run("agent", "run", "--help").stdout.replace("-c ", "whitepanda ")
    assert run("agent", "run").returncode == 2


def test_the_version_is_reported_without_loading_any_command():
    program = "import atexit, sys; from agent.start import main\natexit.register(lambda: print(*sys.modules)); main()"
    version, modules = run("--version", program=program).stdout.splitlines()
    assert version.startswith("whitepanda ")
    assert not [name for name in modules.split() if name.startswith(("agent.cli", "central"))]
