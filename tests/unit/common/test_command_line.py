"""A wrong command line is reported in one line; who reads no longer ends the command, as a pipe's reader does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from whitepanda.common import cli

WHITEPANDA = Path(sys.executable).parent / "whitepanda"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command: (exit code, stdout, stderr)."""

    def _run(*words):
        monkeypatch.setattr(sys, "argv", ["whitepanda", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        reported = capsys.readouterr()
        return ended.value.code, reported.out, reported.err

    return _run


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ("record x.jsonl --seconds -1", "--seconds: must be at least 0.1 (value -1); see `whitepanda record --help`"),
        ("demo --seed abc", "--seed: must be a valid integer (value abc); see `whitepanda demo --help`"),
        ("vms --jsn", "--jsn: no such option, did you mean --json?"),
        ("demo --hosts 3", "--hosts: no such option; see `whitepanda demo --help`"),
        ("recrd x.jsonl", "no such command 'recrd', did you mean 'record'?"),
        ("agent runn", "no such command 'runn', did you mean 'run'?"),
        ("record", "missing argument 'file'; see `whitepanda record --help`"),
        ("agent run", "missing option '--config' / '-c'; see `whitepanda agent run --help`"),
        ("record a b", "got unexpected extra argument(s) (b); see `whitepanda record --help`"),
        ("record x.jsonl --seconds", "option '--seconds' requires an argument"),
    ],
)
def test_a_wrong_command_line_is_one_line(run, words, reported):
    assert run(*words.split()) == (2, "", f"error: {reported}\n")


def test_a_command_that_is_given_nothing_shows_its_help(run):
    code, out, err = run("agent")
    assert (code, err) == (2, "") and "Usage: whitepanda agent" in out


def test_codes_of_commands_stay_theirs(run, tmp_path):
    assert run("--version")[0] == 0
    assert run("check-config", str(tmp_path / "none"))[0] == 2
    assert run("explain", "vm", "--socket", str(tmp_path / "none"))[0] == 4


@pytest.mark.long
@pytest.mark.parametrize(
    "words", ["agent --help", "--version", "doctor", "doctor --json", "check-config FILE", "trace presets"]
)
def test_without_a_reader_it_ends_as_sigpipe_would_have_it(words, tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("[agent]\n")
    reader, writer = os.pipe()
    os.close(reader)
    command = [WHITEPANDA, *words.replace("FILE", str(file)).split()]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_it_ends_well_where_nobody_gave_it_an_output():
    done = subprocess.run(["sh", "-c", '"$0" check-config /nowhere >&-', WHITEPANDA], check=False)
    assert done.returncode == 2
    done = subprocess.run(["sh", "-c", '"$0" --version >&-', WHITEPANDA], check=False)
    assert done.returncode == 0
