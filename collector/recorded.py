"""Recorded hosts: samples as JSON lines, written by `Recorder`, replayed by `RecordedSource`."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import IO, Self

import msgspec

from collector.base import VM_PARTS, Probe, Reason, SourceError, SourceSample, VmSample

__all__ = ["RecordedSource", "Recorder", "decode", "encode"]

# So many distances of samples of one source; their median is the recording's period, whatever single ones were late.
_PERIOD_OF = 31

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(SourceSample)


def encode(sample: SourceSample) -> bytes:
    """Return the sample as one line of JSON, with its line end."""
    return _encoder.encode(sample) + b"\n"


def decode(line: bytes) -> SourceSample:
    """Return the sample that `encode` made the line of.

    Raises:
        ValueError: the line is not a sample; says what and where in it.

    """
    sample = _decoder.decode(line)
    if sample.mono_ns < 0 or sample.unix_ns < 0:
        raise ValueError("a clock is negative")
    return sample


class Recorder:
    """Writes samples to a file, each on its own line. A context manager, which ends the recording by `close`.

    The file comes into being only then, whole: until `close` it has another name beside it. What ends the
    `with` block by an error drops the recording.

    Args:
        file: the recording.
        replace: whether an existing file may be replaced.

    Raises:
        OSError: here and from each method: the file cannot be written; FileExistsError: it exists already.

    """

    def __init__(self, file: Path, *, replace: bool = False) -> None:
        if not replace and os.path.lexists(file):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(file))
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        self._file = file
        self._replace = replace
        #: Where the samples are until `close`; stays where `close` fails.
        self.part = file.with_name(f".{file.name}.{os.getpid()}.part")
        self._stream: IO[bytes] = self.part.open("wb")

    def write(self, sample: SourceSample) -> None:
        """Append one sample."""
        self._stream.write(encode(sample))
        self._stream.flush()

    def close(self) -> None:
        """Make the recording last and give it its name. A second time does nothing."""
        if self._stream.closed:
            return
        self._stream.flush()
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class RecordedSource:
    """A recorded host (`collector.base.Source`), replayed with its original spacing from the first call on.

    A recording of several sources is replayed tick by tick: consecutive samples of different sources are
    joined to one with the first one's clocks (of what two sources tell, the later word). Each source's delta
    from tick to tick thus keeps its length but for the jitter within the recording's ticks: what was sampled
    half a period or more after a tick is the next one's, and what came that much too late is left out. Times
    are shifted so that the recording begins at the first call. Where calls come slower than the recording's
    ticks, ticks are left out. After the last one `sample` raises.

    Args:
        file: JSON lines as `Recorder` writes them.
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
        self._stream: IO[bytes] | None = None
        self._number = 0
        self._lookahead: SourceSample | None = None
        self._next: SourceSample | None = None
        self._shift_ns: tuple[int, int] | None = None
        self._last_ns: dict[str, int] = {}
        self._distances_ns: deque[int] = deque(maxlen=_PERIOD_OF)
        self._errors: list[SourceError] = []

    def probe(self) -> Probe:
        """Say whether the file's first line is a sample."""
        try:
            with self._file.open("rb") as stream:
                decode(stream.readline())
        except OSError as error:
            detail = f"{self._file}: {error.strerror}; sources.recorded.file must name a recording"
            return Probe(available=False, detail=detail, reason=Reason.SOURCE_FAILED)
        except ValueError as error:
            detail = f"{self._file}:1: not a recorded sample: {error}"
            return Probe(available=False, detail=detail, reason=Reason.INVALID_VALUE)
        return Probe(available=True, detail=f"replays {self._file}")

    def open(self) -> None:
        """Open the file at its beginning."""
        self.close()
        try:
            self._stream = self._file.open("rb")
        except OSError as error:
            raise SourceError(f"{self._file}: {error.strerror}") from error
        self._lookahead = self._next = self._shift_ns = None
        self._errors.clear()
        self._last_ns.clear()
        self._distances_ns.clear()
        self._number = 0

    def sample(self) -> SourceSample:
        """Return the latest tick that is due, waiting for the next one if none is.

        Raises:
            SourceError: a line is not a sample (the next call goes on behind it), or the recording has ended.

        """
        if self._errors:
            raise self._errors.pop(0)
        tick = self._next or self._tick()
        self._next = None
        if tick is None:
            raise SourceError(f"{self._file}: the recording has ended at line {self._number}", Reason.STALE)
        if self._shift_ns is None:
            self._shift_ns = (self._mono_ns() - tick.mono_ns, self._unix_ns() - tick.unix_ns)
        shift_ns, shift_unix_ns = self._shift_ns
        wait_ns = tick.mono_ns + shift_ns - self._mono_ns()
        if wait_ns > 0:
            self._sleep_s(wait_ns / 1e9)
        now_ns = self._mono_ns() - shift_ns
        try:
            while (following := self._tick()) is not None:
                if following.mono_ns > now_ns:
                    self._next = following
                    break
                tick = following
        except SourceError as error:
            self._errors.append(error)  # costs its own call, not this tick
        mono_ns, unix_ns = tick.mono_ns + shift_ns, tick.unix_ns + shift_unix_ns
        return replace(tick, source=self.name, mono_ns=mono_ns, unix_ns=unix_ns)

    def close(self) -> None:
        """Close the file."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _tick(self) -> SourceSample | None:
        """Read the samples of one tick: up to the first source that comes again, or the next tick's time."""
        tick = self._lookahead or self._line()
        self._lookahead = None
        if tick is None:
            return None
        sources = {tick.source}
        try:
            while (following := self._line()) is not None:
                away_ns = following.mono_ns - tick.mono_ns
                is_away = bool(self._distances_ns) and 2 * abs(away_ns) >= median(self._distances_ns)
                if is_away and away_ns < 0:
                    continue
                if is_away or following.source in sources:
                    self._lookahead = following
                    break
                sources.add(following.source)
                tick = _join(tick, following)
        except SourceError as error:
            self._errors.append(error)
        return tick

    def _line(self) -> SourceSample | None:
        for line in self._stream or ():
            self._number += 1
            if not line.strip():
                continue
            try:
                sample = decode(line)
            except ValueError as error:
                where = f"{self._file}:{self._number}"
                message = f"{where}: not a recorded sample: {error}; remove the line or record anew"
                raise SourceError(message, Reason.INVALID_VALUE) from error
            self._note_period(sample)
            return sample
        return None

    def _note_period(self, sample: SourceSample) -> None:
        last_ns = self._last_ns.get(sample.source)
        self._last_ns[sample.source] = sample.mono_ns
        if last_ns is not None and sample.mono_ns > last_ns:
            self._distances_ns.append(sample.mono_ns - last_ns)


def _join(first: SourceSample, second: SourceSample) -> SourceSample:
    """Join two samples of one tick; the first one's clocks."""
    vms = dict(first.vms)
    for uuid, vm in second.vms.items():
        known = vms.get(uuid)
        vms[uuid] = _join_vm(known, vm) if known is not None and known.epoch == vm.epoch else vm
    return replace(
        first,
        vms=vms,
        host=first.host if second.host is None else second.host,
        inventory=first.inventory if second.inventory is None else second.inventory,
    )


def _join_vm(first: VmSample, second: VmSample) -> VmSample:
    told = {name: value for name in VM_PARTS if (value := getattr(second, name)) is not None}
    joined = replace(first, **told)
    absent = {**first.absent, **second.absent}
    return replace(
        joined, absent={name: why for name, why in absent.items() if getattr(joined, name) is None}
    )
