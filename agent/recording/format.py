"""Recordings: what each source measured, tick by tick, as JSON lines. Written by `Recorder`, read by `Reader`.

The first line names the format. Then each tick has its new samples, one a line, and a line with its time, the sources
whose samples it used, in order, and why a source had nothing new. These are all inputs of the agent's tick, so a replay
gives byte for byte what the agent gave.

    {"format":"whitepanda-recording","version":1,"tick_s":1.0,"settings":{...}}
    {"sample":{"source":"procfs","mono_ns":...,"unix_ns":...,"vms":{...},...}}
    {"tick":{"mono_ns":...,"unix_ns":...,"samples":["procfs"],"sources":{"procfs":null,"perf":1}}}
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from collector.base import Reason, SourceSample
from whitepanda.common.files.durable import create_beside

if TYPE_CHECKING:
    import io


FORMAT = "whitepanda-recording"
VERSION = 1
#: No line is longer; a sample of 10,000 VMs fits.
MAX_LINE_BYTES = 64 << 20
_MAX_TICK_S = 3600


class Header(msgspec.Struct, frozen=True):
    """A recording's first line. `settings`, by their keys, are those that rates and windows depend on."""

    tick_s: float
    format: str = FORMAT
    version: int = VERSION
    settings: dict[str, float] = msgspec.field(default_factory=dict)


class RecordedTick(NamedTuple):
    """The inputs of a tick. `sources` has the reason of each source that is on, None if it works."""

    mono_ns: int
    unix_ns: int
    samples: tuple[SourceSample, ...]
    sources: Mapping[str, Reason | None]


class _Tick(msgspec.Struct, frozen=True):
    mono_ns: int
    unix_ns: int
    samples: tuple[str, ...]
    sources: dict[str, Reason | None]


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    sample: SourceSample | None = None
    tick: _Tick | None = None


class _Format(msgspec.Struct, frozen=True):
    format: str = ""
    version: int = 0


_encoder = msgspec.json.Encoder()
_lines = msgspec.json.Decoder(_Line)


class Recorder(contextlib.AbstractContextManager["Recorder"]):
    """Writes ticks to a file; a context manager that ends the recording by `close`, or by `discard` after an error.

    The file appears at `close`, whole; until then it has another name in the same folder. Only its owner may read it.
    A tick is written whole or not at all, so a recording can be closed after an error. OSError, here and from each
    method: the file cannot be written; FileExistsError: it exists already, and is not to be replaced.
    """

    def __init__(self, file: Path, header: Header, *, replace: bool = False) -> None:
        if not replace and os.path.lexists(file):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(file))
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        self._file = file
        self._replace = replace
        self._written: dict[str, SourceSample] = {}
        #: Where the samples are until `close`; stays if `close` fails.
        self.part, stream = create_beside(file)
        self._stream = cast("io.BufferedWriter", stream).detach()
        self._size = 0
        try:
            self._append(_encoded(header))
        except OSError:
            self.discard()
            raise

    def write(self, tick: RecordedTick) -> list[SourceSample]:
        """Append a tick and those of its samples that no earlier tick had. Returns these."""
        new = [sample for sample in tick.samples if self._written.get(sample.source) is not sample]
        names = tuple(sample.source for sample in tick.samples)
        lines = [_Line(sample=sample) for sample in new]
        lines.append(_Line(tick=_Tick(tick.mono_ns, tick.unix_ns, names, dict(tick.sources))))
        self._append(b"".join(map(_encoded, lines)))
        self._written.update((sample.source, sample) for sample in new)
        return new

    def close(self) -> None:
        """Sync the recording and give it its name. A second time does nothing."""
        if self._stream.closed:
            return
        os.fsync(self._stream.fileno())
        self._stream.close()
        if self._replace:
            self.part.replace(self._file)
        else:
            os.link(self.part, self._file)  # fails if another process made the file meanwhile
            self.part.unlink()

    def discard(self) -> None:
        """Drop what was written."""
        with contextlib.suppress(OSError):
            self._stream.close()
        self.part.unlink(missing_ok=True)

    def _append(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._stream.write(left) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._stream.seek(self._size)
                self._stream.truncate()
            raise
        self._size += len(data)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def unfinished(file: Path) -> list[Path]:
    """Return recordings that were to become `file`: of running programs, and of killed ones."""
    pattern = re.compile(rf"\.{re.escape(file.name)}\.\w{{8}}\.part")
    try:
        return sorted(path for path in file.parent.iterdir() if pattern.fullmatch(path.name))
    except OSError:
        return []


def _encoded(line: Header | _Line) -> bytes:
    try:
        data = _encoder.encode(line) + b"\n"
    except UnicodeEncodeError:  # one VM's odd name must not cost the recording
        data = _encoder.encode(_as_unicode(msgspec.to_builtins(line))) + b"\n"
    if len(data) > MAX_LINE_BYTES:
        raise OSError(errno.EFBIG, f"a sample of {len(data)} bytes is longer than a line may be")
    return data


def _as_unicode(value: Any) -> Any:
    """Replace in all texts the bytes of a command line that are not UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_as_unicode(key): _as_unicode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_unicode(item) for item in value]
    return value


class Reader(contextlib.AbstractContextManager["Reader"]):
    """Reads a recording, tick by tick; holds only the latest sample of each source.

    OSError: the file cannot be read. ValueError: it is not a recording of this format; says what it is, and the remedy.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stream: IO[bytes] = file.open("rb")
        self._latest: dict[str, SourceSample] = {}
        self._number = 1
        #: Says so if the last line is cut off; else "".
        self.cut_off = ""
        try:
            self.header = _header(file, self._stream.readline(MAX_LINE_BYTES))
        except ValueError:
            self._stream.close()
            raise

    def next(self) -> RecordedTick | None:
        """Return the next tick, None at the end. Samples that no tick used are left out.

        ValueError: a line is wrong; says where and what. The next call continues behind it.
        """
        while (line := self._line()) is not None:
            if line.sample is not None:
                self._latest[line.sample.source] = line.sample
            if (tick := line.tick) is not None:
                used = tuple(self._latest[name] for name in tick.samples if name in self._latest)
                return RecordedTick(tick.mono_ns, tick.unix_ns, used, tick.sources)
        return None

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._stream.close()

    def _line(self) -> _Line | None:
        while data := self._stream.readline(MAX_LINE_BYTES):
            self._number += 1
            if not data.strip():
                continue
            where = f"{self._file}:{self._number}"
            is_whole = data.endswith(b"\n")
            if not is_whole and len(data) == MAX_LINE_BYTES:
                while (rest := self._stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass
                raise ValueError(f"{where}: longer than {MAX_LINE_BYTES >> 20} MiB; no whitepanda recording")
            try:
                return _checked(_lines.decode(data))
            except ValueError as error:
                if is_whole:
                    remedy = "remove the line or record again"
                    raise ValueError(f"{where}: not a line of a recording: {error}; {remedy}") from error
                self.cut_off = f"{where}: the last line is cut off and left out"
        return None

    def __exit__(self, *_: object) -> None:
        self.close()


def _header(file: Path, line: bytes) -> Header:
    try:
        known = msgspec.json.decode(line, type=_Format)
    except ValueError as error:
        raise ValueError(f"{file}:1: not a recording: {error}; `whitepanda record` makes them") from error
    if (known.format, known.version) != (FORMAT, VERSION):
        what = f"a recording of format {known.version}" if known.format == FORMAT else "not a recording"
        raise ValueError(f"{file}: {what}; this version reads format {VERSION}: record again with it")
    try:
        header = msgspec.json.decode(line, type=Header)
    except ValueError as error:
        raise ValueError(f"{file}:1: not a recording's first line: {error}; record again") from error
    if not 0 < header.tick_s <= _MAX_TICK_S:
        raise ValueError(f"{file}:1: tick_s must be above 0 (value {header.tick_s}); record again")
    return header


def _checked(line: _Line) -> _Line:
    stamped: SourceSample | _Tick | None = line.sample or line.tick
    if stamped is None:
        raise ValueError("neither a sample nor a tick")
    if line.sample is not None and line.tick is not None:
        raise ValueError("both a sample and a tick")
    if stamped.mono_ns < 0 or stamped.unix_ns < 0:
        raise ValueError("a clock is negative")
    return line
