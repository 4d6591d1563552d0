"""The connection to libvirt: read-only, with keep-alive and life-cycle events, replaced when it broke.

libvirt may block indefinitely (a stopped daemon, a lock held by a migration). Keep-alive messages, answered by the
daemon and watched by libvirt's event loop in another thread, free a call to a silent daemon after 4 s and also reveal
its silence between calls. A source that hangs anyway holds up no tick (`agent.sampling.source_threads`).
"""

import contextlib
import importlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from collector.base import Reason, SourceError, Stamp
from collector.timestamps import clocks_now


class Answer(NamedTuple):
    """libvirt's record of one domain; when it was requested, and when it arrived."""

    record: Mapping[str, Any]
    asked_ns: int
    stamp: Stamp


_T = TypeVar("_T")

_KEEPALIVE_INTERVAL_S = 1
_KEEPALIVE_COUNT = 3
_MAX_TOUCHED = 10_000  # more VMs than any host has

_NO_BINDING = (
    "this Python has no libvirt binding; install whitepanda's extra `host` into its environment "
    "(needs gcc, pkg-config and libvirt-dev; Debian's python3-libvirt is not visible from there)"
)
_SILENT = "libvirt's daemon does not answer; is it hung or stopped?"


class Connection:
    """A connection to libvirt that reconnects by itself. For one thread; events come from libvirt's own.

    `uri` is libvirt's address of the hypervisor, such as "qemu:///system"; `binding` is the module `libvirt`, None:
    imported when first used.
    """

    def __init__(self, uri: str, binding: Any = None, clocks: Callable[[], Stamp] = clocks_now) -> None:
        self._uri = uri
        self._clocks = clocks
        self._libvirt = binding
        self._raw: Any = None
        self._callbacks: list[int] = []
        self._domains: dict[str, Any] = {}
        self._touched: deque[str] = deque(maxlen=_MAX_TOUCHED)
        self._silent = False

    @property
    def module(self) -> Any:
        """The binding. Raises SourceError if it is not installed."""
        if self._libvirt is None:
            try:
                self._libvirt = importlib.import_module("libvirt")
            except ImportError as error:
                raise SourceError(_NO_BINDING, Reason.NOT_PRESENT) from error
        return self._libvirt

    def version(self) -> str:
        """Ask for libvirt's version on a connection of its own. May block indefinitely. Raises SourceError."""
        module = self.module
        module.registerErrorHandler(_quiet, None)
        try:
            raw = module.openReadOnly(self._uri)
            try:
                number = raw.getLibVersion()
            finally:
                raw.close()
        except module.libvirtError as error:
            raise self._explain(error, opening=True) from error
        return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"

    def open(self) -> None:
        """Connect if there is no living connection. Raises SourceError, also where the daemon stopped answering."""
        if self._raw is not None and not self._alive():
            silent = self._silent
            self.close()
            if silent:
                # A new connection to a silent daemon would block: report it first.
                raise SourceError(f"{self._uri}: {_SILENT}", Reason.STUCK)
        if self._raw is None:
            self._connect()

    def close(self) -> None:
        """Disconnect; never raises."""
        raw, self._raw = self._raw, None
        callbacks, self._callbacks = self._callbacks, []
        self._domains = {}  # each holds the connection
        if raw is None:
            return
        forget = [partial(raw.domainEventDeregisterAny, callback) for callback in callbacks]
        for step in (*forget, raw.unregisterCloseCallback, raw.close):
            with contextlib.suppress(self.module.libvirtError):
                step()

    def touched(self) -> set[str]:
        """Return the UUIDs of VMs that began, ended, paused, moved or changed their devices since the last call."""
        # libvirt's thread only appends: the elements that are there now stay in front.
        return {self._touched.popleft() for _ in range(len(self._touched))}

    def running(self) -> int:
        """Return how many domains run. Raises SourceError."""
        try:
            return int(self._ask(lambda raw: raw.numOfDomains()))
        except self.module.libvirtError as error:
            raise self._explain(error) from error

    def statistics(self, uuids: Collection[str], group: str) -> dict[str, Answer | None]:
        """Ask for a `group` of statistics (INTERFACE or BLOCK) of domains in one call, without waiting for busy ones.

        Returns the answer by UUID, None where that domain could not be asked; unknown domains are missing. A domain
        that fails costs no other's record. Raises SourceError if libvirt cannot be asked, or each of several domains
        fails.
        """
        try:
            return self._bulk(uuids, group)
        except self.module.libvirtError as error:
            cause = error
        if len(uuids) == 1:
            return dict.fromkeys(uuids)
        answers: dict[str, Answer | None] = {}
        for uuid in uuids:
            answers.update(self.statistics([uuid], group))
        if answers and all(answer is None for answer in answers.values()):
            raise self._explain(cause) from cause
        return answers

    def _bulk(self, uuids: Collection[str], group: str) -> dict[str, Answer | None]:
        module = self.module
        wanted = getattr(module, f"VIR_DOMAIN_STATS_{group}")
        flags = module.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT

        def ask(raw: Any) -> dict[str, Answer | None]:
            domains = self._find(raw, uuids)
            # Only now: connecting and listing may wait.
            asked_ns = self._clocks().mono_ns
            found = raw.domainListGetStats(domains, wanted, flags) if domains else []
            stamp = self._clocks()
            return {domain.UUIDString(): Answer(record, asked_ns, stamp) for domain, record in found}

        return self._ask(ask)

    def _find(self, raw: Any, uuids: Collection[str]) -> list[Any]:
        """Return libvirt's handles of domains, which stay good over restarts of their domain."""
        if not self._domains.keys() >= set(uuids):
            flags = self.module.VIR_CONNECT_LIST_DOMAINS_ACTIVE
            self._domains = {domain.UUIDString(): domain for domain in raw.listAllDomains(flags)}
        return [self._domains[uuid] for uuid in uuids if uuid in self._domains]

    def _ask(self, call: Callable[[Any], _T]) -> _T:
        """Call libvirt; where the connection had ended, reconnect and call once more.

        Raises SourceError if libvirt cannot be reached, libvirtError if the call failed on a living connection.
        """
        for attempt in (1, 2):
            self.open()
            try:
                return call(self._raw)
            except self.module.libvirtError as error:
                if self._alive():
                    raise
                failure = self._explain(error)
                self.close()
                # A restarted daemon answers on a new connection. A silent one would block it: report it first.
                if attempt == 2 or failure.reason is Reason.STUCK:  # noqa: PLR2004 - the last
                    raise failure from error
        raise AssertionError  # the loop returns or raises

    def _alive(self) -> bool:
        try:
            return bool(self._raw.isAlive())
        except self.module.libvirtError:
            return False

    def _connect(self) -> None:
        module = self.module
        module.registerErrorHandler(_quiet, None)
        _start_event_loop(module)
        try:
            raw = module.openReadOnly(self._uri)
        except module.libvirtError as error:
            raise self._explain(error, opening=True) from error
        self._silent = False
        try:
            raw.setKeepAlive(_KEEPALIVE_INTERVAL_S, _KEEPALIVE_COUNT)
            raw.registerCloseCallback(self._on_close, None)
        except module.libvirtError as error:
            # A driver without a daemon (such as test:///) knows no keep-alive and needs none.
            if error.get_error_code() != module.VIR_ERR_NO_SUPPORT:
                with contextlib.suppress(module.libvirtError):
                    raw.close()
                raise self._explain(error) from error
        self._raw = raw
        for event in ("LIFECYCLE", "DEVICE_ADDED", "DEVICE_REMOVED"):
            # Without events changes are found a little later.
            with contextlib.suppress(module.libvirtError):
                number = getattr(module, f"VIR_DOMAIN_EVENT_ID_{event}")
                self._callbacks.append(raw.domainEventRegisterAny(None, number, self._on_event, None))

    def _on_event(self, _raw: object, domain: Any, *_what: object) -> None:
        self._touched.append(domain.UUIDString())

    def _on_close(self, _raw: object, reason: int, _opaque: object) -> None:
        self._silent = reason == self.module.VIR_CONNECT_CLOSE_REASON_KEEPALIVE

    def _explain(self, error: Exception, *, opening: bool = False) -> SourceError:
        """Make one line with the remedy for libvirt's error. `opening`: there is no connection yet."""
        text = str(error).strip().rstrip(".")
        lower = text.lower()
        if any(words in lower for words in ("permission denied", "authentication", "access denied")):
            remedy, reason = "run the agent as root or in the group libvirt", Reason.NO_PERMISSION
        elif any(words in lower for words in ("no such file", "connection refused", "unable to connect")):
            remedy, reason = "is libvirtd (or virtqemud) running?", Reason.SOURCE_FAILED
        elif "keepalive timeout" in lower:
            remedy, reason = _SILENT, Reason.STUCK
        elif opening:
            remedy, reason = "is sources.libvirt.uri right?", Reason.SOURCE_FAILED
        else:
            remedy, reason = "reconnecting at the next tick", Reason.SOURCE_FAILED
        return SourceError(f"{self._uri}: {text}; {remedy}", reason)


def _quiet(_context: object, _error: object) -> None:
    """Keep libvirt from printing errors that are raised as well."""


_event_loop: threading.Thread | None = None
_event_loop_lock = threading.Lock()


def _start_event_loop(module: Any) -> None:
    """Run libvirt's event loop, which keep-alive and events need, in a daemon thread. It cannot be stopped."""
    global _event_loop  # noqa: PLW0603 - libvirt has one event loop per process

    def run() -> None:
        while True:
            module.virEventRunDefaultImpl()

    with _event_loop_lock:
        if _event_loop is None:
            module.virEventRegisterDefaultImpl()
            _event_loop = threading.Thread(target=run, name="libvirt-events", daemon=True)
            _event_loop.start()
