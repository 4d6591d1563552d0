"""What a fit has trained so far, in a file next to the model: a stopped fit continues after its last member."""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from central.models.pitot import Singles
from central.runtimes.model import read_arrays
from whitepanda.common.files.durable import replacing

#: A trained member: embeddings of workloads and platforms, and its loss.
Member = tuple[Singles, Singles, float]

_FORMAT = "whitepanda-runtime-partial-1"


class Checkpoint:
    """A file with the members trained so far, rewritten after each of them; `show` is called with lines about it.

    Its name is the model file's with `.partial` appended. A model that goes to a device, a pipe or a link has none. If
    it cannot be written, the fit continues but cannot be resumed.
    """

    def __init__(self, model: Path, show: Callable[[str], None]) -> None:
        is_plain = not model.is_symlink() and (model.is_file() or not model.exists())
        self.path = model.with_name(f"{model.name}.partial") if is_plain else None
        self._show = show

    def read(self, digest: str, most: int) -> list[Member]:
        """Return at most `most` members that a stopped fit of the same digest has trained.

        Members of other rows or options do not count. A file of another kind is left as it is.
        """
        if self.path is None or not self.path.exists():
            return []
        try:
            found, of_digest = _read(self.path)
        except (OSError, KeyError, ValueError, TypeError, RecursionError):
            self._show(f"warning: {self.path}: not a whitepanda checkpoint, left as is; this fit cannot be resumed")
            self.path = None
            return []
        if of_digest != digest:
            self._show(f"warning: {self.path}: is of a fit to other rows or with other options; this fit starts over")
            return []
        self._show(f"continuing after {len(found)} of {most} members, which {self.path} has")
        return found[:most]

    def write(self, digest: str, members: list[Member]) -> None:
        """Keep members; warn once if that is not possible."""
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
            self._show(f"warning: {self.path}: cannot write: {error.strerror}; this fit cannot be resumed")
            self.path = None

    def remove(self) -> None:
        """Remove the file: the model is written."""
        if self.path is None:
            return
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            self._show(f"warning: {self.path}: cannot be removed: {error.strerror}; the model is written")


def _read(path: Path) -> tuple[list[Member], str]:
    archive = read_arrays(path)
    header = json.loads(archive["header"].tobytes())
    if header["format"] != _FORMAT:
        raise ValueError("unknown format")
    found = [
        (archive[f"workload_{place}"], archive[f"platform_{place}"], float(archive[f"loss_{place}"][0]))
        for place in range(header["members"])
    ]
    return found, str(header["digest"])


def digest_of(texts: Iterable[object], arrays: Iterable[NDArray[Any]]) -> str:
    """Return a digest of all that decides what a fit trains: settings as they print, and arrays."""
    parts = [repr(text).encode() for text in texts]
    for array in arrays:
        parts += [f"{array.dtype} {array.shape}".encode(), np.ascontiguousarray(array).tobytes()]
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big"))  # so that no two lists of parts are alike
        found.update(part)
    return found.hexdigest()
