"""The actions in force, on the disk before anything is changed, so that they survive a kill or a power cut."""

import fcntl
from pathlib import Path
from typing import IO

import msgspec

from agent.act.records import Record
from whitepanda.common.errors import UnavailableError
from whitepanda.common.files import durable

_FORMAT = 1
_MAX_ENDED = 1000


class Ended(msgspec.Struct, frozen=True):
    """When the last action on a VM ended, by the clock since the boot `boot_id`."""

    vm: str
    boot_ns: int
    boot_id: str


class _Kept(msgspec.Struct, frozen=True):
    format: int = _FORMAT
    next_number: int = 1
    records: tuple[Record, ...] = ()
    ended: tuple[Ended, ...] = ()


def is_empty(folder: Path) -> bool:
    """Whether a service has left nothing in force in its folder; False if that cannot be read."""
    try:
        return not _read(folder / "journal.json").records
    except UnavailableError:
        return False


class Journal:
    """The file `journal.json` in `folder`, replaced as a whole and synced to the disk at every change.

    UnavailableError: another process has it, or it is unreadable or damaged: then it is not known what to undo.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal.json"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock: IO[bytes] = (folder / "lock").open("wb")
        except OSError as error:
            raise UnavailableError(f"{error.filename}: {error.strerror}; see act.state_dir") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._kept = _read(self._path)
        except BlockingIOError as error:
            self._lock.close()
            remedy = "stop it, or set act.state_dir"
            raise UnavailableError(f"another `whitepanda act run` has {folder}; {remedy}") from error
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    @property
    def records(self) -> tuple[Record, ...]:
        """Actions in force, or that may be."""
        return self._kept.records

    @property
    def next_number(self) -> int:
        """Number of the next action; none is used twice."""
        return self._kept.next_number

    def ended_s(self, boot_ns: int, boot_id: str) -> dict[str, float]:
        """Return how many seconds ago the last action on each VM ended, since this boot."""
        return {one.vm: (boot_ns - one.boot_ns) / 1e9 for one in self._kept.ended if one.boot_id == boot_id}

    def put(self, record: Record) -> None:
        """Keep a new or changed record on the disk; OSError: nothing has changed."""
        others = tuple(one for one in self._kept.records if one.number != record.number)
        number = max(self._kept.next_number, record.number + 1)
        self._write(msgspec.structs.replace(self._kept, records=(*others, record), next_number=number))

    def end(self, record: Record, boot_ns: int) -> None:
        """Forget a record that is undone; its VM cools down from now on. OSError: the record is kept."""
        records = tuple(one for one in self._kept.records if one.number != record.number)
        others = [one for one in self._kept.ended if one.vm != record.vm]
        ended = (*others[1 - _MAX_ENDED :], Ended(record.vm, boot_ns, record.boot_id))
        self._write(msgspec.structs.replace(self._kept, records=records, ended=ended))

    def _write(self, kept: _Kept) -> None:
        with durable.replacing(self._path, mode=0o600) as file:
            file.write(msgspec.json.encode(kept))
        self._kept = kept


def _read(path: Path) -> _Kept:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except FileNotFoundError:
        return _Kept()
    except OSError as error:
        raise UnavailableError(f"{path}: cannot read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        remedy = "find in audit.jsonl what to undo, then remove this file"
        raise UnavailableError(f"{path}: damaged: {error}; {remedy}") from error
    if kept.format != _FORMAT:
        known = f"this version knows {_FORMAT}: run the one that wrote it"
        raise UnavailableError(f"{path}: has format {kept.format}, {known}")
    return kept
