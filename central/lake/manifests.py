"""Manifests with checksums, and the atomic commit of the files that they name: readers see all of them or none.

The files are published first, under unique names that no reader looks for. Creating the manifest (an exclusive create)
then makes them visible. If that fails, the files are removed.
"""

import contextlib
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from central.lake import checksums
from central.lake.errors import DamagedError
from central.lake.objects import NotRegularError, Objects


def read_manifest(objects: Objects, name: str, remedy: str) -> bytes:
    """Return a manifest whose seal is right; DamagedError (with the `remedy`) if it is not, OSError if unreadable."""
    try:
        data = objects.read(name)
    except NotRegularError as error:
        raise DamagedError(objects.root, name, "it is not a regular file", remedy) from error
    checksums.check_file(objects.root, name, io.BytesIO(data), remedy)
    return data


@dataclass(slots=True)
class ManifestCommit:
    """The files of manifest `name` before they are visible; removed if an exception leaves the `with` block."""

    objects: Objects
    name: str
    _drafts: dict[str, Path] = field(default_factory=dict)
    _published: list[str] = field(default_factory=list)
    _is_asked: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        for draft in self._drafts.values():
            draft.unlink(missing_ok=True)
        if error is None or (not isinstance(error, FileExistsError) and self._is_asked and self._may_be_there()):
            return
        for name in self._published:
            with contextlib.suppress(OSError):
                self.objects.remove(name)

    def draft(self, name: str) -> Path:
        """Return the path of a local file that is to be written and then published as `name`."""
        self._drafts[name] = self.objects.draft(name)
        return self._drafts[name]

    def publish(self, name: str) -> str:
        """Publish a draft, and return its digest."""
        digest = checksums.digest_of(self._drafts[name])
        self.objects.publish(self._drafts[name], name)
        self._published.append(name)
        return digest

    def create(self, manifest: bytes) -> bytes:
        """Create the manifest, with its seal in the `checksums.PLACE`, and return it; FileExistsError if it exists."""
        data = checksums.sealed(manifest, self.name)
        self._is_asked = True
        self.objects.create(self.name, data)
        return data

    def _may_be_there(self) -> bool:
        """Whether the manifest may exist although `create` failed; its files are then kept until maintenance."""
        try:
            self.objects.read(self.name)
        except OSError as error:
            return not isinstance(error, FileNotFoundError)
        return True
