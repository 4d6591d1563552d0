import re
import subprocess
import sys
from pathlib import Path

import pytest

from agent.config import load as load_agent
from collector.base import Reason
from collector.simulated.scenario import load as load_scenario

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(#[^)\s]*)?\)")


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_generated_pages_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate_docs.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr


def test_help_texts_have_the_programs_name_and_boxes_of_one_width() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    usages = [line for line in page.splitlines() if line.lstrip().startswith("Usage:")]
    assert len(usages) == page.count("## whitepanda ")
    assert [line for line in usages if not line.startswith("Usage: whitepanda ")] == []
    boxes = [line for line in page.splitlines() if line[:1] in "╭│╰" and line]
    assert {len(line) for line in boxes} == {100}
    assert "--config  -c  " in page


def test_lines_are_not_longer_than_160_columns() -> None:
    long = [
        f"{page.name}:{number}"
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 160 and not line.startswith("|")
    ]
    assert long == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name}: {target}"
        if anchor and path.suffix == ".md":
            assert anchor[1:] in anchors(path), f"{page.name}: {target}{anchor}"


def test_every_reason_code_has_a_remedy_in_the_guide() -> None:
    guide = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    rows = [line for line in guide.splitlines() if line.startswith("| `")]
    missing = [
        r.code
        for r in Reason
        if r is not Reason.UNSPECIFIED and not any(f"`{r.code}`" in row for row in rows)
    ]
    assert missing == []


def test_every_setting_has_a_meaning() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if line.endswith("|  |")] == []


def test_examples_of_the_simulated_hypervisor_are_taken(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "simulated.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    for name, text in zip(("agent.toml", "scenario.toml", "profiles.toml"), examples, strict=True):
        (tmp_path / name).write_text(text, encoding="utf-8")
    sources = load_agent(tmp_path / "agent.toml").sources
    modes = {name: getattr(sources, name).mode for name in sources.__struct_fields__}
    assert modes.pop("simulated") == "required"
    assert set(modes.values()) == {"off"}
    assert len(load_scenario(tmp_path / "scenario.toml").vms) == 3
    assert [vm.profile for vm in load_scenario(tmp_path / "profiles.toml").vms] == [
        "masstree",
        "no-interference",
    ]


def test_make_targets_of_the_docs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for target in re.findall(r"`make ([a-z][a-z-]*)", page.read_text(encoding="utf-8")):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"


def test_files_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name in re.findall(r"`((?:agent|central|collector)/[\w/]+\.py)`", text):
        assert (ROOT / name).exists(), name


def test_ci_calls_what_the_readme_tells() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make check" in script
    assert "make test" in script
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_no_package_index_is_named() -> None:
    for path in [*(ROOT / "requirements").iterdir(), ROOT / "pyproject.toml", ROOT / "Makefile"]:
        text = path.read_text(encoding="utf-8")  # aiohttp is a package's name
        assert not re.search(r"://|\bhttps?\b|index-url|find-links", text), path.name
