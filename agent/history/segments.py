"""Frames in files: appended in one write each, found by time, and dropped file by file, the oldest first.

A file begins with a magic word; its name has its number and the time of its first frame. A frame is a head (length,
checksum, flags, both clocks) and a payload, deflated with the file's first payload as the dictionary: names, and much
else, are the same in all. Nothing is synced: a killed process loses at most the frame that it was writing, a power cut
the last seconds. A file is never appended to by a later process, so that a torn end needs no repair.
"""

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MAGIC = b"WPHIST1\n"
_HEAD = struct.Struct("<IIBqq")  # payload bytes, CRC-32 of all behind it, flags, Unix time, monotonic time
_CLOCK_STEPPED = 1
_STEP_NS = 1_000_000_000
_LEVEL = 6
_DICTIONARY_BYTES = 32 << 10  # the most that deflate looks back
_SUFFIX = ".frames"
#: What a frame may have, before and after it is deflated: a defect, or damage, above it.
MAX_FRAME_BYTES = 64 << 20


class DamagedError(Exception):
    """A file has a frame that is not as it was written: what follows it cannot be read."""


class Segment(NamedTuple):
    """A file of frames."""

    number: int
    first_unix_ns: int
    path: Path


class Frame(NamedTuple):
    """One frame. `is_first`: of its file."""

    unix_ns: int
    payload: bytes
    clock_stepped: bool
    is_first: bool


def segments(folder: Path) -> list[Segment]:
    """Return a folder's files, oldest first; other files are not looked at. OSError: it cannot be read."""
    found = []
    try:
        names = os.listdir(folder)  # noqa: PTH208 - a path is made of those that count only
    except FileNotFoundError:
        return []
    for name in names:
        number, _, unix_ns = name.removesuffix(_SUFFIX).partition("-")
        if name.endswith(_SUFFIX) and number.isdecimal() and unix_ns.isdecimal():
            found.append(Segment(int(number), int(unix_ns), folder / name))
    return sorted(found)


def read(segment: Segment) -> Iterator[Frame]:
    """Yield a file's frames up to its end, or to a frame that was not written whole.

    DamagedError: a frame is not as it was written, or the file is another one. OSError: it cannot be read.
    """
    with segment.path.open("rb") as file:
        magic = file.read(len(_MAGIC))
        if len(magic) < len(_MAGIC):
            return
        if magic != _MAGIC:
            raise DamagedError(f"{segment.path}: no file of the history")
        size, dictionary = os.fstat(file.fileno()).st_size, b""
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, crc32, flags, unix_ns, _mono_ns = _HEAD.unpack(head)
            if length > size - file.tell():
                return  # torn: the writer was killed, or is writing now
            payload = file.read(length)
            if zlib.crc32(payload, zlib.crc32(head[8:])) != crc32:
                raise DamagedError(f"{segment.path}: damaged at byte {file.tell() - length - _HEAD.size}")
            try:
                inflater = zlib.decompressobj(zdict=dictionary)
                data = inflater.decompress(payload, MAX_FRAME_BYTES)
            except zlib.error as error:
                raise DamagedError(f"{segment.path}: {error}") from error
            yield Frame(unix_ns, data, bool(flags & _CLOCK_STEPPED), not dictionary)
            dictionary = dictionary or data[-_DICTIONARY_BYTES:]


def last_unix_ns(segment: Segment) -> int:
    """Return the time of a file's last whole frame, by the heads alone; 0: it has none. OSError: it cannot be read."""
    found = 0
    with segment.path.open("rb") as file:
        size, at = os.fstat(file.fileno()).st_size, len(_MAGIC)
        while len(head := os.pread(file.fileno(), _HEAD.size, at)) == _HEAD.size:
            length, _, _, unix_ns, _ = _HEAD.unpack(head)
            at += _HEAD.size + length
            if at > size:
                break
            found = unix_ns
    return found


class SegmentWriter:
    """Appends to a folder, which it makes. Errors of the disk are raised; then the next append begins a new file.

    A file is ended after `roll_ns` or `roll_bytes` of frames, and where the wall clock is set, so times in a file only
    go up.
    """

    def __init__(self, folder: Path, roll_ns: int, roll_bytes: int = 1 << 62) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._roll_ns, self._roll_bytes = roll_ns, roll_bytes
        self._file: int | None = None
        self._dictionary = b""
        self._first_ns = self._last_ns = self._last_mono_ns = 0
        found = segments(folder)
        self._number = found[-1].number if found else 0
        self._bytes = {one: one.path.stat().st_size for one in found}

    @property
    def total_bytes(self) -> int:
        """What all files have."""
        return sum(self._bytes.values())

    @property
    def first_unix_ns(self) -> int | None:
        """The time of the oldest frame; None: there is none."""
        return min((one.first_unix_ns for one in self._bytes), default=None)

    def append(self, unix_ns: int, mono_ns: int, payload: bytes, *, is_key: bool | None = None) -> int:
        """Write a frame; return its bytes. OSError: nothing was written that is read.

        `is_key`: whether it begins a file, as a whole frame does; None: as the time says.
        """
        last_ns, last_mono_ns = self._last_ns, self._last_mono_ns
        stepped = bool(last_ns) and abs((unix_ns - last_ns) - (mono_ns - last_mono_ns)) > _STEP_NS
        if is_key is None:
            is_full = self._file is not None and self._bytes[self._current] >= self._roll_bytes
            is_key = stepped or unix_ns <= last_ns or unix_ns - self._first_ns >= self._roll_ns or is_full
        if is_key:
            self.end_file()
        deflater = zlib.compressobj(_LEVEL, zdict=self._dictionary)
        body = deflater.compress(payload) + deflater.flush()
        tail = _HEAD.pack(len(body), 0, _CLOCK_STEPPED if stepped else 0, unix_ns, mono_ns)[8:] + body
        data = struct.pack("<II", len(body), zlib.crc32(tail)) + tail
        try:
            if self._file is None:
                self._begin(unix_ns)
                data = _MAGIC + data
            self._write(data)
        except OSError:
            is_empty = self._file is not None and not self._dictionary
            self.end_file()
            if is_empty:  # else a disk that refuses all would be left a file for each frame
                with contextlib.suppress(OSError):
                    self._current.path.unlink()
                    del self._bytes[self._current]
            raise
        self._dictionary = self._dictionary or payload[-_DICTIONARY_BYTES:]
        self._last_ns, self._last_mono_ns = unix_ns, mono_ns
        return len(data)

    def trim(self, before_unix_ns: int, max_bytes: int) -> None:
        """Delete the oldest files while there are too many bytes, and one that ended before a time.

        One a call: a clock that is set far ahead for a moment must not cost all. The file that is written stays.
        OSError: one could not be deleted.
        """
        files = sorted(self._bytes)
        closed = files[:-1] if self._file is not None else files
        excess = self.total_bytes - max_bytes
        old = next((one for one in closed if one.first_unix_ns + self._roll_ns <= before_unix_ns), None)
        for one in closed:
            if excess > 0 or one is old:
                one.path.unlink(missing_ok=True)
                excess -= self._bytes.pop(one)

    def end_file(self) -> None:
        """End the file that is written; the next frame begins another one."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
        self._file, self._dictionary = None, b""

    def _begin(self, unix_ns: int) -> None:
        self._number += 1
        path = self._folder / f"{self._number:010d}-{unix_ns}{_SUFFIX}"
        # Which VMs run here is for the agent's eyes only, as in the spool.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._first_ns = unix_ns
        self._current = Segment(self._number, unix_ns, path)
        self._bytes[self._current] = 0

    def _write(self, data: bytes) -> None:
        assert self._file is not None  # noqa: S101 - `append` has opened it
        while data:  # a disk that becomes full takes a part of it first
            written = os.write(self._file, data)
            self._bytes[self._current] += written
            data = data[written:]
