"""The page's files, from memory: each with an ETag, compressed once, under a policy that lets nothing foreign in."""

import gzip
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

#: Scripts, styles and answers come from this server alone; nothing inline, no frames, no forms that leave the page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Revalidated each time (304), so that a browser never mixes two versions after an upgrade.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file: its path below the page, its bytes as they are and compressed, its media type and its ETag."""

    path: str
    content: bytes
    compressed: bytes
    media_type: str
    etag: str


def read_files() -> list[PageFile]:
    """Read all files of the page, by path."""
    static = Path(__file__).with_name("static")
    found = []
    for file in sorted(file for file in static.rglob("*") if file.is_file()):
        content, kind = file.read_bytes(), _TYPES["." + file.name.rpartition(".")[2]]
        etag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'
        path = file.relative_to(static).as_posix()
        found.append(PageFile(path, content, gzip.compress(content, 9, mtime=0), kind, etag))
    return found


def routes() -> list[Route]:
    """Return the page's routes: `/` is its index.html, the other files are below `/page/`."""
    files = read_files()
    found = [Route(f"/page/{file.path}", _endpoint(file)) for file in files]
    index = next(file for file in files if file.path == "index.html")
    return [Route("/", _endpoint(index)), *found]


def _endpoint(file: PageFile) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        headers = {**_HEADERS, "ETag": file.etag}
        if is_known(request, file.etag):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(file.compressed, headers=headers, media_type=file.media_type)
        return Response(file.content, headers=headers, media_type=file.media_type)

    return answer


def is_known(request: Request, etag: str) -> bool:
    """Whether the caller has this version already."""
    return etag in (tag.strip() for tag in request.headers.get("if-none-match", "").split(","))
