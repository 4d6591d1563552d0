"""Whole objects under names: a folder, or a bucket of an object store by fsspec (`s3://bucket/prefix`).

`publish` makes a written draft (a local file) an object, durable and in the place of an older one; `create` never
replaces: one of several callers creates, in a folder by a hard link, in S3 by a conditional PUT (If-None-Match: *).
`local` returns a file with an object's bytes, not to be changed; `url` is for a DuckDB database that was given to
`attach`, and reads only what a query needs. Every method raises OSError if the disk or the store
fails; FileNotFoundError if the object to be read does not exist.
"""

import contextlib
import errno
import importlib
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO, cast

from central.lake.drafts import OwnedFolder
from whitepanda.common.errors import UnavailableError
from whitepanda.common.extras import how_to_install
from whitepanda.common.files.durable import replacing, sync_folder

_ENDINGS = (".json", ".parquet")  # of objects
_RANGES = {"default_block_size": 1 << 18, "default_cache_type": "bytes"}  # what a GET of a range has beside it
_CALL = "whitepanda-call"  # metadata of objects that `create` makes


class NotRegularError(OSError):
    """An object's name belongs to a pipe, a folder or a link to nowhere, not to a regular file or a link to one."""


def check_regular(path: Path) -> None:
    """Make sure that a file can be opened without waiting for a pipe's writer (NotRegularError); raises OSError."""
    try:
        facts = path.stat()
    except OSError as error:  # links in a circle, or to nowhere
        if isinstance(error, PermissionError) or not path.is_symlink():
            raise
        raise NotRegularError(f"{path}: is a dangling symbolic link ({error.strerror})") from error
    if not S_ISREG(facts.st_mode):
        raise NotRegularError(f"{path}: is not a regular file")


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as it is listed; `name` is relative to the root, with "/" between its parts."""

    name: str
    size_bytes: int
    modified_unix_s: float


class Folder:
    """Objects as files below a folder, which is made when it is needed."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self._root = root

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Yield the files below a folder, without those that begin with "." or end in ".tmp": they are not objects yet.

        An object's name that does not belong to a regular file is listed too: reading it reports that.
        """
        for folder, folders, files in os.walk(self._root / prefix, onerror=_raise_unless_gone):
            for name in (*files, *(each for each in folders if each.endswith(_ENDINGS))):
                if name.startswith(".") or name.endswith(".tmp"):
                    continue
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    try:
                        facts = path.stat()
                    except OSError:
                        facts = path.lstat()
                    yield Entry(path.relative_to(self._root).as_posix(), facts.st_size, facts.st_mtime)

    def read(self, name: str) -> bytes:
        """Read the file; NotRegularError if it is not one."""
        return self._regular(name).read_bytes()

    def open(self, name: str) -> BinaryIO:
        """Open the file; NotRegularError if it is not one."""
        return self._regular(name).open("rb")

    def draft(self, name: str) -> Path:
        """Return the path of a file to be written, next to that of `name`, in a folder that exists then."""
        path = self._root / name
        self._make(path.parent)
        return path.with_name(path.name + ".tmp")

    def publish(self, draft: Path, name: str) -> None:
        """Flush the draft, rename it, flush the folder."""
        path = self._root / name
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)

    def create(self, name: str, data: bytes) -> None:
        """Create a small object by a link, which never replaces; FileExistsError if the name exists."""
        path = self._root / name
        self._make(path.parent)
        with replacing(path, mode=0o600, fresh=True) as file:
            file.write(data)

    def remove(self, name: str) -> None:
        """Delete the file, if it exists, and its folder if that is empty then."""
        path = self._root / name
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()

    def local(self, name: str) -> Path:
        """Return the file itself; NotRegularError if it is not one."""
        with contextlib.suppress(FileNotFoundError):  # reported when it is opened
            return self._regular(name)
        return self._root / name

    def url(self, name: str) -> str:
        """Return the file's path."""
        return str(self.local(name))

    def attach(self, database: Any) -> None:
        """Let a DuckDB connection read by `url`: it can."""

    def drop_copies(self) -> None:
        """Delete what `local` copied outside of sessions: nothing."""

    def session(self) -> AbstractContextManager[None]:
        """Keep copies of `local` in this thread apart meanwhile: there are none."""
        return contextlib.nullcontext()

    def _regular(self, name: str) -> Path:
        check_regular(self._root / name)
        return self._root / name

    def _make(self, folder: Path) -> None:
        """Make a folder and its parents; their names are on the disk when this returns."""
        new = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for each in new:
            sync_folder(each.parent)


class Bucket:
    """Objects of an object store that fsspec knows, by URL (`s3://bucket/prefix`).

    Drafts and copies go to a new folder in the local folder `copies`; it is deleted at the end, or by the next process
    if this one is killed. `options` are the fsspec file system's, such as `endpoint_url`; its client finds the
    credentials (environment, ~/.aws, the machine's role).
    """

    def __init__(self, url: str, copies: Path | None = None, options: dict[str, Any] | None = None) -> None:
        try:
            fsspec = importlib.import_module("fsspec")  # only lakes in an object store need it
        except ImportError as error:
            raise UnavailableError(f"lake {url}: s3fs is not installed; {how_to_install('s3')}") from error
        self.root = url.rstrip("/")
        fixed = {"use_listings_cache": False, "skip_instance_cache": True, **(options or {})}
        protocol = url.partition("://")[0]
        with self._reported("connect to", ""):
            self._store: Any = fsspec.filesystem(protocol, **fixed)
        self._open_ranges: Callable[[], Any] = partial(fsspec.filesystem, protocol, **fixed, **_RANGES)
        self._prefix = self.root.partition("://")[2]
        if copies is not None:
            copies.mkdir(parents=True, exist_ok=True)
        self._copies_folder = OwnedFolder(copies or Path(tempfile.gettempdir()), ".objects-", is_local=True)
        self._copies = self._copies_folder.path
        self._session = threading.local()  # `copies`: the folder of the session that this thread is in

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Yield what is listed below the prefix."""
        with self._reported("list", prefix):
            found = self._store.find(f"{self._prefix}/{prefix}", detail=True)
        for path, facts in found.items():
            if facts["type"] != "file":
                continue  # nothing was listed, then s3fs looked for the prefix itself: another had begun to write below
            yield Entry(path[len(self._prefix) + 1 :], int(facts["size"]), facts["LastModified"].timestamp())

    def read(self, name: str) -> bytes:
        """GET."""
        with self._reported("read", name):
            return bytes(self._store.cat_file(self._path(name)))

    def open(self, name: str) -> BinaryIO:
        """GETs of ranges."""
        with self._reported("open", name):
            return cast("BinaryIO", self._store.open(self._path(name), "rb", block_size=1 << 20))

    def draft(self, name: str) -> Path:
        """Return a file in the folder of copies."""
        path = self._copies / "drafts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def publish(self, draft: Path, name: str) -> None:
        """PUT; a large object goes in parts and appears when it is complete."""
        with self._reported("write", name):
            self._store.put_file(str(draft), self._path(name))
        draft.unlink()

    def create(self, name: str, data: bytes) -> None:
        """PUT with If-None-Match: *; FileExistsError if the name exists.

        If the answer is lost the client sends it again, and is refused for the object that it has made: the metadata
        identify the call.
        """
        call = secrets.token_hex(8)
        with self._reported("create", name):
            try:
                self._store.pipe_file(self._path(name), data, mode="create", Metadata={_CALL: call})
            except OSError as error:
                # s3fs recognises the refusal only if the answer names the condition: Amazon's does, Ceph's does not.
                status = _answer(error, "ResponseMetadata", "HTTPStatusCode")
                if not isinstance(error, FileExistsError) and status != HTTPStatus.PRECONDITION_FAILED:
                    raise
                if not self._is_of(name, call):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from error

    def remove(self, name: str) -> None:
        """DELETE."""
        with contextlib.suppress(FileNotFoundError), self._reported("delete", name):
            self._store.rm_file(self._path(name))

    def local(self, name: str) -> Path:
        """GET into the folder of copies, or the session's, once."""
        path = getattr(self._session, "copies", self._copies / "copies") / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")  # others may want it too
            try:
                with self._reported("read", name):
                    self._store.get_file(self._path(name), str(unfinished))
                unfinished.replace(path)
            finally:
                unfinished.unlink(missing_ok=True)
        return path

    def url(self, name: str) -> str:
        """Return the object's URL."""
        return f"{self.root}/{name}"

    def attach(self, database: Any) -> None:
        """Let a DuckDB connection, and all cursors of it, GET ranges."""
        with self._reported("connect to", ""):
            database.register_filesystem(self._open_ranges())

    def drop_copies(self) -> None:
        """Delete them all, except those of sessions."""
        shutil.rmtree(self._copies / "copies", ignore_errors=True)

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Copy into a separate folder in this session."""
        with tempfile.TemporaryDirectory(prefix="session-", dir=self._copies) as folder:
            self._session.copies = Path(folder)
            try:
                yield
            finally:
                del self._session.copies

    def _is_of(self, name: str, call: str) -> bool:
        """Return whether this call of `create` made the object (HEAD)."""
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            return bool(self._store.metadata(self._path(name)).get(_CALL) == call)
        return False

    def _path(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    @contextlib.contextmanager
    def _reported(self, what: str, name: str) -> Iterator[None]:
        """Turn errors of the store's client into OSErrors of one line; FileExistsError and FileNotFoundError stay."""
        try:
            yield
        except Exception as error:
            is_missing = isinstance(error, FileNotFoundError) and what in {"read", "open", "delete"}  # else: no bucket
            if is_missing or isinstance(error, FileExistsError):
                raise
            line = (str(error).splitlines() or [type(error).__name__])[0]
            code = _answer(error, "Error", "Code")  # Ceph sends no text with it
            if isinstance(code, str) and not _answer(error, "Error", "Message"):
                line = f"the store says {code}"
            raise OSError(f"cannot {what} {self.root}/{name}: {line}") from error


def _answer(error: Exception, part: str, name: str) -> object:
    """Return a part of the store's answer behind a client's error, or None."""
    answer = getattr(error.__cause__, "response", None)
    return answer.get(part, {}).get(name) if isinstance(answer, dict) else None


def _raise_unless_gone(error: OSError) -> None:
    """Raise for a folder that cannot be read; one that does not exist (any more) is empty."""
    if not isinstance(error, FileNotFoundError):
        raise error


Objects = Folder | Bucket


def open_objects(root: Path | str, copies: Path | None = None, options: dict[str, Any] | None = None) -> Objects:
    """Return the objects below a folder or, if `root` is a URL, in an object store.

    UnavailableError: the store's client is not installed, or it is a store of another kind. OSError: otherwise.
    """
    text = str(root)
    if "://" in text and not text.startswith("s3://"):
        raise UnavailableError(f"lake {text}: a lake is a folder or s3://bucket/prefix")
    return Bucket(text, copies, options) if "://" in text else Folder(Path(text))
