"""The locks: what they must have, and that pip refuses a file that is not theirs. Nothing here asks the network."""

import base64
import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.debian_packages import tool

ROOT = Path(__file__).resolve().parents[3]
lock = tool("lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ONE, TWO = (f"sha256:{digit * 64}" for digit in "12")


def test_every_requirement_of_every_lock_has_hashes_and_no_lock_names_an_index():
    locks = lock.every_lock()
    assert {"base", "build", "central", "dev", "docs", "host", "pip"} <= set(locks)
    assert sum(len(pins) for pins in locks.values()) > 400
    assert [pin for pins in locks.values() for pin in pins if not pin.hashes] == []
    for path in lock.LOCKS.glob("*.lock"):
        assert not re.search(r"https?:|file:|--(?!hash=)", path.read_text()), path.name
        assert path.read_text() == lock.render(lock.read(path.stem)), f"{path.name}: run tools/lock.py"


def test_the_locks_agree_and_have_what_pyproject_requires():
    assert lock.problems(lock.every_lock(), PROJECT) == []


def test_compiled_libraries_are_locked_for_both_architectures():
    """Of each there are wheels for amd64, for arm64 and for several Pythons, so many hashes."""
    central = {pin.name: pin for pin in lock.read("central")}
    for name in ("cffi", "cryptography", "duckdb", "grpcio", "msgspec", "pyarrow"):
        assert len(central[name].hashes) > 10, name


def test_the_bundled_pip_is_the_release_that_is_locked():
    (pin,) = lock.read("pip")
    assert lock.version_of(lock.PIP.name) == ("pip", pin.version)
    assert f"sha256:{hashlib.sha256(lock.PIP.read_bytes()).hexdigest()}" in pin.hashes


def test_whatever_builds_is_locked():
    assert {"hatchling", "setuptools"} <= {pin.name for pin in lock.read("build")}
    no_backend = [pin for pin in lock.read("build") if pin.name != "hatchling"]
    (problem,) = lock.problems({"build": no_backend}, PROJECT)
    backend = PROJECT["build-system"]["requires"][0]
    assert problem == f"build.lock: nothing in it satisfies {backend} of pyproject.toml; pin a version"


def test_a_lock_is_read_as_it_is_written():
    pins = [
        lock.Pin("a==1!2.0", "python_full_version < '3.12'", (ONE, TWO)),
        lock.Pin("b-c==1.0.post1", "", (ONE,)),
        lock.Pin("d==1"),
    ]
    assert lock.parse(lock.render(pins), "x.lock") == pins


@pytest.mark.parametrize(
    "line",
    [
        "a>=1",
        "a",
        "a @ https://example.net/a.whl",
        "--no-binary :all:",
        "a==1 --hash=md5:00",
        "a==1 --hash=sha256:12",
        "a==1 ; python_version > '3' --no-binary=a",
        "-r other.lock",
    ],
)
def test_anything_but_a_version_with_hashes_is_refused(line):
    with pytest.raises(SystemExit, match=r"x\.lock: .* is no name==version with sha256 hashes"):
        lock.parse(line + "\n", "x.lock")


def test_a_lock_without_a_hash_or_with_others_than_its_neighbour_is_a_problem():
    project = {"build-system": {"requires": []}, "project": {"dependencies": ["a>=1"], "optional-dependencies": {}}}
    pin = lock.Pin("a==1.0", "", (ONE,))
    assert lock.problems({"base": [pin]}, project) == []
    assert lock.problems({"base": [replace(pin, hashes=())]}, project) == [
        "base.lock: a==1.0 has no hash; run tools/lock.py"
    ]
    assert lock.problems({"base": [pin], "build": [replace(pin, hashes=(TWO,))]}, project) == [
        "build.lock: a has other hashes than base.lock (1.0); pin the same"
    ]
    assert lock.problems({"base": [pin], "build": [replace(pin, requirement="a==1.1")]}, project) == [
        "build.lock: a has another version (1.1) than base.lock (1.0); pin the same"
    ]
    assert lock.problems({"base": [replace(pin, requirement="a==0.9")]}, project) == [
        "base.lock: nothing in it satisfies a>=1 of pyproject.toml; pin a version"
    ]


def test_new_files_of_a_version_are_taken_and_vanished_ones_are_an_error():
    pin = lock.Pin("a==1.0", "", (ONE,))
    assert lock.renewed(pin, (ONE, TWO)).hashes == (ONE, TWO)
    with pytest.raises(SystemExit, match=rf"a==1\.0: no index has the locked {ONE}"):
        lock.renewed(pin, (TWO,))


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("Some_Name-1.0-py3-none-any.whl", ("some-name", "1.0")),
        ("some.name-1.0.post1.tar.gz", ("some-name", "1.0.post1")),
        ("some-name-1.0.zip", ("some-name", "1.0")),
        ("some_name-1.0-py3.11.egg", None),
        ("some_name-1.0.exe", None),
        ("-.whl", None),
    ],
)
def test_which_version_a_file_is_of(file, expected):
    assert lock.version_of(file) == expected


# -- an index of one's own, and a real pip ---------------------------------------------------------------------------


def wheel(folder: Path, body: str = "answer = 42\n") -> str:
    """Write a wheel of `tiny` 1.0 there; return its hash."""
    folder.mkdir(parents=True, exist_ok=True)
    metadata = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    about = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {"tiny.py": body, "tiny-1.0.dist-info/METADATA": metadata, "tiny-1.0.dist-info/WHEEL": about}
    record = "".join(f"{name},{_digest(text)},{len(text)}\n" for name, text in files.items())
    files["tiny-1.0.dist-info/RECORD"] = record + "tiny-1.0.dist-info/RECORD,,\n"
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def _digest(text: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def pip_install(tmp_path: Path, pins: list, target: str) -> subprocess.CompletedProcess[str]:
    """As tools/bootstrap.py installs, from a folder of files in place of an index."""
    file = tmp_path / "x.lock"
    file.write_text(lock.render(pins))
    command = [sys.executable, f"{lock.PIP}/pip", "--isolated", "--disable-pip-version-check", "install", "-q"]
    command += ["--require-hashes", "--only-binary", ":all:", "--no-index", "--no-cache-dir"]
    command += ["--find-links", tmp_path / "files", "--target", tmp_path / target, "-r", file]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_pip_takes_the_locked_file_and_refuses_a_tampered_one(tmp_path):
    pin = lock.Pin("tiny==1.0", "", (wheel(tmp_path / "files"),))
    done = pip_install(tmp_path, [pin], "good")
    assert (done.returncode, (tmp_path / "good" / "tiny.py").exists()) == (0, True), done.stderr
    wheel(tmp_path / "files", "answer = 43\n")
    done = pip_install(tmp_path, [pin], "bad")
    assert (done.returncode, (tmp_path / "bad" / "tiny.py").exists()) == (1, False)
    assert "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.long
def test_pip_refuses_a_requirement_without_hashes(tmp_path):
    wheel(tmp_path / "files")
    done = pip_install(tmp_path, [lock.Pin("tiny==1.0")], "bare")
    assert (done.returncode, (tmp_path / "bare").exists()) == (1, False)
    assert "Hashes are required" in done.stderr


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An index in a folder, and another; nothing of the machine's configuration."""
    for name in ("first", "second"):
        (tmp_path / name / "tiny").mkdir(parents=True)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "first").as_uri())
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", (tmp_path / "second").as_uri())

    def publish(name: str, *files: tuple[str, str]) -> None:
        links = (f'<a href="{file}#{value.replace(":", "=")}">{file}</a>' for file, value in files)
        (tmp_path / name / "tiny" / "index.html").write_text("<!DOCTYPE html><html><body>" + "".join(links))

    return publish


@pytest.mark.long
def test_hashes_are_of_all_files_of_the_version_on_all_indexes(index):
    index("first", ("tiny-1.0.tar.gz", TWO), ("tiny-1.1.tar.gz", f"sha256:{'3' * 64}"))
    index("second", ("tiny-1.0.tar.gz", TWO), ("tiny-1.0-py3-none-any.whl", ONE))
    assert lock.Index().hashes(lock.Pin("tiny==1.0")) == (ONE, TWO)
    with pytest.raises(SystemExit, match=r"no index of pip's configuration has tiny==2\.0 with hashes"):
        lock.Index().hashes(lock.Pin("tiny==2.0"))


def test_indexes_that_disagree_about_a_file_are_an_error(index):
    index("first", ("tiny-1.0.tar.gz", TWO))
    index("second", ("tiny-1.0.tar.gz", ONE))
    with pytest.raises(SystemExit, match=rf"tiny-1\.0\.tar\.gz is {TWO} on one index and {ONE} on another"):
        lock.Index().hashes(lock.Pin("tiny==1.0"))
