"""Recorded hosts: what each source said, tick by tick, as JSON lines. Written by `Recorder`, read by `Reader`.

The first line names the format. Then, for each tick, come the samples that were new at it, one to a line, and the tick
itself: its moment, whose samples it saw in which order, and why a source had nothing new. That is all a tick of the
agent works on, so a replay makes of it byte for byte what the agent made.

    {"format":"whitepanda-recording","version":1,"tick_s":1.0,"settings":{...}}
    {"sample":{"source":"procfs","mono_ns":...,"unix_ns":...,"vms":{...},...}}
    {"tick":{"mono_ns":...,"unix_ns":...,"samples":["procfs"],"sources":{"procfs":null,"perf":1}}}
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self, cast

import msgspec

from collector.base import VM_PARTS, Probe, Reason, SourceError, SourceSample, Stamp, VmIdentity, VmSample
from collector.inventory.coverage import PART_SOURCES, why_absent
from whitepanda.common.files.durable import create_beside

if TYPE_CHECKING:
    import io


FORMAT = "whitepanda-recording"
VERSION = 1
#: No line is longer: a sample of 10,000 VMs has room in it.
MAX_LINE_BYTES = 64 << 20

_STALE_TICKS = 5  # as in the agent: an older sample says nothing of now


class Header(msgspec.Struct, frozen=True):
    """A recording's first line. `settings` are those that what is made of the samples depends on, by their keys."""

    tick_s: float
    format: str = FORMAT
    version: int = VERSION
    settings: dict[str, float] = msgspec.field(default_factory=dict)


class RecordedTick(NamedTuple):
    """What a tick works on. `sources` has the reason of each source that is on, None where it works."""

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
_headers = msgspec.json.Decoder(Header)
_formats = msgspec.json.Decoder(_Format)


class Recorder:
    """Writes ticks to a file. A context manager, which ends the recording by `close`.

    The file comes into being only then, whole: until `close` it has another name beside it. Only its owner may read
    it: there are names of VMs and users in it. What ends the `with` block by an error drops the recording. A tick is in
    it whole or not at all, so that after an error it can still be closed with what came before.

    Args:
        file: the recording.
        header: its first line.
        replace: whether an existing file may be replaced.

    Raises:
        OSError: here and from each method: the file cannot be written; FileExistsError: it exists already.

    """

    def __init__(self, file: Path, header: Header, *, replace: bool = False) -> None:
        if not replace and os.path.lexists(file):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(file))
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        self._file = file
        self._replace = replace
        self._written: dict[str, SourceSample] = {}
        #: Where the samples are until `close`; stays where `close` fails.
        self.part, stream = create_beside(file)
        self._stream = cast("io.BufferedWriter", stream).detach()
        self._size = 0
        try:
            self._append(_encoded(header))
        except OSError:
            self.discard()
            raise

    def write(self, tick: RecordedTick) -> list[SourceSample]:
        """Append a tick and those of its samples that no tick before had. Returns these."""
        new = [sample for sample in tick.samples if self._written.get(sample.source) is not sample]
        names = tuple(sample.source for sample in tick.samples)
        lines = [_Line(sample=sample) for sample in new]
        lines.append(_Line(tick=_Tick(tick.mono_ns, tick.unix_ns, names, dict(tick.sources))))
        self._append(b"".join(map(_encoded, lines)))
        self._written.update((sample.source, sample) for sample in new)
        return new

    def close(self) -> None:
        """Make the recording last and give it its name. A second time does nothing."""
        if self._stream.closed:
            return
        os.fsync(self._stream.fileno())
        self._stream.close()
        if self._replace:
            self.part.replace(self._file)
        else:
            os.link(self.part, self._file)  # fails where somebody else made the file meanwhile
            self.part.unlink()

    def discard(self) -> None:
        """Drop what was written."""
        with contextlib.suppress(OSError):  # what could not be written is not wanted any more
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def unfinished(file: Path) -> list[Path]:
    """Return recordings that were to become `file` and have not: still running ones, and those of killed programs."""
    pattern = re.compile(rf"\.{re.escape(file.name)}\.\w{{8}}\.part")
    try:
        return sorted(path for path in file.parent.iterdir() if pattern.fullmatch(path.name))
    except OSError:
        return []


def _encoded(line: Header | _Line) -> bytes:
    try:
        data = _encoder.encode(line) + b"\n"
    except UnicodeEncodeError:  # one VM's odd name must not cost the recording
        data = _encoder.encode(_readable(msgspec.to_builtins(line))) + b"\n"
    if len(data) > MAX_LINE_BYTES:
        raise OSError(errno.EFBIG, f"a sample of {len(data)} bytes is longer than a line may be")
    return data


def _readable(value: Any) -> Any:
    """Replace in all texts what is no Unicode: bytes of a command line that are no UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_readable(key): _readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(item) for item in value]
    return value


class Reader:
    """Reads a recording, tick by tick, holding no more than the latest sample of each source.

    Args:
        file: as `Recorder` writes it.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no recording of this format; one line says what it is and what to do.

    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stream: IO[bytes] = file.open("rb")
        self._latest: dict[str, SourceSample] = {}
        #: Lines read so far.
        self.number = 1
        #: Says so where the last line is cut off; else "".
        self.cut_off = ""
        try:
            self.header = _header(file, self._stream.readline(MAX_LINE_BYTES))
        except ValueError:
            self._stream.close()
            raise

    def next(self) -> RecordedTick | None:
        """Return the next tick, None at the end. Samples that no tick saw are left out.

        Raises:
            ValueError: a line is wrong; says where and what. The next call goes on behind it.

        """
        while (line := self._line()) is not None:
            if line.sample is not None:
                self._latest[line.sample.source] = line.sample
            if line.tick is not None:
                tick = line.tick
                samples = (self._latest.get(name) for name in tick.samples)
                seen = tuple(sample for sample in samples if sample is not None)
                return RecordedTick(tick.mono_ns, tick.unix_ns, seen, tick.sources)
        return None

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._stream.close()

    def _line(self) -> _Line | None:
        while data := self._stream.readline(MAX_LINE_BYTES):
            self.number += 1
            if not data.strip():
                continue
            where = f"{self._file}:{self.number}"
            is_whole = data.endswith(b"\n")
            if not is_whole and len(data) == MAX_LINE_BYTES:
                while (rest := self._stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass
                raise ValueError(f"{where}: longer than {MAX_LINE_BYTES >> 20} MiB; no whitepanda recording")
            try:
                return _checked(_lines.decode(data))
            except ValueError as error:
                if is_whole:
                    remedy = "remove the line or record anew"
                    raise ValueError(f"{where}: not a line of a recording: {error}; {remedy}") from error
                self.cut_off = f"{where}: the last line is cut off and left out"
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _header(file: Path, line: bytes) -> Header:
    try:
        known = _formats.decode(line)
    except ValueError as error:
        raise ValueError(f"{file}:1: not a recording: {error}; `whitepanda record` makes them") from error
    if (known.format, known.version) != (FORMAT, VERSION):
        what = f"a recording of format {known.version}" if known.format == FORMAT else "not a recording"
        raise ValueError(f"{file}: {what}; this version reads format {VERSION}: record anew with it")
    try:
        header = _headers.decode(line)
    except ValueError as error:
        raise ValueError(f"{file}:1: not a recording's first line: {error}; record anew") from error
    if not 0 < header.tick_s <= 3600:  # noqa: PLR2004 - an hour; agent.tick_s is less
        raise ValueError(f"{file}:1: tick_s must be above 0 (value {header.tick_s}); record anew")
    return header


def _checked(line: _Line) -> _Line:
    if (line.sample is None) == (line.tick is None):
        raise ValueError("neither a sample nor a tick" if line.tick is None else "both a sample and a tick")
    stamped: SourceSample | _Tick | None = line.sample or line.tick
    if stamped is not None and (stamped.mono_ns < 0 or stamped.unix_ns < 0):
        raise ValueError("a clock is negative")
    return line


class _Turn(NamedTuple):
    """A recorded tick, and the moment at which what it saw was asked for: that of the tick before."""

    mono_ns: int
    unix_ns: int
    tick: RecordedTick


class RecordedSource:
    """A recorded host (`collector.base.Source`), replayed with its original spacing from the first call on.

    What the recorded tick saw of all sources is one sample here: each part keeps its own moment, and a part that
    nobody told has the reason that it had. Times are shifted so that the recording begins at the first call. Where
    calls come slower than the recording's ticks, ticks are left out. After the last one `sample` raises.

    Args:
        file: as `Recorder` writes it.
        mono_ns: the monotonic clock.
        unix_ns: the wall clock.
        sleep_s: waits.

    """

    name = "recorded"

    def __init__(
        self,
        file: Path,
        *,
        mono_ns: Callable[[], int] = time.monotonic_ns,
        unix_ns: Callable[[], int] = time.time_ns,
        sleep_s: Callable[[float], None] = time.sleep,
    ) -> None:
        self._file = file
        self._mono_ns = mono_ns
        self._unix_ns = unix_ns
        self._sleep_s = sleep_s
        self._reader: Reader | None = None
        self._last: RecordedTick | None = None
        self._next: _Turn | None = None
        self._shift_ns: tuple[int, int] | None = None
        self._errors: list[SourceError] = []

    def probe(self) -> Probe:
        """Say whether the file begins as a recording does."""
        try:
            Reader(self._file).close()
        except OSError as error:
            detail = f"{self._file}: {error.strerror}; sources.recorded.file must name a recording"
            return Probe(available=False, detail=detail, reason=Reason.SOURCE_FAILED)
        except ValueError as error:
            return Probe(available=False, detail=str(error), reason=Reason.INVALID_VALUE)
        return Probe(available=True, detail=f"replays {self._file}")

    def open(self) -> None:
        """Open the file at its beginning."""
        self.close()
        try:
            self._reader = Reader(self._file)
        except OSError as error:
            raise SourceError(f"{self._file}: {error.strerror}") from error
        except ValueError as error:
            raise SourceError(str(error), Reason.INVALID_VALUE) from error
        self._last = self._next = self._shift_ns = None
        self._errors.clear()

    def sample(self) -> SourceSample:
        """Return the latest tick that is due, waiting for the next one if none is.

        Raises:
            SourceError: a line is wrong (the next call goes on behind it), or the recording has ended.

        """
        if self._errors:
            raise self._errors.pop(0)
        turn = self._next or self._turn()
        self._next = None
        if turn is None:
            raise self._ended()
        if self._shift_ns is None:
            self._shift_ns = (self._mono_ns() - turn.mono_ns, self._unix_ns() - turn.unix_ns)
        shift_ns = self._shift_ns[0]
        wait_ns = turn.mono_ns + shift_ns - self._mono_ns()
        if wait_ns > 0:
            self._sleep_s(wait_ns / 1e9)
        now_ns = self._mono_ns() - shift_ns
        try:
            while (following := self._turn()) is not None:
                if following.mono_ns > now_ns:
                    self._next = following
                    break
                turn = following
        except SourceError as error:
            self._errors.append(error)  # costs its own call, not this tick
        return self._joined(turn.tick)

    def close(self) -> None:
        """Close the file."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _turn(self) -> _Turn | None:
        """Read the next tick that saw anything."""
        while (tick := self._tick()) is not None:
            last, self._last = self._last, tick
            if tick.samples:
                before = last or tick
                return _Turn(before.mono_ns, before.unix_ns, tick)
        return None

    def _tick(self) -> RecordedTick | None:
        try:
            return self._reader.next() if self._reader else None
        except ValueError as error:
            raise SourceError(str(error), Reason.INVALID_VALUE) from error

    def _joined(self, tick: RecordedTick) -> SourceSample:
        tick_s = self._reader.header.tick_s if self._reader else 0.0
        sample = _join(tick, round(_STALE_TICKS * tick_s * 1e9))
        if sample is None:
            raise SourceError(f"{self._file}: no source of the recorded host had anything new here", Reason.STALE)
        return _shifted(sample, *(self._shift_ns or (0, 0)))

    def _ended(self) -> SourceError:
        number, cut_off = (self._reader.number, self._reader.cut_off) if self._reader else (0, "")
        why = f"; {cut_off}" if cut_off else ""
        return SourceError(f"{self._file}: the recording has ended at line {number}{why}", Reason.STALE)


def _join(tick: RecordedTick, stale_after_ns: int) -> SourceSample | None:
    """Make one sample of what a tick saw, as the agent's VM table joins them; None where all of it is stale."""
    fresh = [sample for sample in tick.samples if tick.mono_ns - sample.mono_ns <= stale_after_ns]
    if not fresh:
        return None
    # The host's counters have no moment but their sample's.
    base = next((sample for sample in fresh if sample.host is not None), fresh[0])
    told = [sample.inventory for sample in fresh if sample.inventory is not None]
    told = told or [sample.inventory for sample in tick.samples if sample.inventory is not None]
    inventory: dict[str, VmIdentity] = {}
    for identities in told:
        for identity in identities:
            inventory.setdefault(identity.uuid, identity)
    absent = _absent(tick, {sample.source for sample in tick.samples} - {sample.source for sample in fresh})
    vms: dict[str, VmSample] = {}
    for sample in fresh:
        for uuid, vm in sample.vms.items():
            epoch = inventory[uuid].epoch if uuid in inventory else vm.epoch
            if uuid not in vms and vm.epoch == epoch:
                vms[uuid] = _join_vm(uuid, epoch, fresh, base, absent)
    return replace(base, source="recorded", vms=vms, inventory=tuple(inventory.values()) if told else None)


def _absent(tick: RecordedTick, stale: set[str]) -> dict[str, Reason]:
    """Why a VM lacks a part where no source says so of that very VM."""
    found = {}
    for part in VM_PARTS:
        why = why_absent(part, lambda name: tick.sources.get(name, Reason.SOURCE_OFF))
        stale_or_new = Reason.STALE if stale.intersection(PART_SOURCES[part]) else Reason.VM_STARTING
        found[part] = stale_or_new if why is None else why
    return found


def _join_vm(
    uuid: str, epoch: str, samples: Iterable[SourceSample], base: SourceSample, absent: dict[str, Reason]
) -> VmSample:
    """Take each part of the first source that has it, with its own moment."""
    parts = {}
    stamps: dict[str, Stamp] = {}
    reasons: dict[str, Reason] = {}
    seen = set()
    for sample in samples:
        vm = sample.vms.get(uuid)
        if vm is None or vm.epoch != epoch:
            continue
        seen.add(sample.source)
        for part in VM_PARTS:
            value = getattr(vm, part)
            if value is None or part in parts:
                continue
            parts[part] = value
            stamp = vm.stamps.get(part, Stamp(sample.mono_ns, sample.unix_ns))
            if stamp != (base.mono_ns, base.unix_ns):
                stamps[part] = stamp
        if vm.absent:
            reasons = {**reasons, **vm.absent}
    for part, why in absent.items():
        # A source that tells of the VM and not of this part has none to tell.
        has_none = why is Reason.VM_STARTING and seen.intersection(PART_SOURCES[part])
        reasons.setdefault(part, Reason.NOT_PRESENT if has_none else why)
    left = {part: why for part, why in reasons.items() if part not in parts}
    return VmSample(epoch, absent=left, stamps=stamps, **parts)


def _shifted(sample: SourceSample, mono_ns: int, unix_ns: int) -> SourceSample:
    """Move all moments of a sample."""
    vms = {
        uuid: replace(
            vm, stamps={part: Stamp(s.mono_ns + mono_ns, s.unix_ns + unix_ns) for part, s in vm.stamps.items()}
        )
        if vm.stamps
        else vm
        for uuid, vm in sample.vms.items()
    }
    return replace(sample, vms=vms, mono_ns=sample.mono_ns + mono_ns, unix_ns=sample.unix_ns + unix_ns)
