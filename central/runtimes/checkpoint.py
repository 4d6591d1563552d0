"""What a fit has trained so far, in a file beside the model: a fit that was stopped goes on behind its last member."""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from central.models.pitot import Singles
from whitepanda.common.files.durable import replacing

#: A trained member: embeddings of workloads and platforms, and its loss.
Member = tuple[Singles, Singles, float]

_FORMAT = "whitepanda-runtime-partial-1"


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


class Checkpoint:
    """A file that holds the members trained so far, written anew whole after each of them.

    The model's file with `.partial` behind its name. A model that goes to a device, a pipe or a link has none. That it
    cannot be written stops no fit: only going on is lost then.
    """

    def __init__(self, model: Path, tell: Callable[[str], None]) -> None:
        """Take the model's file, and where to tell, in one line, what becomes of the checkpoint."""
        is_plain = not model.is_symlink() and (model.is_file() or not model.exists())
        self.path = model.with_name(f"{model.name}.partial") if is_plain else None
        self._tell = tell

    def read(self, digest: str, most: int) -> list[Member]:
        """Return the members that a fit of the same digest trained before it was stopped, at most so many.

        Of other rows or options there are none, which is told. A file of another kind is left as it is.
        """
        if self.path is None or not self.path.exists():
            return []
        try:
            found, told = _read(self.path)
        except (
            OSError, KeyError, ValueError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error,
        ):  # fmt: skip
            self._tell(
                f"warning: {self.path}: is no whitepanda checkpoint and left alone; this fit cannot go on if stopped"
            )
            self.path = None
            return []
        if told != digest:
            self._tell(f"warning: {self.path}: is of a fit to other rows or with other options; this fit begins anew")
            return []
        self._tell(f"going on behind {len(found)} of {most} members, which {self.path} has")
        return found[:most]

    def write(self, digest: str, members: list[Member]) -> None:
        """Keep members; where that is not possible it is told once."""
        if self.path is None:
            return
        header = json.dumps({"format": _FORMAT, "digest": digest, "members": len(members)})
        arrays: dict[str, NDArray[Any]] = {"header": np.frombuffer(header.encode(), dtype=np.uint8)}
        for place, (workload, platform, loss) in enumerate(members):
            arrays |= {f"workload_{place}": workload, f"platform_{place}": platform}
            arrays[f"loss_{place}"] = np.array([loss])
        try:
            with replacing(self.path, mode=0o644) as file:
                np.savez(file, allow_pickle=False, **arrays)
        except OSError as error:
            self._tell(f"warning: {self.path}: cannot write: {error.strerror}; this fit cannot go on if stopped")
            self.path = None

    def remove(self) -> None:
        """Remove the file: the model is written."""
        if self.path is None:
            return
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            self._tell(f"warning: {self.path}: cannot be removed: {error.strerror}; the model is written")


def _read(path: Path) -> tuple[list[Member], str]:
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is no archive of arrays")
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            header = json.loads(archive["header"].tobytes())
            if header["format"] != _FORMAT:
                raise ValueError("its format is not known")
            found = [
                (archive[f"workload_{place}"], archive[f"platform_{place}"], float(archive[f"loss_{place}"][0]))
                for place in range(header["members"])
            ]
            return found, str(header["digest"])


def digest_of(texts: Iterable[object], arrays: Iterable[NDArray[Any]]) -> str:
    """Return a digest of all that decides what a fit trains: settings as they print, and arrays."""
    found = hashlib.sha256()
    for text in texts:
        _add(found, repr(text).encode())
    for array in arrays:
        _add(found, f"{array.dtype} {array.shape}".encode())
        _add(found, np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _add(to: _Hash, data: bytes) -> None:
    """Add data with its length, so that two runs of parts are never one."""
    to.update(len(data).to_bytes(8, "big"))
    to.update(data)
