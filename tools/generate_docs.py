"""Generate the reference pages of docs/ from the code: metrics.md, configuration.md, cli.md, api.md.

python tools/generate_docs.py           writes them
python tools/generate_docs.py --check   exits 1 and names those that are not fresh
"""

import ast
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import msgspec

from whitepanda.common.config import bounds

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
MADE = "<!-- made by tools/generate_docs.py from the code; edit that -->\n\n"


def _central_metrics() -> list[str]:
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - each page needs only its own part of the code

    from central.web.metrics import render  # noqa: PLC0415 - the same
    from whitepanda.v1 import agent_pb2, fleet_pb2  # noqa: PLC0415 - the same

    refused = [agent_pb2.RejectedRows(reason="any", count=1)]
    receiver = fleet_pb2.WebhookReceiver(receiver="any", oldest_waiting_unix_ns=1, dropped=refused)
    lists = ("rejected", "rejected_values", "rejected_batches", "rejected_events", "refused_streams")
    known = {"open_incidents": 1, "quiet_victims": ["any"], "silenced_hosts": ["any"]}
    status = fleet_pb2.FleetStatus(webhooks=[receiver], **known, **dict.fromkeys(lists, refused))
    lines = ["", "## Central", "", "| metric | kind | by | meaning |", "|---|---|---|---|"]
    for family in text_string_to_metric_families(render(status).decode()):
        total = "_total" if family.type == "counter" else ""
        labels = ", ".join(sorted({key for sample in family.samples for key in sample.labels if key != "le"}))
        lines.append(f"| `{family.name}{total}` | {family.type} | {labels} | {family.documentation} |")
    return lines


def metrics_page() -> str:
    """Render the metric table."""
    from agent.sampling.metric_table import METRICS  # noqa: PLC0415 - each page needs only its own part of the code
    from whitepanda.common.window_columns import WINDOW_COLUMNS  # noqa: PLC0415 - the same

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
        "`whitepanda_vm_degradation_ratio` the CPI of the last slot / the job's mean CPI, at least 1, of any VM.",
        "",
        "Traffic has rates, of the last tick, and totals (`_total`), which miss nothing between two scrapes;",
        "the totals are in /metrics only. `whitepanda_vm_info` has the labels `project`, `flavor`, `owner`,",
        "`manager` and `latency_sensitive`, [for joins](monitoring.md#traffic-and-whose-a-vm-is).",
        "",
        "`whitepanda_vm_victim` is 1 of a victim, as `whitepanda vms` and `top` say; 0 of any other VM whose",
        "verdict is known; no sample where it is not, or the VM does not run. `whitepanda_vm_behaviour` has the",
        "verdict itself (label `behaviour`: steady, inflicting, affected, victim). Of a VM that suffers",
        "`whitepanda_vm_slow_down_ratio` is the slow-down that the views show, with the ends of its interval,",
        "`whitepanda_vm_slow_down_low_ratio` and `..._high_ratio`; or `whitepanda_vm_slow_down_absent` has the reason.",
        "Alert on it, where `whitepanda_vm_victim` is 1, and not on `whitepanda_vm_degradation_ratio`, which is",
        "also of VMs that suffer nothing or inflict. `whitepanda_vm_suspect` names each",
        "victim's first suspect (labels `suspect`, `suspect_name`, `suspect_job`). `whitepanda_vm_baseline_ticks`",
        "and `whitepanda_vm_baseline_ready` are of the baseline of the host's own analysis.",
        "",
        "| metric | kind | unit | source | meaning |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| `{m.name}` | {m.kind} | {m.unit} | {m.source} | {m.help} |" for m in METRICS]
    lines += [
        "",
        "## Windows",
        "",
        "What a window keeps and central gets: the lake's columns, and the numbers in `CpiBatch`. Values have 4",
        "significant digits, or those given. A value above the largest, or below 0, is taken as not known.",
        "",
        "| column | unit | number | summed up as | digits | largest |",
        "|---|---|---|---|---|---|",
    ]
    for c in WINDOW_COLUMNS:
        digits = "all" if c.name in ("cpi", "cpu_usage_cores") else c.digits
        lines.append(f"| `{c.name}` | {c.unit} | {c.number} | {c.how} | {digits} | {c.largest:g} |")
    lines += _central_metrics()
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
                if not comment and lines[item.lineno - 2].startswith("    # "):  # no room beside it
                    comment = lines[item.lineno - 2].removeprefix("    # ")
                found[node.name, item.target.id] = comment.removeprefix("noqa").strip()
    return found


#: What TOML has for a setting's type, and its plural.
_WORDS = {
    bool: ("true or false", "true or false"),
    int: ("whole number", "whole numbers"),
    float: ("number", "numbers"),
    str: ("text", "texts"),
}


def _kind(kind: Any) -> str:
    inner = [one for one in get_args(kind) if one not in (NoneType, Ellipsis)]
    if get_origin(kind) is Literal:
        return " \\| ".join(map(str, inner))
    if get_origin(kind) is tuple:
        return f"list of {_WORDS[inner[0]][1]}"
    return _WORDS[inner[0] if inner else kind][0]


def _tables(kind: type[msgspec.Struct], prefix: str, comments: dict[tuple[str, str], str]) -> list[str]:
    rows, nested = [], []
    for field in msgspec.structs.fields(kind):
        inner = field.type
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            nested += _tables(inner, f"{prefix}.{field.name}".lstrip("."), comments)
            continue
        arguments = [a for a in getattr(inner, "__args__", ()) if isinstance(a, type) and issubclass(a, msgspec.Struct)]
        if arguments:
            nested += _tables(arguments[0], f"[{field.name}]", comments)
            continue
        made = field.default_factory
        value = field.default if made is msgspec.NODEFAULT else made()
        default = "required" if field.required else f"`{msgspec.json.encode(value).decode()}`"
        default = "not set" if default == "`null`" else default
        comment = comments.get((kind.__name__, field.name), "")
        inner, limits = bounds(inner)
        kinds = _kind(inner) + (f", {limits.ge} to {limits.le}" if limits else "")
        rows.append(f"| `{field.name}` | {kinds} | {default} | {comment} |")
    if not rows:
        return nested
    title = f"## `[{prefix}]`" if prefix else "## top level"
    doc = inspect.cleandoc(kind.__doc__ or "")
    return [title, "", doc, "", "| setting | type | default | meaning |", "|---|---|---|---|", *rows, "", *nested]


def configuration_page() -> str:
    """Render every setting of both daemons, with its default and the comment beside it in the code."""
    from agent import config as agent  # noqa: PLC0415 - each page needs only its own part of the code
    from central import config as central  # noqa: PLC0415 - the same

    shared = _comments(ROOT / "proto" / "whitepanda" / "common" / "tls.py")
    lines = ["# Configuration", "", "TOML. `whitepanda check-config FILE` checks a file; unknown keys are refused.", ""]
    for title, module, kind in (
        ("# The agent: agent.toml", agent, agent.AgentConfig),
        ("# Central: central.toml", central, central.CentralConfig),
    ):
        lines += [title, "", *_tables(kind, "", shared | _comments(Path(module.__file__)))]
    return MADE + "\n".join(lines).rstrip() + "\n"


#: The name is set, not replaced in the output: the boxes stay as wide as they are drawn.
_HELPS = """
import contextlib, io, json, sys
from whitepanda.common.cli import main
texts = []
for command in json.load(sys.stdin):
    sys.argv = ["whitepanda", *command, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main()
    texts.append(said.getvalue())
json.dump(texts, sys.stdout)
"""


def _helps(commands: Sequence[tuple[str, ...]]) -> list[str]:
    """Return what each command says to --help; of one process, for to start one for each takes minutes."""
    environment = {**os.environ, "COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1", "LANG": "C.UTF-8"}
    for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "CI"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", _HELPS],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return ["\n".join(line.rstrip() for line in text.strip().splitlines()) for text in json.loads(done.stdout)]


def commands() -> list[tuple[str, ...]]:
    """Every command and subcommand of the console script."""
    import typer  # noqa: PLC0415 - the same

    found: list[tuple[str, ...]] = []
    for point in sorted(metadata.entry_points(group="whitepanda.commands"), key=lambda p: p.name):
        found.append((point.name,))
        loaded = point.load()
        if isinstance(loaded, typer.Typer):
            found += _below(loaded, point.name)
    return found


def _below(group: Any, *names: str) -> list[tuple[str, ...]]:
    """Every command and group of commands in a group."""
    found = [(*names, c.name or str(getattr(c.callback, "__name__", ""))) for c in group.registered_commands]
    for inner in group.registered_groups:
        found += [(*names, inner.name), *_below(inner.typer_instance, *names, inner.name)]
    return found


def cli_page() -> str:
    """Render the help text of every command."""
    lines = ["# Commands", "", "`--json` on a command prints one JSON value for programs.", ""]
    lines += _exit_codes()
    found = commands()
    for command, text in zip(found, _helps(found), strict=True):
        lines += [f"## whitepanda {' '.join(command)}", "", "```", text, "```", ""]
    return MADE + "\n".join(lines).rstrip() + "\n"


#: Code, what it means of every command, and what of commands with a meaning of their own. A test holds the codes
#: against the errors' classes, and the commands against those that choose a code by themselves.
_EXIT_CODES = (
    ("0", "done", "`act apply`: also where `act.dry_run` kept it from acting; `demo --stay`: ended by Ctrl-C"),
    (
        "1",
        "failed in a way that has no code of its own; or this installation lacks the command",
        (
            "`lake verify`: there are problems; `place`: a VM found no host with room; "
            "`replay`: the counts do not add up"
        ),
    ),
    (
        "2",
        (
            "the command line is wrong (an unknown option, a missing argument, a value that is not a number or outside "
            "the range in `--help`), or a configuration file is"
        ),
        "`check-config`: a file would be refused",
    ),
    (
        "3",
        "what was given is wrong: a file's content, another value of an argument, arguments that do not go together",
        "`act`: its limits refuse it; `slowdown profile`: copies of a job gave no vector",
    ),
    (
        "4",
        (
            "what has to run or exist does not: the agent, central, a folder, the library of an extra, "
            "a permission, room on a disk"
        ),
        (
            "`doctor`: something is missing that is required; `act`: libvirt or resctrl does not do it; "
            "`demo`: another than the injected antagonist was blamed"
        ),
    ),
    ("5", "a certificate or key is missing, unreadable, or not what it should be", ""),
    (
        "130",
        "ended by Ctrl-C",
        (
            "`agent run`, `central run`, `act run`: Ctrl-C and SIGTERM are how these end: 0; "
            "`demo`, `top`: any signal, 128 and its number; `q` and the key Ctrl-C of `top`: 0"
        ),
    ),
    ("141", "who read the output has gone", ""),
)


def _exit_codes() -> list[str]:
    """Render the table of exit codes, with a title."""
    return [
        "## Exit codes",
        "",
        "An error is one line on standard error: what, where, the value, the remedy.",
        "",
        "| code | every command | commands with a meaning of their own |",
        "|---|---|---|",
        *(f"| {code} | {meaning} | {own} |" for code, meaning, own in _EXIT_CODES),
        "",
        "Where a command prints a result and then fails (1 of `lake verify` and `place`, 3 of `slowdown profile`,",
        "4 of `doctor` and `demo`), the result is whole. `calibrate --check` ends with the code of the first thing",
        "that hinders it. systemd does not start a unit again that ended with 2 or 5.",
        "",
    ]


def api_page() -> str:
    """Render the fleet API: routes with their parameters, and the fields of every message that they answer."""
    from central.web.openapi import ROUTES, document  # noqa: PLC0415 - of the extra `central`

    found = document()
    lines = [_API_INTRODUCTION]
    for route in ROUTES:
        operation = found["paths"][route.path][route.verb.lower()]
        answer = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        lines += ["", f"### {route.verb} {route.path}", ""]
        lines.append(f"{route.summary}. gRPC: `{route.method}`. Answers [{answer}](#{answer.lower()}).")
        members = {}
        if "requestBody" in operation:
            members = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
            lines.append("The body is a JSON object.")
        if operation["parameters"] or members:
            lines += ["", "| parameter | type | what |", "|---|---|---|"]
        for one in operation["parameters"]:
            kind = _schema_words(one["schema"])
            lines.append(f"| `{one['name']}` | {kind} | {one.get('description', '')} |")
        for name, schema in members.items():
            lines.append(f"| `{name}` | {_schema_words(schema)}, in the body | {schema['description']} |")
    lines += ["", "## Messages"]
    for name, schema in sorted(found["components"]["schemas"].items()):
        lines += ["", f"### {name}", "", "| field | type | what |", "|---|---|---|"]
        for field, value in schema["properties"].items():
            what = value.get("description", "").replace("|", "\\|")
            lines.append(f"| `{field}` | {_schema_words(value)} | {what} |")
    return MADE + "\n".join(lines).rstrip() + "\n"


_API_INTRODUCTION = """# The fleet API

What central knows of the fleet, over gRPC (service `whitepanda.v1.Fleet` on `central.listen`, with reflection and
health) and as JSON over HTTP (`central.http_listen`; `/openapi.json` is the OpenAPI document, `/healthz` says that it
serves). How to reach it: [operating](operate.md#the-fleet-api).

Times are integers, nanoseconds since 1970. In JSON a number that is not known is `null` (in gRPC NaN); only
location and scale of log CPI are both 0 where neither is known. Words are in lower case. Lists come in pages of
`page_size` rows (100, at most 1000): `next_page_token` of one answer is the `page_token` of the next request,
with the same filters; it is empty on the last page. An error is `{"error": "one line"}`, perhaps with the `field`
that it is about and, without the name of that, the `problem`; with status 400 (the
request), 403 (the certificate), 404 (nothing there), 405 (a method that the path does not have), 408 (the
request did not come in time), 410 (a version that is no longer kept, or no model of runtimes), 413 (a body that is
too long), 415 (a body that is not JSON), 429 (too many long questions wait), 431 (the request is too long), 500
(central failed), 503 (try again later).

Limits of a request are in `/openapi.json`, for each parameter: times end in 2262 (63 bits), names have at most 512
characters and no control characters. A request by gRPC has the same limits, and 512 KiB at most; an error there has
the request's field that it is about in the trailing metadatum `whitepanda-field`, empty where it is about none.

## Requests"""


def _schema_words(schema: dict[str, Any]) -> str:
    """Say a schema in a word or two."""
    if "items" in schema:
        return f"list of {_schema_words(schema['items'])}"
    if "oneOf" in schema:
        return f"{_schema_words(schema['oneOf'][0])} or null"
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(schema["enum"])
    kind = schema["type"]
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


PAGES = {"metrics.md": metrics_page, "configuration.md": configuration_page, "cli.md": cli_page, "api.md": api_page}


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
