"""A package's SBOM: CycloneDX 1.6, JSON, with each bundled library's version, licence, purl and hash.

tools/deb_sbom.py FILE [FILE ...]     are the libraries of an SBOM those that this checkout's locks allow?

The same environment gives the same bytes. tools/build_debs.py puts it into the package.
"""

import hashlib
import json
import re
import sys
import uuid
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import lock
from deb_copyright import licence

PRODUCT = "whitepanda"
#: Libraries of the page, files of the product: path, name in npm's registry, licence. The file says the version.
VENDORED = (("central/page/static/vendor/uPlot.iife.min.js", "uplot", "MIT"),)
_VERSION = re.compile(rb"\(v([0-9.]+)\)")


def fail(text: str) -> SystemExit:
    """Return what to raise: one line and exit status 1."""
    return SystemExit(f"whitepanda: {text}")


def installed(report: Path) -> dict[str, tuple[str, str]]:
    """Return which file each library came from: its name and SHA-256, by the library's canonical name.

    Args:
        report: of `pip install --report`.

    """
    found = {}
    for entry in json.loads(report.read_text(encoding="utf-8"))["install"]:
        source = entry["download_info"]
        file = unquote(Path(urlsplit(source["url"]).path).name)
        name = lock.canonical(entry["metadata"]["name"])
        found[name] = file, source["archive_info"]["hashes"]["sha256"]
    return found


def sbom(package: str, site: Path, files: dict[str, tuple[str, str]], date: int) -> str:
    """Return the SBOM of a package, as of the product's version.

    Args:
        package: its name.
        site: the built site-packages.
        files: which file each library came from, as `installed` returns.
        date: Unix time in seconds.

    Raises:
        SystemExit: a library is there that pip did not install, or names no licence.

    """
    libraries, version = [], ""
    for folder in sorted(site.glob("*.dist-info")):
        meta = HeaderParser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))
        if meta["Name"] == PRODUCT:
            version = str(meta["Version"])
        else:
            libraries.append(_library(meta, files))
    libraries += [_vendored(site / path, *rest) for path, *rest in VENDORED if (site / path).exists()]
    libraries.sort(key=lambda part: part["purl"])
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": "",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(date, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lifecycles": [{"phase": "build"}],
            "component": {
                "type": "application",
                "bom-ref": package,
                "name": package,
                "version": version,
                "licenses": [{"expression": "Apache-2.0"}],
            },
        },
        "components": libraries,
        "dependencies": [{"ref": package, "dependsOn": [part["bom-ref"] for part in libraries]}],
    }
    return _text(document)


def of_version(text: str, version: str) -> str:
    """Return an SBOM as of a Debian version of the same package."""
    document = json.loads(text)
    document["metadata"]["component"]["version"] = version
    return _text(document)


def _text(document: dict) -> str:
    """Return the file's text; the serial number follows from all else."""
    rest = json.dumps(document | {"serialNumber": ""}, sort_keys=True)
    document["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, rest).urn
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _component(kind: str, name: str, version: str, licences: list[dict], sha256: str) -> dict:
    purl = f"pkg:{kind}/{name}@{quote(version, safe='')}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
        "licenses": licences,
        "purl": purl,
    }


def _library(meta: Message, files: dict[str, tuple[str, str]]) -> dict:
    name = lock.canonical(meta["Name"])
    if name not in files:
        raise fail(f"{meta['Name']} {meta['Version']} is in the package, but pip did not install it")
    file, sha256 = files[name]
    if meta["License-Expression"]:
        licences = [{"expression": str(meta["License-Expression"])}]
    else:
        licences = [{"license": {"name": licence(meta) or "see the package's copyright file"}}]
    # Which of the version's files it is, of which the hash is: the wheel, or the source archive.
    of_file = {"properties": [{"name": "whitepanda:file", "value": file}]}
    return _component("pypi", name, str(meta["Version"]), licences, sha256) | of_file


def _vendored(path: Path, name: str, licence_id: str) -> dict:
    content = path.read_bytes()
    version = _VERSION.search(content[:200])
    if version is None:
        raise fail(f"{path} names no version in its first line")
    sha256 = hashlib.sha256(content).hexdigest()
    return _component("npm", name, version[1].decode(), [{"expression": licence_id}], sha256)


def unlocked(document: dict, locks: dict[str, list[lock.Pin]]) -> list[str]:
    """Return the libraries from Python's index of an SBOM whose file no lock allows, by purl."""
    allowed = {
        (lock.canonical(pin.name), pin.version, value)
        for pins in locks.values()
        for pin in pins
        for value in pin.hashes
    }
    return [
        part["purl"]
        for part in document["components"]
        if part["purl"].startswith("pkg:pypi/")
        and (part["name"], part["version"], f"sha256:{part['hashes'][0]['content']}") not in allowed
    ]


def main(paths: list[str]) -> int:
    """Do what the module's text says."""
    if not paths or paths[0].startswith("-"):
        print("usage: deb_sbom.py FILE [FILE ...]", file=sys.stderr)
        return 2
    locks, bad = lock.every_lock(), False
    for path in paths:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        wrong = unlocked(document, locks)
        for purl in wrong:
            print(f"whitepanda: {path}: {purl} is not of a file that requirements/*.lock allow", file=sys.stderr)
        if not wrong:
            print(f"{path}: {len(document['components'])} components, all locked or of this checkout")
        bad = bad or bool(wrong)
    return int(bad)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (OSError, ValueError, LookupError) as error:
        raise fail(f"cannot check: {error}") from error
