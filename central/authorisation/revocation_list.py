"""Revoked certificates: a file of their serial numbers, read again while central runs.

`central.ingest.handshake` refuses hosts by it, `central.authorisation.roles` all others; `central.ingest.sessions`
closes streams that are open.
"""

import re
from pathlib import Path

from whitepanda.common import log
from whitepanda.common.errors import TlsError
from whitepanda.common.tls import serial_text

LOOK_S = 5.0  # how often the file is read

_SERIAL = re.compile(r"[0-9A-Fa-f]{1,40}")  # RFC 5280, 4.1.2.2: at most 20 bytes


def read_serials(path: Path) -> frozenset[str]:
    """Read a list of serial numbers: one a line in hexadecimal, with or without colons; `#` begins a comment.

    Raises TlsError, with the file and the line, where it cannot be read or a line is not a serial number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TlsError(f"{path}: cannot read the list of revoked serials: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TlsError(f"{path}: the list of revoked serials is not text") from error
    found = set()
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip().replace(":", "")
        if not text:
            continue
        if not _SERIAL.fullmatch(text):
            raise TlsError(
                f"{path}, line {number}: not a serial number, 1 to 40 hexadecimal digits (value {line[:80]!r}); "
                "`whitepanda pki show` shows a certificate's"
            )
        found.add(serial_text(text))
    return frozenset(found)


def revoked_text(serial: str) -> str:
    """Return the message to the owner of a revoked certificate."""
    return f"this certificate is revoked (serial {serial}); use a new one"


class Revoked:
    """The serial numbers in the file `central.revoked_serials`, "" for none.

    `problem` is why the file cannot be used now, "" while it can.
    """

    def __init__(self, path: str = "") -> None:
        self._path = path
        self.serials: frozenset[str] = frozenset()
        self.problem = ""

    def __contains__(self, serial: object) -> bool:
        return serial in self.serials

    def load(self) -> None:
        """Read the file; raises TlsError, as without a list central would let in revoked certificates."""
        if self._path:
            try:
                self.serials = read_serials(Path(self._path))
            except TlsError as error:
                raise TlsError(f"central.revoked_serials: {error}") from error

    def look(self) -> None:
        """Read the file again. A problem is logged once, and the last good list stays in force."""
        before = self.serials, self.problem
        try:
            self.load()
            self.problem = ""
        except TlsError as error:
            self.problem = str(error)
        if (self.serials, self.problem) == before:
            return
        if self.problem:
            message = "the list of revoked serials cannot be used; the last good one stays in force"
            log.get("central").error(message, problem=self.problem, serials=len(self.serials))
        else:
            message = "the list of revoked serials is in force"
            log.get("central").info(message, file=self._path, serials=len(self.serials))
