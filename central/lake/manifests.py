"""How files and the manifest that names them come into the lake: all of them count at once, or none does.

The files are published under names of their own, which nobody reads; then the manifest is created, exclusively, and is
what makes them count. Where that fails, the files are removed.
"""

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Self

from central.lake import checksums
from central.lake.objects import Objects


class ManifestCommit:
    """The files of one manifest, on their way. Leaving it by an exception removes what it wrote.

    Args:
        objects: of the lake.
        name: of the manifest.

    """

    def __init__(self, objects: Objects, name: str) -> None:
        self._objects = objects
        self._name = name
        self._drafts: dict[str, Path] = {}
        self._published: list[str] = []
        self._is_asked = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for draft in self._drafts.values():
            draft.unlink(missing_ok=True)
        if error is None or (not isinstance(error, FileExistsError) and self._is_asked and self._may_be_there()):
            return
        for name in self._published:
            with contextlib.suppress(OSError):
                self._objects.remove(name)

    def draft(self, name: str) -> Path:
        """Return the path of a local file that is to be written and then published as `name`."""
        self._drafts[name] = self._objects.draft(name)
        return self._drafts[name]

    def publish(self, name: str) -> str:
        """Publish a draft, and return its digest."""
        digest = checksums.digest_of(self._drafts[name])
        self._objects.publish(self._drafts[name], name)
        self._published.append(name)
        return digest

    def create(self, manifest: bytes) -> bytes:
        """Create the manifest, which has the `checksums.PLACE` of its seal. Returns it with the seal.

        Raises:
            FileExistsError: another builder was quicker.

        """
        data = checksums.sealed(manifest, self._name)
        self._is_asked = True
        self._objects.create(self._name, data)
        return data

    def _may_be_there(self) -> bool:
        """Whether the manifest may have been created though no answer came. What is left over is removed later."""
        try:
            self._objects.read(self._name)
        except FileNotFoundError:
            return False
        except OSError:
            pass
        return True
