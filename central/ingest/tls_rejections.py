"""Clients whose certificate is refused: gRPC ends such a handshake in its C core, which only logs to standard error.

So central reads the core's lines there, which give the reason of each refused handshake, though not the client. They
are recognised by their form and dropped; everything else is passed on to the original standard error.
"""

import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from whitepanda.common import log

_CORE_LINE = re.compile(rb"^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w./-]+:\d+\] ")
_REFUSED = re.compile(rb"\] Handshake failed with error (?P<why>.*)$")
_LOG_EVERY_S = 60.0
_SHOWN = 300  # characters of a line

#: Why a handshake is refused: the reason's name, what the core says, what to do.
REASONS = (
    ("tls_expired", "certificate has expired", "issue a new one with `whitepanda pki host`"),
    ("tls_not_yet_valid", "certificate is not yet valid", "compare the clocks"),
    ("tls_wrong_ca", "CERTIFICATE_VERIFY_FAILED", "it is not signed by the CA of central.tls.ca; issue it there"),
    ("tls_no_certificate", "PEER_DID_NOT_RETURN_A_CERTIFICATE", "it presented none; central speaks mTLS only"),
    ("tls_handshake", "", "it is not an agent's, or its TLS is too old"),
)


def reason_of(why: str) -> tuple[str, str]:
    """Return the reason's name and the remedy for the core's text on a handshake."""
    return next((name, remedy) for name, text, remedy in REASONS if text in why)


class Refusals:
    """Counts refused handshakes; logs the first of a reason, and then one a minute with their number."""

    def __init__(self, counts: Counter[str], *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._counts = counts
        self._clock_s = clock_s
        self._logged: dict[str, tuple[float, int]] = {}  # when, and how many there were then
        self._log = log.get("ingest")

    def note(self, why: str) -> None:
        """Take the core's text on one handshake."""
        reason, remedy = reason_of(why)
        self._counts[reason] += 1
        now, count = self._clock_s(), self._counts[reason]
        when, before = self._logged.get(reason, (now - _LOG_EVERY_S, 0))
        if now - when >= _LOG_EVERY_S:
            self._logged[reason] = (now, count)
            self._log.warning(
                "client refused in the TLS handshake; see the client's log",
                reason=reason,
                refused=count - before,
                detail=why[:_SHOWN],
                remedy=remedy,
            )


@contextmanager
def reading_standard_error(on_refusal: Callable[[str], None]) -> Iterator[None]:
    """Read this process's standard error meanwhile; `on_refusal` is called in a thread with the core's text.

    Python's own sys.stderr goes straight to the original.
    """
    sys.stderr.flush()
    outside = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    before, sys.stderr = (sys.stderr, os.fdopen(os.dup(outside), "w", buffering=1, encoding="utf-8", errors="replace"))
    reader = threading.Thread(target=_read, args=(reading, outside, on_refusal), name="standard error", daemon=True)
    reader.start()
    try:
        yield
    finally:
        os.dup2(outside, 2)  # the pipe's last writer: the reader comes to its end
        reader.join(1.0)
        sys.stderr, passing = before, sys.stderr
        passing.close()
        os.close(outside)


def _read(reading: int, outside: int, on_refusal: Callable[[str], None]) -> None:
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            if not _CORE_LINE.match(line):
                os.write(outside, line)
            elif refused := _REFUSED.search(line.rstrip()):
                on_refusal(refused["why"].decode("utf-8", "replace"))
