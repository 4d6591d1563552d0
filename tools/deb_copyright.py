"""What a package's copyright file says: our licence, and each bundled library's, with where its text lies."""

import re
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

_LICENCE_FILES = re.compile(r"(?i)(licen[cs]e|copying|notice|copyright|authors)")
_HEAD = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: whitepanda
Comment: The libraries below {site} are other people's, unchanged but for
 their tests and headers, which are left out. Their licences are named here by
 their makers' own words; the texts are in the files that are listed.

Files: *
Copyright: 2026 the whitepanda authors
License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.
"""


def copyright_text(site: Path, installed: str) -> str:
    """Return the copyright file of a package.

    Args:
        site: the built site-packages; each library's metadata is in its `.dist-info` there.
        installed: where `site` will be once it is installed.

    Raises:
        SystemExit: a library names no licence, neither in words nor by a file.

    """
    parts = [_HEAD.format(site=installed)]
    for folder in sorted(site.glob("*.dist-info")):
        meta = HeaderParser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))
        if meta["Name"] != "whitepanda":
            parts.append(_library(folder, meta, installed))
    return "\n".join(parts)


def _library(folder: Path, meta: Message, installed: str) -> str:
    texts = sorted(p for p in folder.rglob("*") if p.is_file() and _LICENCE_FILES.match(p.name))
    words = licence(meta) or ("see the files below" if texts else "")
    if not words:
        raise SystemExit(f"whitepanda: {meta['Name']} {meta['Version']} names no licence; it cannot be bundled")
    name = f"{meta['Name']}-{meta['Version']}"
    author = meta["Author"] or meta["Author-email"] or meta["Maintainer"] or meta["Maintainer-email"] or ""
    author = " ".join(author.split()) or f"the authors of {meta['Name']}"
    lines = [
        f"Files: {installed}/{folder.name.split('-')[0]}*",
        f"Copyright: {author}",
        f"License: {name}",
        f" {words}",
    ]
    lines += [f" {installed}/{path.relative_to(folder.parent)}" for path in texts]
    return "\n".join(lines) + "\n"


def licence(meta: Message) -> str:
    """Return the licence in a few words, by what says it most exactly."""
    if meta["License-Expression"]:
        return str(meta["License-Expression"])
    classes = [c.rpartition(" :: ")[2] for c in meta.get_all("Classifier", []) if c.startswith("License ::")]
    if classes:
        return ", ".join(classes)
    text = str(meta["License"] or "").strip()
    return text.splitlines()[0] if text else ""
