"""The site of docs/: it builds without a warning, every page is reachable, and nothing is asked of other hosts."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.check_site import problems

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


def build(docs, out):
    """Exit code, standard output and standard error of the builder."""
    command = [sys.executable, ROOT / "tools" / "build_docs.py", "--docs", docs, "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.long  # 5 s of CPU; what most breaks it, links and the navigation, is looked at in every run
def test_the_site_builds_and_each_page_is_in_it(tmp_path):
    out = tmp_path / "site"
    code, reported, wrong = build(DOCS, out)
    assert (code, wrong) == (0, "")
    assert Path(reported.strip()) == out / "index.html"
    pages = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    assert {page for page in pages if not (out / page).is_file()} == set()
    front = (out / "index.html").read_text(encoding="utf-8")
    assert {page for page in pages if page.name != "index.html" and f'href="{page}"' not in front} == set()
    assert list(problems(out)) == []
    assert '"wsmeter":' in (out / "searchindex.js").read_text(encoding="utf-8")
    # Tables, and a table's code with a bar, are what they were written as.
    settings = (out / "configuration.html").read_text(encoding="utf-8")
    assert "<td><p>off | auto | required</p></td>" in settings
    assert settings.count("<table") == (DOCS / "configuration.md").read_text(encoding="utf-8").count("\n|---")


@pytest.mark.long
def test_what_is_wrong_is_reported_and_nothing_is_published(tmp_path):
    docs, out = tmp_path / "docs", tmp_path / "site"
    docs.mkdir()
    (docs / "navigation.toml").write_text('[[section]]\ntitle = "One"\npages = ["one", "not-yet"]\n')
    (docs / "index.md").write_text("# Front\n\n[gone](gone.md) [no such](one.md#no-such) [good](one.md#part)\n")
    (docs / "one.md").write_text("# One\n\n## Part\n")
    (docs / "outside.md").write_text("# Outside\n")
    code, reported, wrong = build(docs, out)
    assert code != 0
    assert reported == ""
    assert "index.md:3" in wrong
    assert "gone.md" in wrong
    assert "no-such" in wrong
    assert "outside.md: WARNING: document isn't included in any toctree" in wrong
    assert "good" not in wrong
    assert list(tmp_path.iterdir()) == [docs]


def test_other_peoples_folders_are_not_written_over(tmp_path):
    (tmp_path / "letter").write_text("dear")
    code, _, wrong = build(DOCS, tmp_path)
    assert code == 2
    assert wrong == f"build_docs: {tmp_path} is not empty and no whitepanda site; name another folder\n"
    code, _, wrong = build(tmp_path, tmp_path / "site")
    assert (code, wrong) == (2, f"build_docs: {tmp_path} has no index.md\n")


@pytest.mark.parametrize(
    ("html", "reported"),
    [
        ('<script src="https://cdn.example/x.js"></script>', "asks another host: https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//fonts.example/a">', "asks another host: //fonts.example/a"),
        ('<img src="http://x.example/a.png">', "asks another host: http://x.example/a.png"),
        ('<img srcset="https://x.example/a.png 2x">', "asks another host: https://x.example/a.png"),
        ("<style>@import 'https://x.example/a.css';</style>", "a style asks another host: https://x.example/a.css"),
        ('<p style="background: url(//x.example/a)">', "a style asks another host: //x.example/a"),
        ('<iframe src="ftp:a"></iframe>', "asks ftp:a"),
        ('<a href="b.html">', "dead link: b.html"),
        ('<a href="#none">', "missing anchor: #none"),
        ('<a href="a.html#none">', "missing anchor: a.html#none"),
        ('<a href="sub/">', "dead link: sub/"),
        ('<a href="https://x.example">', None),
        ('<a href="a.html#%70art"><a href="#part"><a href="style.css?v=1"><i id="part">', None),
        ('<img src="data:image/png;base64,AA">', None),
    ],
)
def test_pages_are_checked(tmp_path, html, reported):
    (tmp_path / "sub").mkdir()
    (tmp_path / "style.css").write_text("/* https://a.example */ b { background: url(c.png) }")
    (tmp_path / "a.html").write_text(html)
    assert list(problems(tmp_path)) == ([f"a.html: {reported}"] if reported else [])


def test_style_sheets_and_scripts_are_checked(tmp_path):
    (tmp_path / "a.html").write_text("")
    (tmp_path / "a.css").write_text("@font-face { src: url('https://fonts.example/a.woff') }")
    (tmp_path / "a.js").write_text(
        "// see https://a.example\nfetch('https://b.example/x'); x = 'http://www.w3.org/2000/svg'"
    )
    assert list(problems(tmp_path)) == [
        "a.css: asks another host: https://fonts.example/a.woff",
        "a.js: names another host: https://b.example/x",
    ]


def test_a_folder_without_pages_is_no_site(tmp_path):
    command = [sys.executable, ROOT / "tools" / "check_site.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"check_site: {tmp_path} has no pages; make them by `make docs`\n")


def test_each_page_has_one_place_in_the_navigation():
    """What `make docs` finds too, told at once: name a new page in docs/navigation.toml."""
    sections = tomllib.loads((DOCS / "navigation.toml").read_text(encoding="utf-8"))["section"]
    named = [page for section in sections for page in section["pages"]]
    assert len(named) == len(set(named))
    folders = [section["folder"] for section in sections if "folder" in section]
    assert {page.parent.name for page in DOCS.rglob("*.md")} == {"docs", *folders}
    assert {page.stem for page in DOCS.glob("*.md")} - {*named, "index"} == set()
