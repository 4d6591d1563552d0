"""Days' states as folders: each is complete or absent, and is not used when it is damaged.

    <root>/slot=300/day=2026-11-20/<digest>/{pairs,usage,cpi}.parquet, digests.json

`digests.json` is sealed and has the digests of the files (`central.lake.checksums`). State is a cache: what is
damaged is logged, deleted and computed again from the day's slots.
"""

import contextlib
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import msgspec

from central.lake import checksums
from central.lake.errors import DamagedError
from central.lake.manifests import read_manifest
from central.lake.objects import Folder, NotRegularError
from whitepanda.common import log

_DIGESTS = "digests.json"
_REMEDY = "delete its folder: the next build computes the day again"


class _Digests(msgspec.Struct, frozen=True, kw_only=True):
    files: dict[str, str]
    seal: str = ""


def check_state(folder: Path) -> None:
    """Compare the files of a day's state with their digests; raises OSError.

    DamagedError: a file is not what was written, or is gone. Its name is relative to the folder `slot=<length>`.
    """
    root, day = folder.parent.parent, f"{folder.parent.name}/{folder.name}"
    name = f"{day}/{_DIGESTS}"
    try:
        data = read_manifest(Folder(root), name, _REMEDY)
        for file, digest in msgspec.json.decode(data, type=_Digests).files.items():
            name = f"{day}/{file}"
            checksums.check_digest(str(root), name, folder / file, digest, _REMEDY)
    except FileNotFoundError as error:
        gone = "it is gone; nothing is lost" if name.endswith(_DIGESTS) else "it is gone"
        raise DamagedError(str(root), name, gone, _REMEDY) from error
    except NotRegularError as error:
        raise DamagedError(str(root), name, "it is not a regular file", _REMEDY) from error
    except msgspec.MsgspecError as error:
        raise DamagedError(str(root), name, str(error), _REMEDY) from error


def state_folders(root: Path) -> Iterator[Path]:
    """Yield the folders of all days' states below a folder `state`, of all lengths of slots."""
    yield from sorted(each for each in root.glob("slot=*/day=*/*") if not each.name.startswith("."))


class StateFolders:
    """The states of one length of slots, in the folder `slot=<length>`. `damaged`: files; the caller empties it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.damaged: set[str] = set()
        self._log = log.get("builds")

    def folder(self, day: date, digest: str) -> Path:
        """Return the folder of the state of a day with such slots."""
        return self.root / f"day={day}" / digest[:32]

    def is_there(self, folder: Path) -> bool:
        """Return whether a day's state exists. A damaged one is logged and deleted. Raises OSError."""
        if not folder.is_dir():
            return False
        try:
            check_state(folder)
        except DamagedError as error:
            self._log.warning("state is damaged; the day is computed again", error=str(error))
            self.damaged.add(error.name)
            _delete(folder)
            return False
        return True

    def put(self, written: Path, folder: Path) -> None:
        """Move a state that has been written to its place; OSError, unless another builder has put the same there."""
        files = {path.name: checksums.digest_of(path) for path in sorted(written.iterdir())}
        data = msgspec.json.encode(_Digests(files=files, seal=checksums.PLACE)) + b"\n"
        (written / _DIGESTS).write_bytes(checksums.sealed(data, f"{folder.parent.name}/{folder.name}/{_DIGESTS}"))
        folder.parent.mkdir(exist_ok=True)
        try:
            written.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise

    def forget(self, used: set[Path]) -> None:
        """Delete state of days' earlier segments, and of days that no longer count."""
        for folder in self.root.glob("day=*/*"):
            if folder not in used:
                with contextlib.suppress(OSError):  # it is tried again after the next build
                    _delete(folder)
        for folder in self.root.glob("day=*"):
            with contextlib.suppress(OSError):  # not empty: still used
                folder.rmdir()


def _delete(folder: Path) -> None:
    """Delete a day's state, after a rename, so that no reader finds half of it."""
    if not folder.name.startswith("."):
        folder = folder.rename(folder.with_name(f".{folder.name}"))
    shutil.rmtree(folder)
