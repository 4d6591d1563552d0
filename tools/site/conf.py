"""Sphinx's configuration of the site that tools/build_docs.py makes of docs/."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygments.lexers.special import TextLexer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "whitepanda"
copyright = "the whitepanda authors, Apache-2.0"  # noqa: A001 - the name is Sphinx's
extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["navigation.toml"]
highlight_language = "text"
nitpicky = True
smartquotes = False  # `--json` stays two hyphens, and what is quoted can be copied

# Headings are linked to by GitHub's anchors, which people see first.
myst_heading_anchors = 6
# Nothing but CommonMark and tables: a page reads the same on GitHub.
myst_enable_extensions: list[str] = []

html_theme = "furo"
html_title = "whitepanda"
html_copy_source = False
html_show_sphinx = False
html_use_index = False
html_domain_indices = False
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_theme_options = {"footer_icons": [], "top_of_page_buttons": []}


def navigation(docs: Path) -> list[dict[str, Any]]:
    """Read the sections of navigation.toml, each with the pages that exist."""
    sections = []
    for section in tomllib.loads((docs / "navigation.toml").read_text(encoding="utf-8"))["section"]:
        pages = [page for page in section["pages"] if (docs / f"{page}.md").exists()]
        if "folder" in section:
            found = sorted((docs / section["folder"]).glob("*.md"))
            pages += [f"{section['folder']}/{page.stem}" for page in found]
        sections.append({"title": section["title"], "pages": pages})
    return sections


def _append_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Give the front page the tables of contents that Sphinx makes the navigation of."""
    if page == root_doc:
        for section in navigation(Path(app.srcdir)):
            pages = "\n".join(section["pages"])
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {section['title']}\n\n{pages}\n```\n"


def setup(app: Sphinx) -> None:
    """Register whitepanda's directives."""
    app.connect("source-read", _append_navigation)
    app.add_lexer("csv", TextLexer)
