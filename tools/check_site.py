"""Check a folder of HTML as it is served: no dead links, no missing anchors, nothing asked of other hosts.

python tools/check_site.py FOLDER       a line per problem; exit code 1 if there is one, 2 if FOLDER has no pages
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: What a browser fetches by itself when it shows a page. A link (`a`) is followed by people only.
_FETCHED = {
    ("audio", "src"),
    ("embed", "src"),
    ("iframe", "src"),
    ("image", "href"),
    ("img", "src"),
    ("img", "srcset"),
    ("input", "src"),
    ("link", "href"),
    ("object", "data"),
    ("script", "src"),
    ("source", "src"),
    ("source", "srcset"),
    ("track", "src"),
    ("use", "href"),
    ("video", "poster"),
    ("video", "src"),
}
_LINKS = _FETCHED | {("a", "href"), ("area", "href"), ("form", "action")}
_OTHER_HOST = re.compile(r"^\s*(?:(?:https?|wss?|ftp):)?//", re.IGNORECASE)
_CSS_URL = re.compile(r"""(?:url\(|@import)\s*['"]?\s*((?:https?:)?//[^'")\s]+)""", re.IGNORECASE)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_LINE_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
_URL = re.compile(r"""(?:https?|wss?)://[^\s'"`)]+""", re.IGNORECASE)
#: Names of XML vocabularies look like addresses; no browser asks there.
_VOCABULARIES = ("http://www.w3.org/",)


@dataclass
class _Page(HTMLParser):
    """The anchors of a page, what it links to, and what it makes a browser fetch."""

    anchors: set[str] = field(default_factory=set)
    links: list[tuple[str, bool]] = field(default_factory=list)  # the target, whether it is fetched
    styles: list[str] = field(default_factory=list)
    _is_style: bool = False

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_style = tag == "style"
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag, name) == ("a", "name"):
                self.anchors.add(value)
            if name == "style":
                self.styles.append(value)
            if (tag, name.removeprefix("xlink:")) in _LINKS:
                self.links.append((value.split()[0] if name == "srcset" and value else value, (tag, name) in _FETCHED))

    def handle_data(self, data: str) -> None:
        if self._is_style:
            self.styles.append(data)


def problems(folder: Path) -> Iterator[str]:
    """Yield a line per problem of the pages, style sheets and scripts below a folder."""
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        pages[path.resolve()] = page = _Page()
        page.feed(path.read_text(encoding="utf-8"))
        page.close()
    for path, page in pages.items():
        where = path.relative_to(folder.resolve())
        for target, is_fetched in page.links:
            yield from (f"{where}: {wrong}" for wrong in _link_problems(path, target, pages, is_fetched=is_fetched))
        for text in page.styles:
            yield from (f"{where}: a style asks another host: {url}" for url in _CSS_URL.findall(text))
    for path in sorted(folder.rglob("*.css")):
        text = _COMMENT.sub("", path.read_text(encoding="utf-8"))
        yield from (f"{path.relative_to(folder)}: asks another host: {url}" for url in _CSS_URL.findall(text))
    for path in sorted(folder.rglob("*.js")):
        text = _LINE_COMMENT.sub("", _COMMENT.sub("", path.read_text(encoding="utf-8")))
        for url in _URL.findall(text):
            if not url.startswith(_VOCABULARIES):
                yield f"{path.relative_to(folder)}: names another host: {url}"


def _link_problems(path: Path, target: str, pages: dict[Path, _Page], *, is_fetched: bool) -> Iterator[str]:
    if _OTHER_HOST.match(target):
        if is_fetched:
            yield f"asks another host: {target}"
        return
    parts = urlsplit(target)
    if parts.scheme:
        if is_fetched and parts.scheme != "data":
            yield f"asks {target[:80]}"
        return
    found = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if found.is_dir():
        found /= "index.html"
    if not found.exists():
        yield f"dead link: {target}"
    elif parts.fragment and found in pages and unquote(parts.fragment) not in pages[found].anchors:
        yield f"missing anchor: {target}"


def main(arguments: list[str]) -> int:
    """Do what the module's docstring says."""
    if len(arguments) != 1:
        print("usage: check_site.py FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    if not any(folder.rglob("*.html")):
        print(f"check_site: {folder} has no pages; make them by `make docs`", file=sys.stderr)
        return 2
    found = list(problems(folder))
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
