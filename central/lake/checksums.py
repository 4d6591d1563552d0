"""Digests that prove that an object of the lake has the bytes that were written, for the name that it has.

A seal is a mark and 64 hexadecimal digits within the object itself: SHA-256 of the object's name, a zero byte and the
object's bytes, with zeros for the digits. In Parquet it is a value of the footer's key-value metadata, in a manifest a
field. So no other object is needed that could be lost or belong to another one, and a segment appears together with its
digest. A manifest has the digests of its files (`digest_of`), which need no seal.
"""

import hashlib
import io
import os
from pathlib import Path
from typing import BinaryIO

from central.lake.errors import DamagedError
from central.lake.objects import check_regular

_MARK = "whitepanda-sha256:"
_DIGITS = 64
#: The placeholder of a seal.
PLACE = _MARK + _DIGITS * "0"
#: The seal's key in a Parquet footer.
SEGMENT_KEY = "whitepanda.seal"

_TAIL_BYTES = 1 << 22  # of a file, with its seal: before the schema and a compacted segment's list of sources
_CHUNK_BYTES = 1 << 20


def digest_of(content: bytes | Path) -> str:
    """Return the SHA-256 of bytes or a whole file, hexadecimal."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    check_regular(content)
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(root: str, name: str, content: bytes | Path, written: str, remedy: str) -> None:
    """Compare the bytes of the object `name` below `root` with its digest in a manifest.

    DamagedError (with the `remedy`): they differ. OSError: they cannot be read.
    """
    _compare(root, name, digest_of(content), written, remedy)


def sealed(data: bytes, name: str) -> bytes:
    """Return a manifest with its seal in the `PLACE`."""
    at = data.rindex(PLACE.encode()) + len(_MARK)
    return data[:at] + _digest(io.BytesIO(data), name, at).encode() + data[at + _DIGITS :]


def seal_file(path: Path, name: str) -> None:
    """Set the seal of a Parquet file, to be published as `name`, that has the `PLACE` in its footer (`SEGMENT_KEY`)."""
    with path.open("r+b") as file:
        at = _seal_in(file)
        if at is None:
            raise ValueError(f"{path} has no place for a seal")
        digits = _digest(file, name, at).encode()
        file.seek(at)
        file.write(digits)


def check_file(root: str, name: str, file: BinaryIO, remedy: str) -> None:
    """Compare an open file, `name` below `root`, with its seal; it is read once.

    DamagedError: it does not have the bytes that were written under this name, or no seal. OSError: unreadable.
    """
    at = _seal_in(file)
    if at is None:
        raise DamagedError(root, name, "it has no checksum", remedy)
    file.seek(at)
    written = file.read(_DIGITS).decode("ascii", "replace")
    _compare(root, name, _digest(file, name, at), written, remedy)


def _compare(root: str, name: str, found: str, written: str, remedy: str) -> None:
    if found != written:
        why = f"its SHA-256 is {found[:16]}..., that of what was written is {written[:16]}..."
        raise DamagedError(root, name, why, remedy)


def _seal_in(file: BinaryIO) -> int | None:
    """Return the place of the last mark's digits, or None."""
    start = file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
    at = file.read().rfind(_MARK.encode())
    return start + at + len(_MARK) if at >= 0 else None


def _digest(file: BinaryIO, name: str, at: int) -> str:
    """The digest of a file whose seal's digits are at `at`."""
    found = hashlib.sha256(name.encode() + b"\0")
    left = at
    file.seek(0)
    while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
        found.update(chunk)
        left -= len(chunk)
    found.update(b"0" * len(file.read(_DIGITS)))
    while chunk := file.read(_CHUNK_BYTES):
        found.update(chunk)
    return found.hexdigest()
