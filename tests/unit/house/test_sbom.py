"""A package's SBOM: what is in it, valid CycloneDX, the same from the same input, checked against locks."""

import hashlib
import json

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.support.debian_packages import tool

deb_sbom, lock = tool("deb_sbom"), tool("lock")
ONE, TWO = "1" * 64, "2" * 64
FILES = {"exact": ("exact-1.0-py3-none-any.whl", ONE), "words-of": ("words_of-1.0.post1.tar.gz", TWO)}
DATE = 1_700_000_000


def library(site, name, version, metadata):
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    text = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{metadata}\n"
    (folder / "METADATA").write_text(text)


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site-packages"
    library(folder, "whitepanda", "0.1.0", "License-Expression: Apache-2.0\n")
    library(folder, "exact", "1.0", "License-Expression: MIT OR Apache-2.0\n")
    library(folder, "Words_Of", "1.0.post1", "Classifier: License :: OSI Approved :: BSD License\n")
    return folder


@pytest.fixture
def document(site):
    return json.loads(deb_sbom.sbom("whitepanda-agent", site, FILES, DATE))


def test_it_names_exactly_the_bundled_libraries(document):
    assert document["metadata"]["component"]["name"] == "whitepanda-agent"
    assert document["metadata"]["component"]["version"] == "0.1.0"
    assert document["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    exact, words = document["components"]
    assert exact == {
        "type": "library",
        "bom-ref": "pkg:pypi/exact@1.0",
        "name": "exact",
        "version": "1.0",
        "hashes": [{"alg": "SHA-256", "content": ONE}],
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
        "purl": "pkg:pypi/exact@1.0",
        "properties": [{"name": "whitepanda:file", "value": "exact-1.0-py3-none-any.whl"}],
    }
    assert (words["purl"], words["licenses"]) == ("pkg:pypi/words-of@1.0.post1", [{"license": {"name": "BSD License"}}])
    assert document["dependencies"] == [{"ref": "whitepanda-agent", "dependsOn": [exact["bom-ref"], words["bom-ref"]]}]


def test_it_is_valid_by_the_schema(document):
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(document)) is None
    document["components"][0]["type"] = "book"  # the check does find errors
    assert validator.validate_str(json.dumps(document)) is not None


def test_the_same_input_gives_the_same_bytes_and_another_version_another_number(site):
    one, two = (deb_sbom.sbom("whitepanda-agent", site, FILES, DATE) for _ in range(2))
    assert one == two
    other = deb_sbom.of_version(one, "0.1.0-2")
    assert json.loads(other)["metadata"]["component"]["version"] == "0.1.0-2"
    assert json.loads(other)["serialNumber"] != json.loads(one)["serialNumber"]
    assert deb_sbom.of_version(other, "0.1.0-2") == other
    assert deb_sbom.of_version(other, "0.1.0") == one


def test_a_library_that_pip_did_not_install_is_an_error(site):
    library(site, "stowaway", "1.0", "License-Expression: MIT\n")
    with pytest.raises(SystemExit, match=r"stowaway 1\.0 is in the package, but pip did not install it"):
        deb_sbom.sbom("whitepanda-agent", site, FILES, DATE)


def test_the_page_s_library_is_in_it(site):
    path = site / deb_sbom.VENDORED[0][0]
    path.parent.mkdir(parents=True)
    path.write_bytes((lock.ROOT / deb_sbom.VENDORED[0][0]).read_bytes())
    document = json.loads(deb_sbom.sbom("whitepanda-central", site, FILES, DATE))
    (uplot,) = (part for part in document["components"] if part["name"] == "uplot")
    assert uplot["purl"].startswith("pkg:npm/uplot@1.")
    assert uplot["hashes"][0]["content"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_files_are_those_that_pip_reports(tmp_path):
    report = tmp_path / "report.json"
    source = {"url": "https://example.net/a/Some_Name-1.0%2Bcpu.whl", "archive_info": {"hashes": {"sha256": ONE}}}
    report.write_text(json.dumps({"install": [{"download_info": source, "metadata": {"name": "Some_Name"}}]}))
    assert deb_sbom.installed(report) == {"some-name": ("Some_Name-1.0+cpu.whl", ONE)}


def test_a_library_whose_file_no_lock_allows_is_named(document, tmp_path, monkeypatch, capsys):
    locks = {
        "x": [lock.Pin("exact==1.0", "", (f"sha256:{ONE}",)), lock.Pin("words-of==1.0.post1", "", (f"sha256:{TWO}",))]
    }
    monkeypatch.setattr(lock, "every_lock", lambda: locks)
    file = tmp_path / "sbom.cdx.json"
    file.write_text(json.dumps(document))
    assert deb_sbom.main([str(file)]) == 0
    assert "2 components, all locked" in capsys.readouterr().out
    document["components"][1]["hashes"][0]["content"] = ONE
    file.write_text(json.dumps(document))
    assert deb_sbom.main([str(file)]) == 1
    assert "pkg:pypi/words-of@1.0.post1 is not of a file that requirements/*.lock allow" in capsys.readouterr().err
