"""Pages of lists: what a request asks for, and the token that says where the next page begins."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio
import msgspec

from central.api.limits import MAX_PAGE_SIZE, is_text

__all__ = [
    "MAX_PAGE_SIZE",
    "Admitted",
    "Context",
    "Page",
    "Token",
    "abort",
    "check_times",
    "encode",
    "read_page",
]

_PAGE_SIZE = 100
_MAX_INT64 = 2**63 - 1


class Admitted:
    """The context of a caller who was let in by whoever took the call."""

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """End the call with an error, as gRPC's own context does."""
        raise NotImplementedError


Context = grpc.aio.ServicerContext[Any, Any] | Admitted


class Token(msgspec.Struct, frozen=True, array_like=True):
    """Where the next page begins: in which list, of which version, after how many rows (or when), after which name."""

    method: str
    job: str
    version: int
    offset: int
    after: str


@dataclass(frozen=True, slots=True)
class Page:
    """How many rows are wanted, and from where on."""

    size: int
    token: Token


async def read_page(request: Any, method: str, job: str, context: Context) -> Page:
    """Check a request's page_size and page_token; `job` is all that the request filters by."""
    if request.page_size > MAX_PAGE_SIZE:
        message = f"page_size must be at most {MAX_PAGE_SIZE} (value {request.page_size})"
        await abort(context, grpc.StatusCode.INVALID_ARGUMENT, message)
    token = Token(method, job, 0, 0, "")
    if request.page_token:
        try:
            token = msgspec.json.decode(base64.urlsafe_b64decode(request.page_token), type=Token)
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            token = Token("", "", 0, 0, "")
        is_whole = (
            0 <= token.offset <= _MAX_INT64 and 0 <= token.version <= _MAX_INT64 and is_text(token.after)
        )
        if (token.method, token.job) != (method, job) or not is_whole:
            shown = request.page_token[:40]
            message = (
                f"page_token is not one of this request's pages (value {shown!r}); begin again without it"
            )
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, message)
    return Page(request.page_size or _PAGE_SIZE, token)


async def check_times(request: Any, context: Context) -> None:
    """Refuse a request whose since_unix_ns is after its until_unix_ns; 0 of the latter is now."""
    if request.until_unix_ns and request.since_unix_ns > request.until_unix_ns:
        message = (
            "since_unix_ns must not be after until_unix_ns "
            f"(values {request.since_unix_ns}, {request.until_unix_ns})"
        )
        await abort(context, grpc.StatusCode.INVALID_ARGUMENT, message)


def encode(token: Token) -> str:
    """Return the token as text."""
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode()


async def abort(context: Context, code: grpc.StatusCode, message: str) -> NoReturn:
    """End the call with an error."""
    await context.abort(code, message)
    raise AssertionError("abort raises")
