"""What `whitepanda agent status` prints: the agent itself, its stream to central, its sources."""

from pathlib import Path

from rich.text import Text

from agent.api.client import connect, find_socket
from agent.display import render
from agent.display.render import UNKNOWN, cell, fields_of
from whitepanda.common.cli import console, print_json
from whitepanda.v1 import host_pb2


def show(socket: Path | None, config: Path | None, *, json: bool) -> None:
    """Print the agent's status, for people or as one JSON object; UnavailableError: no agent answers."""
    with connect(find_socket(socket, config)) as client:
        answer = client.status()
    if json:
        print_json(_json(answer))
        return
    for line in (*_lines(answer), ""):
        console.print(line, soft_wrap=True)
    _sources(answer)


def _lines(answer: host_pb2.HostStatus) -> list[Text]:
    uplink = answer.uplink
    up_s = max(0, answer.now_unix_ns - answer.started_unix_ns) / 1e9
    share = f" ({answer.cpu_seconds / up_s:.1%} of a core)" if up_s else ""
    version = answer.coefficient_version
    window = f"{answer.window_ms / 1e3:g} s"
    lines = [
        Text(f"{answer.host}: whitepanda {answer.agent_version}, up {render.age(round(up_s * 1e9))}", "bold"),
        _line("platform", answer.platform or UNKNOWN),
        _line("ticks", f"{answer.ticks:,}, {answer.missed_ticks:,} missed; windows of {window}"),
        _line("cost", f"{answer.cpu_seconds:.1f} s of CPU{share}, {_size(answer)}"),
    ]
    if uplink.state == "off":
        lines.append(_line("central", "off: uplink.address is not set"))
    else:
        style = "" if uplink.state == "connected" else "bold red"
        wait_s = uplink.min_batch_interval_ms / 1e3
        pace = f"; central asks for {wait_s:g} s between batches" if wait_s else ""
        lines += [
            _line("central", f"{uplink.state}, {uplink.address}{pace}", style),
            _line("spooled", f"{uplink.spooled_batches:,} batches, {render.si(uplink.spooled_bytes)}B"),
            _line("sent", f"{uplink.acknowledged_batches:,} batches, {uplink.acknowledged_windows:,} windows"),
            _line("dropped", f"{uplink.dropped_batches:,} batches"),
            _line("rejected", f"{uplink.rejected_batches:,} batches whole; {uplink.rejected_rows:,} rows"),
        ]
        if uplink.refused_updates or uplink.refused_update_rows:
            refused = f"{uplink.refused_updates:,} updates of central, {uplink.refused_update_rows:,} rows of others"
            last = f"; last: {uplink.last_refusal}" if uplink.last_refusal else ""
            lines.append(_line("refused", refused + last, "red"))
    lines.append(_history(answer.history, answer.now_unix_ns))
    if uplink.last_error:
        lines.append(_line("last error", uplink.last_error, "red"))
    lines.append(_line("coefficients", f"version {version}" if version else "none, central has not sent any"))
    return lines


def _history(history: host_pb2.HistoryStatus, now_unix_ns: int) -> Text:
    if history.state == "off":
        return _line("history", "off: history.days is 0")
    since = f", from {render.age(max(0, now_unix_ns - history.first_unix_ns))} ago" if history.first_unix_ns else ""
    text = f"{render.si(history.bytes)}B of {render.si(history.max_bytes)}B{since}"
    lost = f"; {history.lost_frames:,} windows and ticks lost" if history.lost_frames else ""
    if history.state == "stopped":
        return _line("history", f"stopped: {history.detail}; {text}{lost}", "bold red")
    return _line("history", text + lost)


def _line(title: str, text: str, style: str = "") -> Text:
    return Text(f"{title:<13}").append(text, style)


def _size(answer: host_pb2.HostStatus) -> str:
    parts = [f"{answer.rss_bytes / 2**20:.0f} MiB"]
    values = {metric.name: metric.value for metric in answer.host_metrics if not metric.reason}
    for name, what in (("agent_threads", "threads"), ("agent_open_fds", "open files")):
        if name in values:
            parts.append(f"{values[name]:,.0f} {what}")
    return ", ".join(parts)


def _sources(answer: host_pb2.HostStatus) -> None:
    titles = ("SOURCE", "STATE", "AGE", "TOOK", "SAMPLES", "FAILURES")
    rows = []
    for source in answer.sources:
        times = [render.age(source.age_ns), render.age(source.duration_ns)] if source.samples else [UNKNOWN] * 2
        state = cell(source.state, "bold red" if source.state in render.BROKEN else "")
        counts = (f"{source.samples:,}", f"{source.failures:,}")
        rows.append([cell(source.name), state, *map(cell, (*times, *counts))])
    render.print_table(render.columns(dict.fromkeys(titles, 0), ("SOURCE", "STATE")), rows)
    for source in answer.sources:
        if source.state in render.BROKEN and source.detail:
            console.print(Text(f"{source.name}: {source.detail}", "dim"), soft_wrap=True)


def _json(answer: host_pb2.HostStatus) -> dict[str, object]:
    uplink = answer.uplink
    return {
        **fields_of(answer, "host", "agent_version", "platform", "now_unix_ns", "started_unix_ns"),
        **fields_of(answer, "ticks", "missed_ticks"),
        "window_s": answer.window_ms / 1e3,
        **fields_of(answer, "cpu_seconds", "rss_bytes"),
        "coefficient_version": answer.coefficient_version or None,
        "mn_cpi": answer.mn_cpi,
        "uplink": {
            **fields_of(uplink, "state", "address", "spooled_batches", "spooled_bytes", "acknowledged_batches"),
            **fields_of(uplink, "acknowledged_windows", "dropped_batches", "rejected_batches", "rejected_rows"),
            "last_error": uplink.last_error or None,
            "min_batch_interval_s": uplink.min_batch_interval_ms / 1e3 or None,
            **fields_of(uplink, "refused_updates", "refused_update_rows"),
            "last_refusal": uplink.last_refusal or None,
        },
        "history": {
            **fields_of(answer.history, "state", "bytes", "max_bytes", "lost_frames"),
            "detail": answer.history.detail or None,
            "first_unix_ns": answer.history.first_unix_ns or None,
        },
        "sources": [
            {
                **fields_of(source, "name", "state", "detail"),
                "age_s": source.age_ns / 1e9 if source.samples else None,
                "duration_s": source.duration_ns / 1e9 if source.samples else None,
                **fields_of(source, "samples", "failures"),
            }
            for source in answer.sources
        ],
        "host_metrics": render.metrics_json(answer.host_metrics),
    }
