"""`make test` in several processes: every test in exactly one of them; what fails or skips in one fails the whole."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_spec = importlib.util.spec_from_file_location("run_tests", ROOT / "tools" / "run_tests.py")
run_tests = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(run_tests)


def files_of(arguments):
    """What pytest collects by these arguments: folders, and --ignore=FOLDER."""
    ignored = [ROOT / text.partition("=")[2] for text in arguments if text.startswith("--ignore=")]
    folders = [ROOT / text for text in arguments if not text.startswith("-")]
    assert all(folder.is_dir() for folder in (*folders, *ignored))
    found = [file for folder in folders for file in folder.rglob("test_*.py")]
    return [file for file in found if not any(file.is_relative_to(folder) for folder in ignored)]


def test_every_test_is_in_exactly_one_part():
    beside, alone = run_tests.parts()
    found = [file for part in (*beside, alone) for file in files_of(part)]
    assert sorted(found) == sorted((ROOT / "tests").rglob("test_*.py"))


def test_what_shares_the_machines_servers_runs_alone():
    beside, _ = run_tests.parts()
    for part in beside:
        assert all("integration" not in file.parts for file in files_of(part))


@pytest.mark.parametrize(
    ("texts", "status"),
    [
        (("def test(): pass",) * 3, 0),
        (("def test(): assert 0", "def test(): pass", "def test(): pass"), 1),
        (
            ("def test(): pass", "", "def test(): assert 0"),
            5,
        ),  # nothing was collected: a folder that was renamed
        (("def test(): pass", "def test(): pass", "def test(): assert 0"), 1),
    ],
)
def test_a_part_that_fails_fails_the_whole(tmp_path, capfd, texts, status):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    for name, text in zip("abc", texts, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"test_{name}.py").write_text(text)
    assert run_tests.run([["a", "-p", "no:cacheprovider"], ["b"]], ["c"], tmp_path) == status
    out = capfd.readouterr().out
    assert [line.split(":")[0] for line in out.splitlines() if line.startswith("== ")] == [
        "== a -p no",
        "== b",
        "== c",
        "== all parts",
    ]


def test_ci_s_policy_for_skipped_tests_holds_in_each_part(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("CI", "true")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / f"test_{name}.py").write_text("def test(): pass")
    (tmp_path / "a" / "test_a.py").write_text("import pytest\n\ndef test(): pytest.skip('no hardware')")
    policy = (ROOT / "tests" / "conftest.py").read_text()
    (tmp_path / "a" / "conftest.py").write_text(policy)
    assert run_tests.run([["a"], ["b"]], ["c"], tmp_path) == 1
    assert "NOT LISTED in tests/skips.toml: a/test_a.py::test" in capfd.readouterr().out
