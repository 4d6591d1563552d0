import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from agent.config import AgentConfig
from agent.config import load as load_agent
from agent.display import render
from agent.sampling.metric_table import METRICS
from central.config import CentralConfig
from central.ingest import tls_rejections
from central.ingest.quotas import OVER_QUOTA_REPORTS
from central.validation.events import EVENT_REASONS
from central.validation.facts import FACT_REASONS
from central.validation.metric_reasons import BAD_REASON
from central.validation.rows import BATCH_REASONS, ROW_REASONS, VALUE_REASONS
from central.validation.triggers import TRIGGER_REASONS
from central.web import connections
from collector.base import Reason
from collector.simulated.scenario import load as load_scenario
from collector.traces.google import TraceReader
from tools import demo_screenshots, screenshots
from whitepanda.common import cli
from whitepanda.common.errors import ConfigError, InputError, TlsError, UnavailableError, WhitepandaError

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(#[^)\s]*)?\)")


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_every_picture_is_made_by_a_script_and_shown() -> None:
    made = {f"page-{name}.png" for name, *_ in screenshots.PICTURES}
    made |= {f"{name}.svg" for name in demo_screenshots.PICTURES}
    assert {path.name for path in (ROOT / "docs" / "images").iterdir()} == made
    pages = (page.read_text(encoding="utf-8") for page in PAGES)
    shown = {name for text in pages for name in re.findall(r"!\[[^\]]+\]\((?:docs/)?images/([^)]+)\)", text)}
    assert shown == made


def test_help_texts_have_the_programs_name_and_boxes_of_one_width() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    usages = [line for line in page.splitlines() if line.lstrip().startswith("Usage:")]
    assert len(usages) == page.count("## whitepanda ")
    assert [line for line in usages if not line.startswith("Usage: whitepanda ")] == []
    boxes = [line for line in page.splitlines() if line[:1] in "╭│╰" and line]
    assert {len(line) for line in boxes} == {100}
    assert "--config  -c  " in page


def errors_of(kind: type[WhitepandaError]) -> list[type[WhitepandaError]]:
    return [kind, *(one for child in kind.__subclasses__() for one in errors_of(child))]


def test_exit_codes_are_in_the_reference() -> None:
    section = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").partition("## Exit codes\n")[2]
    rows = {int(code): row for row, code in re.findall(r"^(\| (\d+) \|.*)$", section, re.MULTILINE)}
    assert {0, 130, 141, *(kind.exit_code for kind in errors_of(WhitepandaError))} == set(rows)
    for kind, word in ((ConfigError, "configuration"), (InputError, "given"), (UnavailableError, "run or exist")):
        assert word in rows[kind.exit_code]
    assert "certificate" in rows[TlsError.exit_code]
    # Commands that choose a code by themselves.
    text = section.partition("\n## ")[0]
    for folder in ("agent", "central"):
        for path in (ROOT / folder / "cli").glob("*.py"):
            if re.search(r"typer\.Exit\([^)]|sys\.exit\(", path.read_text(encoding="utf-8")):
                assert f"`{path.stem.replace('_', '-')}" in text, path.name
    units = [path.read_text(encoding="utf-8") for path in (ROOT / "systemd").glob("whitepanda-*.service")]
    kept = [re.findall(r"RestartPreventExitStatus=(.*)", unit) for unit in units]
    assert [codes for codes in kept if codes] and all(codes == ["2 5"] for codes in kept if codes)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--version"], 0),
        (["vms", "--colour"], 2),
        (["check-config"], 2),
        (["check-config", "FOLDER/none.toml"], 2),
        (["replay", "FOLDER/none.csv"], 3),
        (["vms", "--socket", "FOLDER/none.sock"], 4),
        (["lake", "stats", "FOLDER/none"], 4),
    ],
)
def test_exit_codes_are_those_of_the_reference(
    words: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["whitepanda", *(word.replace("FOLDER", str(tmp_path)) for word in words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code or 0) == code


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


def codes_in(path: Path, called: tuple[str, ...]) -> set[str]:
    """The reason codes that a module gives to functions or errors so called: each first text of theirs that is one."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            if name in called and texts and re.fullmatch(r"[a-z]+(_[a-z]+)*", texts[0]):
                found.add(texts[0])
    return found


def reason_codes() -> dict[str, set[str]]:
    """Every reason code that people meet, by where it comes from."""
    central = {
        path.stem: codes_in(path, ("refuse", "reject", "BatchError", "_over"))
        for room in ("ingest", "validation")
        for path in (ROOT / "central" / room).glob("*.py")
    }
    trace_rows = re.findall(r'^ +"(\w+)": [~a-z]', inspect.getsource(TraceReader._accept), re.MULTILINE)
    return {
        "values": {reason.code for reason in Reason if reason is not Reason.UNSPECIFIED},
        "slow-downs": set(render._CANNOT_TELL),
        "batches and rows": {*BATCH_REASONS, *ROW_REASONS, *VALUE_REASONS, "set_aside"},
        "reports": {
            *EVENT_REASONS,
            *TRIGGER_REASONS,
            BAD_REASON,
            *FACT_REASONS,
            *("facts_backlog_full", "trigger_backlog_full", "over_quota_events", OVER_QUOTA_REPORTS),
        },
        "handshakes": {name for name, _, _ in tls_rejections.REASONS},
        "http": set(connections.REASONS),
        "streams": set().union(*central.values()),
        "calls": codes_in(ROOT / "central" / "web" / "grpc_services.py", ("_refuse",)),
        "traces": {*trace_rows, *codes_in(ROOT / "collector" / "traces" / "google.py", ("reject", "_note"))},
    }


def test_every_reason_code_has_a_row_with_a_meaning_in_the_guide() -> None:
    guide = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    troubles = guide.partition("## Troubleshooting by reason code")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in troubles.splitlines() if line.startswith("| `")]
    explained = {code for row in rows for code in re.findall(r"`(\w+)(?::SIGNAL)?`", row[0])}
    known = reason_codes()
    assert {where: codes - explained for where, codes in known.items() if codes - explained} == {}
    assert all(len(codes) > 2 for codes in known.values())
    assert explained - set().union(*known.values()) == set()  # nor one that there is not
    assert [row for row in rows if len(row) not in {2, 4} or any(len(cell.strip(" |")) < 3 for cell in row)] == []


def test_what_leaves_the_journals_lists_is_called_so_in_the_code() -> None:
    tables = (ROOT / "central" / "journal" / "tables.py").read_text(encoding="utf-8")
    assert all(f'"{reason}"' in tables for reason in ("trigger_backlog_full", "over_quota_events"))


def test_every_line_of_the_units_is_explained() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    for unit in ("whitepanda-agent.service", "whitepanda-central.service"):
        text = (ROOT / "systemd" / unit).read_text(encoding="utf-8").partition("[Service]")[2].partition("[Install]")[0]
        keys = set(re.findall(r"^(\w+)=", text, re.MULTILINE))
        assert len(keys) > 30
        assert {key for key in keys if not re.search(rf"`{key}[=`]", page)} == set(), unit


def test_every_metric_and_setting_is_in_the_reference() -> None:
    metrics = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert [metric.name for metric in METRICS if f"| `{metric.name}` |" not in metrics] == []
    settings = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for kind in (AgentConfig, CentralConfig):
        for section in msgspec.structs.fields(kind):
            inner = getattr(section.type, "__args__", (section.type,))[0]
            for field in msgspec.structs.fields(inner) if hasattr(inner, "__struct_fields__") else ():
                name = field.name
                assert f"`{name}`" in settings or f".{name}]`" in settings, f"{section.name}.{name}"


def test_tables_have_as_many_cells_in_each_row() -> None:
    """A bar in a table's text splits its cell, unless it is escaped."""
    wrong = []
    for page in PAGES:
        cells, code = 0, False
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            code ^= line.lstrip().startswith("```")
            found = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") and not code else 0
            if found and cells and found != cells:
                wrong.append(f"{page.name}:{number}")
            cells = found
    assert wrong == []


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
    assert [vm.profile for vm in load_scenario(tmp_path / "profiles.toml").vms] == ["masstree", "no-interference"]


def test_make_targets_of_the_docs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for target in re.findall(r"`make ([a-z][a-z-]*)", page.read_text(encoding="utf-8")):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"


def test_files_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name in re.findall(r"`((?:agent|central|collector)/[\w/]+\.py)`", text):
        assert (ROOT / name).exists(), name


def test_ci_calls_what_the_readme_reports() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make check" in script
    assert "make test" in script
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_no_package_index_is_named() -> None:
    for path in [*(ROOT / "requirements").iterdir(), ROOT / "pyproject.toml", ROOT / "Makefile"]:
        text = path.read_text(encoding="utf-8")  # aiohttp is a package's name
        assert not re.search(r"://|\bhttps?\b|index-url|find-links", text), path.name


def test_nothing_promises_that_an_index_has_whitepanda() -> None:
    folders = ("README.md", "docs", "agent", "central", "collector", "proto", "packaging", "systemd")
    done = subprocess.run(
        ["git", "grep", "-nE", r"whitepanda\[[a-z{]|pip install .?whitepanda", "--", *folders],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (1, "")


def test_what_security_says_of_the_worst_has_its_tests() -> None:
    section = (ROOT / "docs/security.md").read_text().partition("### At worst\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert len(lines) > 10
    for line in lines:
        named = re.findall(r"`(tests/[^`]+)`", line)
        assert named, line
        for each in named:
            file, _, test = each.partition("::")
            assert f"def {test}" in (ROOT / file).read_text(), each
