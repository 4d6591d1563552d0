"""How the packages are built, where that can be seen without building one; all of it is tests/integration's."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.debian_packages import tool

ROOT = Path(__file__).resolve().parents[3]
DEBIAN = ROOT / "packaging" / "debian"
build_debs, deb_copyright, deb_pages = map(tool, ("build_debs", "deb_copyright", "deb_pages"))


def test_a_wrong_side_and_a_wrong_version_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="there is no package 'agents'; there are agent and central"):
        build_debs.main(["agents"])
    with pytest.raises(SystemExit, match="'one' is no version of a Debian package"):
        build_debs.main(["--version", "one"])


def test_elsewhere_than_on_debian_12_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(build_debs, "PYTHON", tmp_path / "python3.11")
    with pytest.raises(SystemExit, match=r"building needs .*python3.11 \(Debian 12's python3\)"):
        build_debs.main(["agent"])
    monkeypatch.setattr(build_debs, "PYTHON", Path(sys.executable))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"building needs dpkg-deb \(Debian: dpkg\)"):
        build_debs.main(["agent"])


def test_the_time_is_the_release_s_or_the_commit_s(monkeypatch, tmp_path):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert build_debs.source_date() == 1_700_000_000
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(SystemExit, match="SOURCE_DATE_EPOCH is 'yesterday', which is no Unix time"):
        build_debs.source_date()
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    monkeypatch.setattr(build_debs, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(SystemExit, match=r"is no git checkout; set SOURCE_DATE_EPOCH"):
        build_debs.source_date()


def test_a_program_that_fails_is_reported_of_with_what_it_said():
    with pytest.raises(SystemExit, match=r"(?s)sh -c .* failed \(exit 3\):\nno room"):
        build_debs.run(["sh", "-c", "echo no room >&2; exit 3"])


@pytest.fixture(params=build_debs.SIDES)
def package(request, tmp_path):
    return build_debs.Package(request.param, tmp_path, 1_700_000_000)


def test_every_unit_is_one_package_s_and_starts_the_program_there(tmp_path):
    packages = [build_debs.Package(side, tmp_path, 0) for side in build_debs.SIDES]
    names = [name for package in packages for name in package._unit_names()]
    assert sorted(names) == sorted(path.name for path in (ROOT / "systemd").glob("whitepanda-*"))
    for package in packages:
        package._units()
        for path in (package.tree / "lib/systemd/system").iterdir():
            programs = re.findall(r"(?m)^Exec\w+=[-+!@]*(\S+)", path.read_text())
            assert set(programs) == {f"/opt/whitepanda/{package.side}/bin/whitepanda"}
        users = (package.tree / f"usr/lib/sysusers.d/{package.name}.conf").read_text()
        assert ("whitepanda-central" in users) == (package.side == "central")
    lines = (ROOT / "systemd" / "sysusers.conf").read_text().splitlines()
    shipped = "".join(path.read_text() for path in tmp_path.glob("*/usr/lib/sysusers.d/*")).splitlines()
    assert sorted(shipped) == sorted(line for line in lines if not line.startswith("#"))


def test_scripts_are_whole_and_a_shell_can_read_them(package, tmp_path):
    for name in ("postinst.sh", "prerm.sh", "postrm.sh", "launcher.sh"):
        text = package._fill(name)
        assert not re.search("@[A-Z_]+@", text)
        subprocess.run(["sh", "-n"], input=text, text=True, check=True)


def test_each_side_has_what_prometheus_and_grafana_take_of_it(tmp_path):
    shipped = {}
    for side in build_debs.SIDES:
        package = build_debs.Package(side, tmp_path, 0)
        package._monitoring()
        files = [path for path in package.tree.rglob("*") if path.is_file()]
        folder = package.tree / "usr/share/whitepanda" / side
        shipped[side] = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    packaging = ROOT / "packaging"
    every = [path for kind in ("prometheus/*.yml", "grafana/*.json") for path in packaging.glob(kind)]
    assert shipped["central"] == {str(path.relative_to(packaging)): path.read_bytes() for path in every}
    assert set(shipped["agent"]) == {name for name in shipped["central"] if name[:8] != "grafana/"} | {
        "grafana/host.json"
    }
    # A Prometheus' own configuration finds the rules beside it, in whatever folder that is.
    assert re.findall(r"rule_files:\n +- (\S+)\n", shipped["agent"]["prometheus/prometheus.yml"].decode()) == [
        "whitepanda.rules.yml"
    ]


def test_no_link_and_no_picture_of_the_shipped_docs_leads_nowhere(package):
    package._guides()
    doc = package.tree / "usr/share/doc" / package.name
    links = [
        (page, target)
        for page in doc.rglob("*.md")
        for target in re.findall(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)", page.read_text())
    ]
    assert len({page for page, _ in links}) > 30
    wrong = [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()]
    assert wrong == []
    assert not (doc / "navigation.toml").exists()


@pytest.mark.parametrize(
    ("installed", "words", "expected"),
    [
        (("agent", "central"), ["vms"], "agent vms"),
        (("agent", "central"), ["check-config", "a b"], "central check-config a b"),
        (("agent", "central"), [], "central "),
        (("agent",), ["lake", "verify"], "agent lake verify"),
        (("central",), ["doctor"], "central doctor"),
    ],
)
def test_the_launcher_takes_each_command_where_it_works_best(tmp_path, installed, words, expected):
    text = build_debs.Package("agent", tmp_path, 0)._fill("launcher.sh")
    for side in installed:
        program = tmp_path / side / "bin" / "whitepanda"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\necho "{side} $*"\n')
        program.chmod(0o755)
    text = text.replace("/opt/whitepanda", str(tmp_path))
    done = subprocess.run(["sh", "-s", "--", *words], input=text, capture_output=True, text=True, check=True)
    assert done.stdout == expected + "\n"


def test_a_postrm_deletes_state_on_purge_only(package, tmp_path):
    state = tmp_path / "state"
    script = package._fill("postrm.sh").replace(build_debs.STATE[package.side], str(state))
    for name in ("deb-systemd-helper", "systemctl"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    for argument, stays in (("remove", True), ("upgrade", True), ("disappear", True), ("purge", False)):
        state.mkdir(exist_ok=True)
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        subprocess.run(["sh", "-s", "--", argument], input=script, text=True, check=True, env=environment)
        assert state.exists() == stays, argument


def test_python_s_version_is_one_everywhere(package):
    control = (DEBIAN / f"{package.name}.control").read_text()
    assert "python3 (>= 3.11), python3 (<< 3.12)" in control
    assert build_debs.PYTHON.name == "python3.11"


def test_each_override_has_a_reason(package):
    lines = (DEBIAN / f"{package.name}.lintian-overrides").read_text().splitlines()
    reason = False
    for line in lines:
        if line.startswith("# "):
            reason = True
        else:
            assert reason, line
            assert line.startswith(f"{package.name}: "), line
    assert lines[0].startswith("# ")


# -- pages ---------------------------------------------------------------------------------------------------------


def test_what_roff_takes_for_commands_stays_text():
    assert deb_pages.text("a [bold]b[/bold] -1\n.so /etc/passwd\n'x \\fB\n\nend") == (
        "a b \\-1\n\\&.so /etc/passwd\n\\&'x \\efB\n.PP\nend"
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages") / "made"
    subprocess.run(
        [sys.executable, ROOT / "tools" / "deb_pages.py", folder, "central", "2026-01-31"],
        check=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
    )
    return folder


@pytest.mark.long
def test_pages_of_one_side_and_one_of_all(pages):
    names = {path.name for path in pages.glob("*.1")}
    assert {"whitepanda.1", "whitepanda-lake.1", "whitepanda-place.1"} <= names
    assert "whitepanda-vms.1" not in names  # the agent's package has it
    general = (pages / "whitepanda.1").read_text()
    assert general.startswith('.TH WHITEPANDA 1 "2026-01-31" "whitepanda ')
    assert "\n.B vms\nShow the VMs" in general
    lake = (pages / "whitepanda-lake.1").read_text()
    assert "\n.SS whitepanda lake verify\n" in lake


def complete(pages, *words):
    script = f'. {pages / "completion"}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _whitepanda; '
    script += 'echo "${COMPREPLY[*]}"'
    done = subprocess.run(["bash", "-c", script, "-", "whitepanda", *words], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_completion_in_a_real_bash(pages):
    assert complete(pages, "vm") == ["vms"]
    assert complete(pages, "lake", "ver") == ["verify"]
    assert complete(pages, "vms", "--js") == ["--json"]
    assert complete(pages, "lake", "verify", "/some/place", "--he") == ["--help"]
    assert complete(pages, "no-such", "x") == []


# -- licences ------------------------------------------------------------------------------------------------------


def library(site, name, metadata, *files):
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{metadata}\n")
    for file in files:
        (folder / file).write_text("the text")


def test_each_library_s_licence_is_named_with_where_its_text_is(tmp_path):
    library(tmp_path, "exact", "License-Expression: MIT\nAuthor: A. Maker\n", "LICENSE")
    library(tmp_path, "classed", "Classifier: License :: OSI Approved :: BSD License\n")
    library(tmp_path, "worded", "License: Zlib\n")
    library(tmp_path, "filed", "", "COPYING")
    library(tmp_path, "whitepanda", "License-Expression: Apache-2.0\n", "LICENSE")
    text = deb_copyright.copyright_text(tmp_path, "/opt/x")
    parts = text.split("\n\n")
    assert parts[3] == (
        "Files: /opt/x/exact*\nCopyright: A. Maker\nLicense: exact-1.0\n MIT\n /opt/x/exact-1.0.dist-info/LICENSE"
    )
    assert "Copyright: the authors of classed\nLicense: classed-1.0\n BSD License" in text
    assert "License: worded-1.0\n Zlib" in text
    assert "License: filed-1.0\n see the files below\n /opt/x/filed-1.0.dist-info/COPYING" in text
    assert text.count("whitepanda-1.0") == 0


def test_a_library_without_a_licence_is_not_bundled(tmp_path):
    library(tmp_path, "bare", "")
    with pytest.raises(SystemExit, match=r"bare 1\.0 names no licence; it cannot be bundled"):
        deb_copyright.copyright_text(tmp_path, "/opt/x")


# -- the container file --------------------------------------------------------------------------------------------


def test_the_container_runs_as_nobody_else_and_writes_in_one_place():
    text = (ROOT / "packaging" / "container" / "Containerfile").read_text()
    steps = re.findall(r"(?m)^([A-Z]+) (.*)", text)
    words = [word for word, _ in steps]
    assert words.index("USER") > max(i for i, word in enumerate(words) if word in {"RUN", "COPY"})
    assert dict(steps)["USER"] == "whitepanda-central"
    assert [value for word, value in steps if word == "VOLUME"] == [build_debs.STATE["central"]]
    assert "/opt/whitepanda/central/bin/whitepanda" in dict(steps)["ENTRYPOINT"]
    assert dict(steps)["EXPOSE"] == "7443"
    assert "HEALTHCHECK" in words
    assert "ADD" not in words


def test_a_state_folder_that_cannot_go_does_not_fail_the_purge(tmp_path):
    """One that is mounted is emptied and busy; here `rm` says so of the first."""
    text = (DEBIAN / "postrm.sh").read_text()
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    known = {"UNITS": "a.service", "STATE": f"{first} {second}", "PACKAGE": "whitepanda-agent"}
    for name, value in known.items():
        text = text.replace(f"@{name}@", value)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, body in (
        ("deb-systemd-helper", "exit 0"),
        ("rm", f'case "$2" in {first}) exit 1;; *) exec /bin/rm "$@";; esac'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    done = subprocess.run(
        ["sh", "-s", "purge"], input=text, capture_output=True, text=True, check=False,
        env={"PATH": f"{programs}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert (done.returncode, second.exists()) == (0, False)
    assert done.stderr == (
        f"whitepanda-agent: {first} could not be deleted wholly (is it mounted?); delete what is left by hand\n"
    )
