"""`make test` in several processes: every test in exactly one of them; what fails or skips in one fails the whole."""

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_spec = importlib.util.spec_from_file_location("run_tests", ROOT / "tools" / "run_tests.py")
run_tests = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(run_tests)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """These small pytests need no plugins, which are most of what they take to start."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def files_of(arguments):
    """What pytest collects by these arguments: folders, files and --ignore=PATH."""
    ignored = [ROOT / text.partition("=")[2] for text in arguments if text.startswith("--ignore=")]
    named = [ROOT / text for text in arguments if text.startswith("tests")]
    assert all(path.exists() for path in (*named, *ignored))
    found = [file for path in named for file in (path.rglob("test_*.py") if path.is_dir() else [path])]
    return [file for file in found if not any(file.is_relative_to(path) for path in ignored)]


def test_every_file_is_in_one_part_and_of_unit_tests_none_is_alone():
    (host, central, *units), alone = run_tests.parts()
    found = [file for part in (host, central, *units) for file in files_of(part)]
    assert sorted(found) == sorted((ROOT / "tests").rglob("test_*.py"))
    assert sorted(files_of(host) + files_of(central)) == sorted(files_of(alone))
    unheard = [file for unit in units for file in files_of(unit) if "mark.alone" in file.read_text()]
    assert unheard == [Path(__file__)]  # which writes such tests


def test_every_file_is_in_one_part_of_the_long_tests_too():
    halves, alone, idle = run_tests.long_parts()
    rest = [file for half in halves for file in files_of(half)]
    computing = [file for part in idle for file in files_of(part)]
    assert sorted(computing + rest) == sorted((ROOT / "tests").rglob("test_*.py"))
    campaigns = ROOT / "tests" / "unit" / "agent" / "calibrate"  # in a half, as they measure; never alone
    assert sorted(file for file in rest if campaigns not in file.parents) == sorted(files_of(alone))
    assert {Path(__file__)} == {file for file in computing if "mark.alone" in file.read_text()}  # it writes such tests
    assert [part[part.index("-m") + 1] for part in (*idle, *halves, alone)] == [
        "long",
        "long",
        "long and not alone",
        "long and not alone",
        "long and alone",
    ]


NOTE = "    import pathlib; pathlib.Path({file!r}).open('a').write({name!r} + '\\n')\n"
LAB = "import pytest\n@pytest.fixture\ndef lab(): pass\n@pytest.fixture\ndef vms(lab): pass\n"


@pytest.mark.long
def test_each_test_runs_once_and_those_of_the_lab_alone_after_the_others(tmp_path, capfd):
    """The real parts, over other tests: of each folder, with and without the lab, marked and not."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    long\n    alone\n")
    said = str(tmp_path / "said")

    def write(folder, name, before="", takes=""):
        path = tmp_path / "tests" / folder / f"test_{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{before}\ndef test({takes}):\n{NOTE.format(file=said, name=name)}")

    beside = {"agent": "unit/agent", "uplink": "unit/agent", "house": "unit/house"}
    beside |= {"builds": "unit/central", "journal": "unit/central", "dfactor": "unit/central/models"}
    beside |= {"plan": "unit/central/models"}
    beside |= {"host_own": "integration", "deep": "integration/arm64", "kill": "integration"}
    for name, folder in beside.items():
        write(folder, name)
    write("integration", "minutes", "import pytest\n@pytest.mark.long")
    write("integration", "measured", "import pytest\n@pytest.mark.alone")
    write("integration/arm64", "lab", LAB, "lab")
    write("integration", "host_vms", LAB, "vms")
    write("integration", "events", LAB, "vms")
    conftest = ROOT / "tests" / "integration" / "conftest.py"
    (tmp_path / "tests" / "integration" / "conftest.py").write_text(conftest.read_text())
    assert run_tests.run(*run_tests.parts(tmp_path), root=tmp_path) == 0, capfd.readouterr().out
    ran = (tmp_path / "said").read_text().split()
    assert sorted(ran[: len(beside)]) == sorted(beside)
    assert sorted(ran[len(beside) :]) == ["events", "host_vms", "lab", "measured"]


@pytest.mark.long
def test_what_one_part_leaves_for_the_others_they_find_and_nobody_afterwards(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    begin = "import os, pathlib, sys\nfolder = pathlib.Path(os.environ['WHITEPANDA_TEST_DEBS'])\ndef test(): "
    said = tmp_path / "said"
    texts = {
        "a": "(folder / 'x.deb').touch()",
        "b": f"pathlib.Path({str(said)!r}).write_text(str(folder)); assert (folder / 'x.deb').exists()",
        "c": "assert not sys.dont_write_bytecode",  # what was compiled
    }
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / f"test_{name}.py").write_text(begin + text)
    assert run_tests.run([["a", "-p", "no:cacheprovider"], ["c"]], ["b"], root=tmp_path) == 0, capfd.readouterr().out
    assert not Path(said.read_text()).exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("texts", "status"),
    [
        (("def test(): assert 0", "def test(): pass", "def test(): pass"), 1),
        (("def test(): pass", "", "def test(): assert 0"), 5),  # nothing was collected: a folder that was renamed
        (("def test(): pass", "def test(): pass", "def test(): assert 0"), 1),
    ],
)
def test_a_part_that_fails_fails_the_whole(tmp_path, capfd, texts, status):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    for name, text in zip("abc", texts, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"test_{name}.py").write_text(text)
    assert run_tests.run([["a", "-p", "no:cacheprovider"], ["b"]], ["c"], root=tmp_path) == status
    out = capfd.readouterr().out
    said = [line.split(":")[0] for line in out.splitlines() if line.startswith("== ")]
    assert [line for line in said if "test_c" not in line and "again" not in line] == [
        "== a -p no",
        "== b",
        "== c",
        "== all parts",
    ]


IDLE = (
    "import os, pathlib\n"
    "def test(tmp_path):\n"
    "    pathlib.Path('idle.said').write_text("
    "f'{os.sched_getscheduler(0)} {tmp_path.parent} {os.environ[\"WHITEPANDA_TEST_PATIENCE\"]}')\n"
)


@pytest.mark.long
@pytest.mark.parametrize(("passes", "status"), [(2, 0), (3, 1)], ids=["once", "twice"])
def test_what_fails_alone_is_repeated_once_and_both_outcomes_are_said(tmp_path, capfd, passes, status):
    """Only what failed runs again; what fails in a part beside others fails at once."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    count = (
        "from pathlib import Path\n"
        "def count(name):\n"
        "    with open(f'{name}.said', 'a') as file: file.write('x')\n"
        "    return len(Path(f'{name}.said').read_text())\n"
        f"def test_busy(): assert count('busy') >= {passes}\n"
        "def test_calm(): count('calm')\n"
    )
    for name, text in {"a": "def test(): pass", "b": count, "c": IDLE}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / f"test_{name}.py").write_text(text)
    assert run_tests.run([["a"]], ["b"], [["c"]], root=tmp_path) == status
    assert [len((tmp_path / f"{name}.said").read_text()) for name in ("busy", "calm")] == [2, 1]
    scheduler, files, patience = (tmp_path / "idle.said").read_text().split()
    assert int(scheduler) == os.SCHED_IDLE
    assert float(patience) > 1
    assert len(files) <= len("/tmp/pytest-of-root/pytest-100")
    *_, parts, repeated = capfd.readouterr().out.splitlines()
    assert parts.endswith(f"exit statuses [0, 0, {status}]")
    outcome = "failed, and failed again" if status else "failed, and passed when repeated"
    assert repeated == f"== b/test_b.py::test_busy: {outcome}"


@pytest.mark.long
def test_ci_s_policy_for_skipped_tests_holds_in_each_part(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("CI", "true")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / f"test_{name}.py").write_text("def test(): pass")
    (tmp_path / "a" / "test_a.py").write_text("import pytest\n\ndef test(): pytest.skip('no hardware')")
    policy = (ROOT / "tests" / "conftest.py").read_text()
    (tmp_path / "a" / "conftest.py").write_text(policy)
    assert run_tests.run([["a"], ["b"]], ["c"], root=tmp_path) == 1
    assert "NOT LISTED in tests/skips.toml: a/test_a.py::test" in capfd.readouterr().out
