"""Digests that prove an object of the lake to be what was written, and under the name that it was written for.

A seal is a mark and 64 hexadecimal digits within the object itself: SHA-256 of the object's name, a zero byte and the
object's bytes, with zeros for the digits. So nothing lies beside the object that could be lost or be of another one,
and a segment appears at once with its digest. In Parquet the seal is a value of the footer's key-value metadata, in a
manifest a field. A manifest has the digests of its files (`digest_of`), which need no seal of their own.
"""

import hashlib
import io
import os
from pathlib import Path
from typing import BinaryIO

from central.lake.errors import DamagedError
from central.lake.objects import check_regular

_MARK = "whitepanda-sha256:"
#: What is written where the seal will be.
PLACE = _MARK + 64 * "0"
#: Of the seal in a Parquet footer.
SEGMENT_KEY = "whitepanda.seal"

_DIGITS = 64
_TAIL_BYTES = 1 << 22  # of a file, where its seal is: before the schema and a compacted segment's list of sources
_CHUNK_BYTES = 1 << 20


def digest_of(file: BinaryIO | Path) -> str:
    """Return the SHA-256 of a whole file, hexadecimal."""
    if isinstance(file, Path):
        check_regular(file)
        with file.open("rb") as opened:
            return digest_of(opened)
    found = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        found.update(chunk)
    return found.hexdigest()


def check_digest(root: str, name: str, file: BinaryIO | Path, written: str, remedy: str) -> None:
    """Compare the bytes of the object `name` below `root` with the digest that a manifest has of it.

    DamagedError (with the `remedy`): they differ. OSError: they cannot be read.
    """
    if (found := digest_of(file)) != written:
        raise DamagedError(root, name, _differs(found, written), remedy)


def sealed(data: bytes, name: str) -> bytes:
    """Return a manifest with its seal, of which it has the `PLACE`."""
    at = data.rindex(PLACE.encode()) + len(_MARK)
    return data[:at] + _digest(io.BytesIO(data), name, at).encode() + data[at + _DIGITS :]


def seal_file(path: Path, name: str) -> None:
    """Set the seal of a Parquet file that has the `PLACE` in its footer, under the key `SEGMENT_KEY`.

    `path` is not yet in the lake, `name` is what it will have there.
    """
    with path.open("r+b") as file:
        at = _seal_in(file)
        if at is None:
            raise ValueError(f"{path} has no place for a seal")
        digits = _digest(file, name, at).encode()
        file.seek(at)
        file.write(digits)


def check_text(root: str, name: str, data: bytes, remedy: str) -> None:
    """Compare a manifest with its seal; else as `check_file`."""
    check_file(root, name, io.BytesIO(data), remedy)


def check_file(root: str, name: str, file: BinaryIO, remedy: str) -> None:
    """Compare an open file, `name` below `root`, with its seal; it is read once.

    DamagedError: its bytes are not those that were written under this name, or it has no seal. OSError: unreadable.
    """
    at = _seal_in(file)
    if at is None:
        raise DamagedError(root, name, "it has no seal", remedy)
    file.seek(at)
    written = file.read(_DIGITS).decode("ascii", "replace")
    if (found := _digest(file, name, at)) != written:
        raise DamagedError(root, name, _differs(found, written), remedy)


def _seal_in(file: BinaryIO) -> int | None:
    """Return where the digits of the last mark are; None where there is none."""
    size = file.seek(0, os.SEEK_END)
    start = file.seek(max(size - _TAIL_BYTES, 0))
    tail = file.read()
    at = tail.rfind(_MARK.encode())
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


def _differs(found: str, written: str) -> str:
    return f"its SHA-256 is {found[:16]}..., that of what was written is {written[:16]}..."
