"""Metrics for Prometheus: /metrics over HTTP, made from `agent.metrics.METRICS`. Imported only where they are on.

The server has threads of its own. For a scrape the loop only hands over a `Snapshot`; the text is made of it in the
scrape's thread, once per tick however many ask. A value that is not known has no sample; `whitepanda_vm_part_absent`
says why where all of a part is absent, `whitepanda_vm_metric_absent` where only that metric is. Source and age are told
once per VM and part, so that a series stays the same one when another source takes over.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gzip
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from agent import metrics
from agent.config import MetricsSection
from agent.deltas import Reading
from agent.state import SourceView, UplinkView
from agent.verdicts import BEHAVIOURS
from agent.view import Snapshot, VmSnapshot
from collector.base import VM_PARTS, Reason
from whitepanda.common import log
from whitepanda.common.errors import TlsError, UnavailableError
from whitepanda.common.tls import TlsFiles, problems, warnings

__all__ = ["MetricsServer", "family_name", "render"]

_log = log.get("metrics")

_SNAPSHOT_WAIT_S = 2.0  # the loop is busy for so long only where the agent is in trouble
_CLIENT_WAIT_S = 5.0  # between two reads, or two writes
_REQUEST_S = 10.0  # for all of it: handshake, request and answer
_WARN_EACH_S = 60.0
_MAX_CLIENTS = 8
_MAX_LABEL = 256  # characters
_GZIP_LEVEL = 1

_VM_METRICS = tuple(metric for metric in metrics.METRICS if metric.scope == "vm")
_PLACES = {
    part: tuple(index for index, metric in enumerate(_VM_METRICS) if metric.part == part)
    for part in VM_PARTS
    if any(metric.part == part for metric in _VM_METRICS)
}


def family_name(metric: metrics.Metric) -> str:
    """Return a metric's name in /metrics: ours with a prefix, and "second" spelt out as Prometheus wants it."""
    scope = "vm_" if metric.scope == "vm" else ""
    name = metric.name
    return (
        f"whitepanda_{scope}{name.removesuffix('_s')}_second"
        if name.endswith("_per_s")
        else f"whitepanda_{scope}{name}"
    )


# -- a snapshot as metric families


class _Families(Collector):
    """One snapshot as Prometheus' library wants it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._host = snapshot.host

    def collect(self) -> Iterator[Metric]:
        """Give out all families. Between two other threads (the tick's) may run."""
        for family in self._families():
            if family.samples:
                yield family
            time.sleep(0)

    def _families(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "whitepanda_agent_info", "The agent's version and the host's CPU model; always 1."
        )
        labels = {"version": self._host.agent_version, "platform": _label(self._host.platform)}
        info.add_sample(info.name, labels, 1)
        yield info
        values = {value.name: value.value for value in self._host.metrics}
        for metric in metrics.METRICS:
            if metric.scope in {"host", "agent"}:
                yield _family(metric, [({}, values.get(metric.name))])
            elif metric.scope == "source":
                yield _family(metric, _of_sources(metric.name, self._host.sources))
            elif metric.scope == "uplink" and self._host.uplink.state != "off":
                yield _family(metric, [({}, _of_uplink(metric.name, self._host.uplink))])
        yield from _of_vms(self._snapshot)


def _family(metric: metrics.Metric, samples: Iterable[tuple[dict[str, str], float | None]]) -> Metric:
    name = family_name(metric)
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family: Metric = kind(name, metric.help)
    for labels, value in samples:
        if value is not None:
            family.add_sample(name, labels, value)
    return family


def _of_sources(name: str, sources: Iterable[SourceView]) -> Iterator[tuple[dict[str, str], float | None]]:
    for source in sources:
        if source.state != "off":
            yield {"source": source.name}, _of_source(name, source)


def _of_source(name: str, source: SourceView) -> float | None:
    match name:
        case "source_success":
            # Of `auto` sources that cannot be here it would be 0 for ever: nothing to wake anybody for.
            worked = source.samples or source.failures or source.state != "unavailable"
            return source.state == "available" if worked else None
        case "source_samples_total":
            return source.samples
        case "source_failures_total":
            return source.failures
        case "source_age_seconds":
            return source.age_ns / 1e9 if source.samples else None
        case "source_duration_seconds":
            return source.duration_ns / 1e9 if source.samples else None
    raise AssertionError(name)


def _of_uplink(name: str, uplink: UplinkView) -> float:
    if name == "uplink_connected":
        return uplink.state == "connected"
    return float(getattr(uplink, name.removeprefix("uplink_").removesuffix("_total")))


def _of_vms(snapshot: Snapshot) -> Iterator[Metric]:
    labelled = [
        ({"vm": _label(vm.uuid), "name": _label(vm.name), "job": _label(vm.job)}, vm) for vm in snapshot.vms
    ]
    for index, metric in enumerate(_VM_METRICS):
        values = ((labels, vm.rates[index]) for labels, vm in labelled)
        yield _family(metric, ((labels, value) for labels, value in values if not isinstance(value, Reason)))
    yield from _verdicts(labelled)
    yield from _cloud_white(labelled)
    yield _ages(labelled, snapshot.mono_ns)
    yield from _absences(labelled)


def _verdicts(labelled: Iterable[tuple[dict[str, str], VmSnapshot]]) -> Iterator[Metric]:
    victim = GaugeMetricFamily(
        "whitepanda_vm_victim", "1 where the VM is a victim now, 0 where it is not; unknown: no sample."
    )
    degradation = GaugeMetricFamily(
        "whitepanda_vm_degradation_ratio",
        "How many times slower the VM is than its job's norm (1: not slower).",
    )
    for labels, vm in labelled:
        verdict = vm.verdict
        if verdict is None:
            continue
        if verdict.verdict != "unknown":
            victim.add_sample(victim.name, labels, verdict.verdict == "victim")
        if verdict.degradation is not None:
            degradation.add_sample(degradation.name, labels, verdict.degradation)
    yield victim
    yield degradation


_CLOUD_WHITE = (
    (
        "latency_degradation_ratio",
        "ratio",
        "How many times longer a victim's latency (p95) is than undisturbed.",
    ),
    ("latency_degradation_low_ratio", "low", "Lower end of that estimate's interval."),
    ("latency_degradation_high_ratio", "high", "Upper end of that estimate's interval."),
)


def _cloud_white(labelled: Iterable[tuple[dict[str, str], VmSnapshot]]) -> Iterator[Metric]:
    behaviour = GaugeMetricFamily(
        "whitepanda_vm_behaviour", "1 for what the VM does now, 0 for what it does not; unknown: no sample."
    )
    ticks = GaugeMetricFamily(
        "whitepanda_vm_baseline_ticks", "Ticks without interference that the VM's baseline was learnt from."
    )
    ready = GaugeMetricFamily("whitepanda_vm_baseline_ready", "1 where the VM's baseline is old enough.")
    unknown = GaugeMetricFamily(
        "whitepanda_vm_latency_degradation_absent",
        "1 for a victim whose degradation cannot be told, with why.",
    )
    estimates = [
        (GaugeMetricFamily(f"whitepanda_vm_{name}", text), field) for name, field, text in _CLOUD_WHITE
    ]
    for labels, vm in labelled:
        verdict = vm.suffering
        if verdict is None:
            continue
        if verdict.behaviour != "unknown":
            for word in BEHAVIOURS[1:]:
                behaviour.add_sample(behaviour.name, {**labels, "behaviour": word}, verdict.behaviour == word)
        ticks.add_sample(ticks.name, labels, verdict.baseline_ticks)
        ready.add_sample(ready.name, labels, verdict.baseline_ready)
        found = verdict.degradation
        if found is not None and found.cannot_tell:
            unknown.add_sample(unknown.name, {**labels, "reason": found.cannot_tell}, 1)
        for family, field in estimates if found is not None else ():
            value = getattr(found, field)
            if math.isfinite(value):
                family.add_sample(family.name, labels, value)
    yield from (behaviour, ticks, ready, unknown)
    yield from (family for family, _ in estimates)


def _ages(labelled: Iterable[tuple[dict[str, str], VmSnapshot]], mono_ns: int) -> Metric:
    ages = GaugeMetricFamily(
        "whitepanda_vm_part_age_seconds",
        "Age of what each part of a VM's metrics is made of, and its source.",
    )
    for labels, vm in labelled:
        for part in _PLACES:
            reading = getattr(vm.now, part, None)
            if isinstance(reading, Reading):
                told = {**labels, "part": part, "source": reading.source}
                ages.add_sample(ages.name, told, max(0, mono_ns - reading.mono_ns) / 1e9)
    return ages


def _absences(labelled: Iterable[tuple[dict[str, str], VmSnapshot]]) -> Iterator[Metric]:
    parts = GaugeMetricFamily(
        "whitepanda_vm_part_absent", "1 for each part of a VM of which nothing is known, with the reason."
    )
    single = GaugeMetricFamily(
        "whitepanda_vm_metric_absent", "1 for each metric that is not known while others of its part are."
    )
    for labels, vm in labelled:
        for part, places in _PLACES.items():
            absent = [(place, why) for place in places if isinstance(why := vm.rates[place], Reason)]
            if len(absent) == len(places):
                why = absent[0][1]
                parts.add_sample(parts.name, {"vm": labels["vm"], "part": part, "reason": why.code}, 1)
                continue
            for place, why in absent:
                told = {"vm": labels["vm"], "metric": _VM_METRICS[place].name, "reason": why.code}
                single.add_sample(single.name, told, 1)
    yield parts
    yield single


def _label(text: str) -> str:
    """Bound a text that others made. What is no UTF-8 would spoil the whole page."""
    return text[:_MAX_LABEL].encode("utf-8", "replace").decode("utf-8")


def render(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """Make the page of a snapshot in the format that `accept` (the HTTP header) asks for; return it and its type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(snapshot))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type


# -- the server


class _Pages:
    """Pages of the latest tick. Asked from the server's threads."""

    def __init__(
        self,
        take: Callable[[], Snapshot],
        loop: asyncio.AbstractEventLoop,
        ticks: Callable[[], int],
        max_age_s: float,
    ) -> None:
        self._take = take
        self._loop = loop
        self._ticks = ticks
        self._max_age_s = max_age_s
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._taken_s = 0.0
        self._made: dict[tuple[str, bool], tuple[bytes, str]] = {}

    def get(self, accept: str, *, compress: bool) -> tuple[bytes, str]:
        """Return a page and its content type.

        Raises:
            UnavailableError: the agent's loop did not answer in time, or has ended.

        """
        with self._lock:
            snapshot = self._latest()
            # Whatever a client asks for, the encoders are three.
            kind = choose_encoder(accept)[1]
            page = self._made.get((kind, compress))
            if page is None:
                body, kind = render(snapshot, accept)
                page = (gzip.compress(body, _GZIP_LEVEL) if compress else body, kind)
                self._made[kind, compress] = page
            return page

    def _latest(self) -> Snapshot:
        known = self._snapshot
        is_old = time.monotonic() - self._taken_s > self._max_age_s
        if known is not None and not is_old and known.host.ticks == self._ticks():
            return known
        try:
            future = asyncio.run_coroutine_threadsafe(self._ask(), self._loop)
        except RuntimeError as error:
            raise UnavailableError("the agent is ending") from error
        try:
            self._snapshot = snapshot = future.result(_SNAPSHOT_WAIT_S)
        except (TimeoutError, concurrent.futures.CancelledError) as error:
            future.cancel()
            raise UnavailableError(f"the agent's loop gave no answer in {_SNAPSHOT_WAIT_S:g} s") from error
        self._taken_s = time.monotonic()
        self._made.clear()
        return snapshot

    async def _ask(self) -> Snapshot:
        return self._take()


class _Handler(BaseHTTPRequestHandler):
    timeout = _CLIENT_WAIT_S
    server_version = "whitepanda"
    sys_version = ""
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"metrics are at /metrics\n", "text/plain; charset=utf-8")
            return
        compress = "gzip" in self.headers.get("Accept-Encoding", "")
        try:
            body, kind = self.server.pages.get(self.headers.get("Accept", ""), compress=compress)
        except UnavailableError as error:
            self._answer(503, f"{error}\n".encode(), "text/plain; charset=utf-8")
            return
        self._answer(200, body, kind, compressed=compress)

    def _answer(self, status: int, body: bytes, kind: str, *, compressed: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if compressed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: scrapes come for ever."""


class _Server(ThreadingHTTPServer):
    """A thread per client, a bounded number of them; TLS is begun there, so that no client keeps others waiting."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(
        self,
        family: int,
        address: Any,
        pages: _Pages,
        context: ssl.SSLContext | None,
        on_refused: Callable[[], None],
    ) -> None:
        self.address_family = family
        self.pages = pages
        self._context = context
        self._on_refused = on_refused
        self._lock = threading.Lock()
        self._warned_s = -_WARN_EACH_S
        self._free = threading.BoundedSemaphore(_MAX_CLIENTS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without the look-up of our own name that the library makes here."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]  # typeshed allows sockets without a port

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the client a thread, where one is free."""
        if not self._free.acquire(blocking=False):
            self._refuse(f"{_MAX_CLIENTS} clients are being served", client_address)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one client."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands, where TLS is on, and answer; a client that takes too long for all of it is cut off."""
        stream = request
        if self._context is not None:
            stream = self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        timer = threading.Timer(_REQUEST_S, self._cut_off, (stream, client_address))
        timer.daemon = True
        timer.start()
        try:
            if self._context is not None:
                stream.settimeout(_CLIENT_WAIT_S)
                stream.do_handshake()
            super().finish_request(stream, client_address)
        finally:
            timer.cancel()
            if self._context is not None:
                stream.close()

    def _cut_off(self, stream: socket.socket, client_address: Any) -> None:
        self._refuse(f"not done after {_REQUEST_S:g} s", client_address)
        with contextlib.suppress(OSError):
            socket.socket.shutdown(stream, socket.SHUT_RDWR)  # not TLS's own, which another thread is in

    def _refuse(self, why: str, client_address: Any) -> None:
        now_s = time.monotonic()
        with self._lock:
            self._on_refused()
            is_news = now_s - self._warned_s >= _WARN_EACH_S
            if is_news:
                self._warned_s = now_s
        if is_news:
            _log.warning("a scrape was refused", client=str(client_address[0]), why=why)

    def handle_error(self, _request: Any, client_address: Any) -> None:
        """Note what a client broke; the others are served."""
        _log.debug("a scrape failed", client=str(client_address), exc_info=True)


class MetricsServer:
    """Serves /metrics as `[metrics]` says.

    Args:
        section: where, and the TLS files.
        take: makes a snapshot; called on the loop that `start` was called on.
        ticks: how many ticks ran; called from any thread.
        tick_s: the tick's period.
        on_refused: called, from any thread but never twice at once, for each scrape that is refused.

    """

    def __init__(
        self,
        section: MetricsSection,
        take: Callable[[], Snapshot],
        ticks: Callable[[], int],
        tick_s: float,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_refused = on_refused
        self._section = section
        self._take = take
        self._ticks = ticks
        self._tick_s = tick_s
        self._server: _Server | None = None

    @property
    def address(self) -> str:
        """Where it listens; "" before `start`."""
        if self._server is None:
            return ""
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    async def start(self) -> None:
        """Begin to answer. May be tried again after an error.

        Raises:
            UnavailableError: it cannot listen there.
            TlsError: the TLS files cannot work.

        """
        pages = _Pages(self._take, asyncio.get_running_loop(), self._ticks, 2 * self._tick_s)
        self._server = await asyncio.to_thread(self._listen, pages)
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        _log.info("metrics are served", address=self.address)

    async def stop(self) -> None:
        """Stop listening; may be called twice. Who is being answered is answered, unless the agent ends first."""
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.shutdown)
            server.server_close()

    def _listen(self, pages: _Pages) -> _Server:
        listen = self._section.listen
        host, _, port = listen.rpartition(":")
        context = _context(self._section.tls)
        try:
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            family, _, _, _, address = found[0]
            return _Server(family, address, pages, context, self._on_refused)
        except OSError as error:
            remedy = "free that port, or set another metrics.listen"
            raise UnavailableError(
                f"cannot listen at metrics.listen {listen}: {error.strerror}; {remedy}"
            ) from error


def _context(files: TlsFiles) -> ssl.SSLContext | None:
    """Return None without files; with them clients must present a certificate of the CA."""
    if files == TlsFiles():
        return None
    doubts = warnings(files, server=True, prefix="metrics.tls")
    for problem in problems(files, server=True, prefix="metrics.tls"):
        if problem not in doubts:
            raise TlsError(problem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(files.ca)
    context.load_cert_chain(files.certificate, files.key, password="")  # never asks at the terminal
    return context
