"""check-config: whose file it is, one line per file, warnings for files that are named and not there."""

import json
import sys
from importlib import metadata

import pytest
from typer.testing import CliRunner

from agent.cli import check_config as command
from central.pki import issue, make_ca
from whitepanda.common import cli
from whitepanda.common.tls import TlsFiles


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run check-config in the folder `tmp_path`: (exit code, stdout, stderr)."""

    def _run(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["whitepanda", "check-config"])
        result = CliRunner().invoke(cli.build(), ["check-config", *arguments])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr

    return _run


@pytest.fixture
def write(tmp_path):
    def _write(name, text):
        (tmp_path / name).write_text(text)

    return _write


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    make_ca(folder)
    return issue(folder, "host"), issue(folder, "central", server=True, addresses=["localhost"])


def tls_table(files):
    return f"ca = '{files.ca}'\ncertificate = '{files.certificate}'\nkey = '{files.key}'\n"


@pytest.fixture
def central(pki):
    """The beginning of a file that central takes."""
    return "[central.tls]\n" + tls_table(pki[1])


def test_files_of_both_kinds_are_recognised(run, write, central):
    write("a.toml", "[agent]\n")
    write("c.toml", central)
    code, out, _ = run("a.toml", "c.toml")
    assert (code, out) == (0, "a.toml: ok (agent)\nc.toml: ok (central)\n")


def test_one_clear_line_and_exit_code_2(run, write):
    write("a.toml", "[agent]\ntick = 1\n")
    code, out, err = run("a.toml")
    assert (code, out) == (2, "")
    assert err.startswith("error: a.toml: unknown key 'agent.tick' (value 1); known here: host, ")
    assert err.count("\n") == 1


def test_one_bad_file_does_not_hide_the_others(run, write):
    write("bad.toml", "[central]\nlisten = 'nowhere'\n")
    write("good.toml", "[agent]\n")
    code, out, err = run("bad.toml", "good.toml", "nope.toml")
    assert (code, out) == (2, "good.toml: ok (agent)\n")
    assert err.splitlines() == [
        "error: bad.toml: central.listen must be host:port (value 'nowhere')",
        "error: nope.toml: cannot read: No such file or directory",
    ]


@pytest.mark.parametrize(("text", "has"), [("", "none"), ("[tool]\n[project]\n", "[tool], [project]")])
def test_a_file_of_another_program_is_distinguished(run, write, text, has):
    write("x.toml", text)
    code, _, err = run("x.toml")
    assert code == 2
    assert (
        err == f"error: x.toml: not a whitepanda configuration: it needs a table [agent] or [central] (it has {has})\n"
    )


@pytest.mark.parametrize("url", ["//a:secret@db/w", "//db/w?user=a&password=secret"])
def test_a_password_that_everybody_may_read_is_warned_of(run, write, central, tmp_path, url):
    write("c.toml", f"{central}[incidents]\nurl = 'postgresql:{url}'\n")
    (tmp_path / "c.toml").chmod(0o644)
    code, out, err = run("c.toml")
    assert (code, out) == (0, "c.toml: ok (central)\n")
    assert err == (
        "warning: c.toml: incidents.url has a password, and everybody may read this file (mode 0644): chmod 0600, "
        "owned by the user that central runs as\n"
    )
    (tmp_path / "c.toml").chmod(0o640)
    assert run("c.toml") == (0, "c.toml: ok (central)\n", "")
    write("c.toml", f"{central}[incidents]\nurl = 'postgresql://a@db/w?passfile=/etc/pass'\n")
    (tmp_path / "c.toml").chmod(0o644)
    assert run("c.toml") == (0, "c.toml: ok (central)\n", "")


def test_a_secret_file_that_central_would_refuse_is_warned_of(run, write, central, tmp_path):
    write("c.toml", f"{central}[webhooks]\nsecret_file = 'nope'\n")
    code, out, err = run("c.toml")
    assert (code, out) == (0, "c.toml: ok (central)\n")
    assert err == "warning: c.toml: webhooks.secret_file nope: cannot read: No such file or directory\n"
    write("nope", "0123456789abcdef")
    (tmp_path / "nope").chmod(0o600)
    assert run("c.toml")[2] == ""


def test_a_value_that_is_none_of_a_few_is_reported_with_these(run, write):
    write("a.toml", "[agent]\n[sources.perf]\nmode = 'on'\n")
    code, _, err = run("a.toml")
    reported = 'error: a.toml: sources.perf.mode must be "off" or "auto" or "required", got \'on\'\n'
    assert (code, err) == (2, reported)


def test_all_that_is_wrong_with_an_agents_file_is_said_at_once(run, write):
    write(
        "a.toml",
        "[agent]\ntick_s = 'abc'\nwindow_s = 0.01\nhots = 'a'\nhost = 'a b'\n"
        "[uplink]\naddress = 'central'\nbatch_rows = 0\n"
        "reconnect_min_s = 9\nreconnect_max_s = 1\n[sources.perf]\nmode = 'on'\n[cloud_white]\nmodels = [3]\n"
        "[[jobs]]\npattern = 7\njob = 'x'\n[[jobs]]\npattern = '['\njob = 'x'\nworkers = 0\n",
    )
    code, out, err = run("a.toml")
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert all(line.startswith("error: a.toml: ") for line in lines)
    said = [line.removeprefix("error: a.toml: ") for line in lines]
    assert said[0] == "agent.tick_s must be a number, got 'abc'"
    assert [line.replace("unknown key ", "").split()[0].strip("':") for line in said] == [
        "agent.tick_s",
        "agent.window_s",
        "agent.hots",
        "uplink.batch_rows",
        "sources.perf.mode",
        "cloud_white.models[0]",
        "jobs[0].pattern",
        "jobs[1].workers",
        "agent.host",
        "uplink.reconnect_max_s",
        "uplink.address",
        "jobs[1].pattern",
    ]


def test_all_that_is_wrong_with_centrals_file_is_said_at_once(run, write):
    write(
        "c.toml",
        "[central]\nlisten = 'nowhere'\nreplica = 'a/b'\noperators = 'me'\n[build]\nslot_s = 0\ndays = 'x'\n"
        "[lake]\nraw_days = 40\nslot_days = 50\n[webhooks]\nurls = [1, 'ftp://x']\n",
    )
    _, _, err = run("c.toml")
    assert err.splitlines() == [
        "error: c.toml: central.operators must be a list, got 'me'",
        "error: c.toml: build.slot_s must be 1 to 86400 (value 0.0)",
        "error: c.toml: build.days must be a whole number, got 'x'",
        "error: c.toml: webhooks.urls[0] must be text in quotes, got 1",
        "error: c.toml: central.listen must be host:port (value 'nowhere')",
        "error: c.toml: central.replica must be 1 to 64 letters, digits and '-' (value 'a/b')",
        "error: c.toml: webhooks.urls[1] must be https://host[:port]/path (value begins with 'ftp')",
    ]


SIMULATED = "[agent]\n[sources.simulated]\nmode = 'auto'\nscenario = 's.toml'\n"


def test_files_that_are_not_there_are_warned_of_with_a_remedy(run, write):
    write("a.toml", SIMULATED)
    code, out, err = run("a.toml")
    assert (code, out) == (0, "a.toml: ok (agent)\n")
    assert err.splitlines() == [
        (
            "warning: a.toml: sources.simulated.scenario: s.toml does not exist; write it "
            '(docs/simulated.md has an example), or set sources.simulated.mode = "off"'
        )
    ]


def test_the_scenario_is_checked_too_and_named(run, write):
    write("a.toml", SIMULATED)
    write("s.toml", "sede = 3\n")
    code, out, err = run("a.toml")
    assert (code, out) == (2, "")
    assert err.startswith("error: s.toml: unknown key 'sede' (value 3); known here: ")
    write("s.toml", "[[vms]]\nname = 'v'\njob = 'j'\n")
    assert run("a.toml") == (0, "a.toml: ok (agent)\n", "")


def test_a_scenario_of_a_source_that_is_off_is_not_read(run, write):
    write("a.toml", SIMULATED.replace("auto", "off"))
    write("s.toml", "sede = 3\n")
    assert run("a.toml") == (0, "a.toml: ok (agent)\n", "")


def test_tls_files_that_do_are_not_spoken_of(run, write, pki):
    host, central = pki
    write("a.toml", "[agent]\n[uplink]\naddress = 'central:7443'\n[uplink.tls]\n" + tls_table(host))
    write("c.toml", "[central]\n[central.tls]\n" + tls_table(central))
    assert run("a.toml", "c.toml") == (0, "a.toml: ok (agent)\nc.toml: ok (central)\n", "")


def test_tls_files_that_will_not_do_are_warned_of(run, write, pki):
    host, central = pki
    write("a.toml", "[agent]\n[uplink.tls]\n" + tls_table(central))  # each has the other's
    write("c.toml", "[central]\n[central.tls]\n" + tls_table(host))
    code, out, err = run("a.toml", "c.toml")
    assert (code, out) == (2, "a.toml: ok (agent)\n")  # an agent measures without; central does not start
    first, second = err.splitlines()
    assert first.startswith(f"warning: a.toml: uplink.tls.certificate: {central.certificate} ")
    assert second.startswith(f"error: c.toml: central.tls.certificate: {host.certificate} ")


def test_tls_files_that_are_needed_and_not_set_are_warned_of(run, write):
    write("alone.toml", "[agent]\n")
    write("a.toml", "[agent]\n[uplink]\naddress = 'central:7443'\n")
    assert run("alone.toml")[2] == ""
    lines = run("a.toml")[2].splitlines()
    assert [line.split(";")[0] for line in lines] == [
        f"warning: a.toml: uplink.tls.{key} is not set" for key in ("ca", "certificate", "key")
    ]


def test_files_of_sources_that_are_off_are_not_asked_for(run, write):
    write("a.toml", "[agent]\n[sources.simulated]\nmode = 'off'\nscenario = 'none'\n")
    assert run("a.toml") == (0, "a.toml: ok (agent)\n", "")


def test_central_does_not_start_without_tls_files(run, write):
    write("c.toml", "[central]\n")
    code, out, err = run("c.toml")
    assert (code, out) == (2, "")
    assert [line.split()[2] for line in err.splitlines()] == [
        f"central.tls.{key}" for key in ("ca", "certificate", "key")
    ]


def test_files_that_are_not_there_yet_are_warned_of(run, write, central):
    write("a.toml", "[agent]\n[cloud_white]\nmodels = ['m.json']\n")
    write("c.toml", f"{central}[runtime]\nmodel = 'r'\n")
    code, _, err = run("a.toml", "c.toml")
    assert (code, err.splitlines()) == (
        0,
        [
            "warning: a.toml: cloud_white.models: m.json does not exist; make it with `whitepanda degradation fit`",
            "warning: c.toml: runtime.model: r does not exist; make it with `whitepanda runtime fit`",
        ],
    )


def test_centrals_tls_files_too(run, write):
    write("c.toml", "[central]\n[central.tls]\nca = 'x.pem'\ncertificate = 'y.pem'\nkey = 'z.pem'\n")
    code, out, err = run("c.toml")
    assert (code, out) == (2, "")
    assert [line.split(":")[2].strip() for line in err.splitlines()] == [
        "central.tls.ca",
        "central.tls.certificate",
        "central.tls.key",
    ]


def test_centrals_doubts_are_warnings(run, write, pki, tmp_path):
    make_ca(tmp_path / "other")
    central = pki[1]
    other = TlsFiles(ca=str(tmp_path / "other" / "ca.crt"), certificate=central.certificate, key=central.key)
    write("c.toml", "[central]\n[central.tls]\n" + tls_table(other))
    code, out, err = run("c.toml")
    assert (code, out) == (0, "c.toml: ok (central)\n")
    assert err.startswith("warning: c.toml: central.tls.certificate: ") and err.count("\n") == 1


def test_a_list_of_revoked_serials_that_central_would_refuse_is_an_error(run, write, central):
    write("c.toml", f"[central]\nrevoked_serials = 'revoked.txt'\n{central}")
    code, out, err = run("c.toml")
    assert (code, out) == (2, "")
    assert err.startswith("error: c.toml: central.revoked_serials: revoked.txt: cannot read the list")
    write("revoked.txt", "1a2b\nnode7\n")
    code, _, err = run("c.toml")
    assert code == 2
    assert "central.revoked_serials: revoked.txt, line 2: not a serial number" in err
    write("revoked.txt", "1a2b\n")
    assert run("c.toml") == (0, "c.toml: ok (central)\n", "")


def test_json(run, write):
    write("a.toml", "[agent]\n")
    write("b.toml", "[agent]\nhost = 3\n")
    code, out, err = run("--json", "a.toml", "b.toml")
    assert (code, err) == (2, "")
    assert json.loads(out) == [
        {"file": "a.toml", "kind": "agent", "ok": True, "errors": [], "warnings": []},
        {
            "file": "b.toml",
            "kind": "agent",
            "ok": False,
            "errors": ["b.toml: agent.host must be text in quotes, got 3"],
            "warnings": [],
        },
    ]


def test_a_kind_that_is_not_installed_here_is_named(run, write, monkeypatch):
    point = metadata.EntryPoint("central", "nosuchmodule.config:load", "whitepanda.config")
    monkeypatch.setattr(command, "_kind_of", lambda _file: point)
    write("c.toml", "[central]\n")
    code, _, err = run("c.toml")
    assert code == 2
    assert err == (
        "error: c.toml: cannot check a configuration of central:"
        " this installation lacks 'nosuchmodule';"
        " install it: `python3 tools/bootstrap.py central` in a checkout, or the Debian package whitepanda-central\n"
    )


def test_brackets_in_a_value_are_printed_as_they_are(run, write):
    write("[red]x.toml", "[agent]\nhost = 3\n")
    assert "[red]x.toml: agent.host" in run("[red]x.toml")[2]


def test_without_files_it_says_what_it_needs(run):
    assert run()[0] == 2
