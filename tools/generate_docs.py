"""Generate the reference pages of docs/ from the code: metrics.md, configuration.md, cli.md.

python tools/generate_docs.py           writes them
python tools/generate_docs.py --check   exits 1 and names those that are not fresh
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
MADE = "<!-- made by tools/generate_docs.py from the code; edit that -->\n\n"


def metrics_page() -> str:
    """Render the metric table."""
    from agent.metrics import METRICS  # noqa: PLC0415 - each page needs only its own part of the code

    lines = [
        "# Metrics",
        "",
        "Per VM unless the name starts with `host_`, `agent_`, `source_` (per source) or `uplink_`.",
        "Names carry their unit. A value that is not known has a",
        "[reason code](operate.md#why-a-value-is-missing) instead.",
        "",
        "For [Prometheus](operate.md#prometheus) the names begin with `whitepanda_`, those of VMs with",
        "`whitepanda_vm_`, and `_per_s` is `_per_second`. A value that is not known has no sample:",
        "`whitepanda_vm_part_absent` has the reason where nothing of a part is known, `whitepanda_vm_metric_absent`",
        "where others of it are. `whitepanda_vm_part_age_seconds` has each part's source and age,",
        "`whitepanda_vm_victim` and `whitepanda_vm_degradation_ratio` the verdict by the job's statistics.",
        "",
        "What the host finds by itself: `whitepanda_vm_behaviour` (label `behaviour`: steady, inflicting, victim),",
        "`whitepanda_vm_latency_degradation_ratio` of victims with the ends of its interval,",
        "`whitepanda_vm_latency_degradation_low_ratio` and `..._high_ratio`, or",
        "`whitepanda_vm_latency_degradation_absent` with the reason; `whitepanda_vm_baseline_ticks` and",
        "`whitepanda_vm_baseline_ready` of the baseline it is held against.",
        "",
        "| metric | kind | unit | source | meaning |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| `{m.name}` | {m.kind} | {m.unit} | {m.source} | {m.help} |" for m in METRICS]
    return MADE + "\n".join(lines) + "\n"


def _comments(path: Path) -> dict[tuple[str, str], str]:
    """The comment behind every field of every class in a file: (class, field) -> comment."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = {}
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef):
            continue
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                _, _, comment = lines[(item.end_lineno or 1) - 1].partition("  # ")
                found[node.name, item.target.id] = comment.removeprefix("noqa").strip()
    return found


def _kind(kind: object) -> str:
    text = kind.__name__ if isinstance(kind, type) else str(kind)
    for noise in ("typing.", "whitepanda.common.tls."):
        text = text.replace(noise, "")
    if text.startswith("Literal["):
        text = text[8:-1].replace("'", "").replace(",", " \\|")
    return text


def _tables(
    kind: type[msgspec.Struct],
    prefix: str,
    comments: dict[tuple[str, str], str],
    ranges: dict[str, tuple[float, float]],
) -> list[str]:
    rows, nested = [], []
    for field in msgspec.structs.fields(kind):
        inner = field.type
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            nested += _tables(inner, f"{prefix}.{field.name}".lstrip("."), comments, ranges)
            continue
        arguments = [
            a for a in getattr(inner, "__args__", ()) if isinstance(a, type) and issubclass(a, msgspec.Struct)
        ]
        if arguments:
            nested += _tables(arguments[0], f"[{field.name}]", comments, ranges)
            continue
        default = "required" if field.required else f"`{msgspec.json.encode(field.default).decode()}`"
        comment = comments.get((kind.__name__, field.name), "")
        limits = ranges.get(f"{prefix}.{field.name}")
        kinds = _kind(inner) + (f", {limits[0]} to {limits[1]}" if limits else "")
        rows.append(f"| `{field.name}` | {kinds} | {default} | {comment} |")
    if not rows:
        return nested
    title = f"## `[{prefix}]`" if prefix else "## top level"
    doc = (kind.__doc__ or "").strip()
    return [
        title,
        "",
        doc,
        "",
        "| setting | type | default | meaning |",
        "|---|---|---|---|",
        *rows,
        "",
        *nested,
    ]


def configuration_page() -> str:
    """Render every setting of both daemons, with its default and the comment beside it in the code."""
    from agent import config as agent  # noqa: PLC0415 - each page needs only its own part of the code
    from central import config as central  # noqa: PLC0415 - the same

    shared = _comments(ROOT / "proto" / "whitepanda" / "common" / "tls.py")
    lines = [
        "# Configuration",
        "",
        "TOML. `whitepanda check-config FILE` checks a file; unknown keys are refused.",
        "",
    ]
    for title, module, kind in (
        ("# The agent: agent.toml", agent, agent.AgentConfig),
        ("# Central: central.toml", central, central.CentralConfig),
    ):
        ranges = {key: (low, high) for key, low, high in module.RANGES}
        lines += [title, "", *_tables(kind, "", shared | _comments(Path(module.__file__)), ranges)]
    return MADE + "\n".join(lines).rstrip() + "\n"


def _help(*command: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1", "LANG": "C.UTF-8"}
    for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "CI"):
        environment.pop(name, None)
    # The name is set, not replaced in the output: the boxes stay as wide as they are drawn.
    code = "import sys; sys.argv[0] = 'whitepanda'; from whitepanda.common.cli import main; main()"
    program = [sys.executable, "-c", code, *command, "--help"]
    done = subprocess.run(program, capture_output=True, text=True, check=True, env=environment)
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def commands() -> list[tuple[str, ...]]:
    """Every command and subcommand of the console script."""
    import typer  # noqa: PLC0415 - the same

    found: list[tuple[str, ...]] = []
    for point in sorted(metadata.entry_points(group="whitepanda.commands"), key=lambda p: p.name):
        found.append((point.name,))
        loaded = point.load()
        if isinstance(loaded, typer.Typer):
            found += [
                (point.name, c.name or str(getattr(c.callback, "__name__", "")))
                for c in loaded.registered_commands
            ]
    return found


def cli_page() -> str:
    """Render the help text of every command."""
    lines = ["# Commands", "", "`--json` on a command prints one JSON value for programs.", ""]
    for command in commands():
        lines += [f"## whitepanda {' '.join(command)}", "", "```", _help(*command), "```", ""]
    return MADE + "\n".join(lines).rstrip() + "\n"


PAGES = {"metrics.md": metrics_page, "configuration.md": configuration_page, "cli.md": cli_page}


def main(arguments: list[str]) -> int:
    """Do what the module's docstring says."""
    stale = []
    for name, render in PAGES.items():
        path = DOCS / name
        text = render()
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(f"docs/{name} is not fresh; run tools/generate_docs.py")
    for line in stale:
        print(line, file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
