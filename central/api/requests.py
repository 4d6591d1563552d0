"""What requests have in common: the error that one ends with, pages of lists, times, and how many rows.

Each check here raises `ApiError`.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import msgspec
from google.protobuf.descriptor import FieldDescriptor

from central.api import limits

_PAGE_SIZE = 100
_HOUR_NS = 3600 * 10**9
_DAY_NS = 24 * _HOUR_NS

Row = TypeVar("Row")


class ApiError(Exception):
    """Why a request gets no answer.

    Args:
        code: gRPC's status.
        message: one line for people, with the remedy.
        field: the request's field that the message is about, if it is about one.
    """

    def __init__(self, code: grpc.StatusCode, message: str, field: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.field = field


def wrong(message: str, field: str = "") -> ApiError:
    """Return the error of a request that can never be answered."""
    return ApiError(grpc.StatusCode.INVALID_ARGUMENT, message, field)


def unknown(message: str, field: str = "") -> ApiError:
    """Return the error of a request for what does not exist."""
    return ApiError(grpc.StatusCode.NOT_FOUND, message, field)


def away(message: str) -> ApiError:
    """Return the error of a request that needs something that does not answer now."""
    return ApiError(grpc.StatusCode.UNAVAILABLE, message)


def at_most(field: str, value: int, most: int) -> None:
    """Refuse a larger value."""
    if value > most:
        raise wrong(f"{field} must be at most {most} (value {value})", field)


def read_top(top: int, default: int) -> int:
    """Return how many rows are wanted."""
    at_most("top", top, limits.MAX_TOP)
    return top or default


def check(request: Any) -> None:
    """Refuse a request whose times, texts or lists are beyond the limits; its numbers the method itself checks."""
    for field, value in request.ListFields():
        values = value if field.is_repeated else [value]
        if field.is_repeated and len(values) > limits.max_items(field):
            raise wrong(f"{field.name} must be at most {limits.max_items(field):,} (value {len(values):,})", field.name)
        for each in values:
            if isinstance(each, str):
                _check_text(field, each)
            elif isinstance(each, int) and (limits.is_time(field) or field.name == "id"):
                at_most(field.name, each, limits.max_integer(field))


def _check_text(field: FieldDescriptor, text: str) -> None:
    most, shown = limits.max_length(field), repr(text[:80])
    if len(text) > most:
        raise wrong(f"{field.name} must be at most {most:,} characters (value {shown}, {len(text):,})", field.name)
    if limits.has_control(text):
        raise wrong(f"{field.name} must have no control characters (value {shown})", field.name)


def check_times(request: Any) -> None:
    """Refuse a request whose since_unix_ns is after its until_unix_ns; 0 of the latter is now."""
    if request.until_unix_ns and request.since_unix_ns > request.until_unix_ns:
        values = f"values {request.since_unix_ns}, {request.until_unix_ns}"
        raise wrong(f"since_unix_ns must not be after until_unix_ns ({values})", "since_unix_ns")


def read_span(request: Any, now_unix_ns: int, least_ns: int = 0) -> tuple[int, int]:
    """Return a request's since and until, at most a day; by default the last hour."""
    until = min(request.until_unix_ns or now_unix_ns, limits.MAX_TIME_UNIX_NS)
    since: int = request.since_unix_ns or max(0, until - _HOUR_NS)
    if not least_ns <= until - since <= _DAY_NS:
        value = f"value {(until - since) / 1e9:.0f} s"
        raise wrong(f"until_unix_ns must be after since_unix_ns and at most a day later ({value})", "until_unix_ns")
    return since, until


class Token(msgspec.Struct, frozen=True, array_like=True):
    """Where the next page begins: in which list, filtered by what, of which version, after how many rows, after whom.

    A list uses those of the last three that it needs.
    """

    listed: str
    filters: str
    version: int = 0
    offset: int = 0
    after: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """How many rows are wanted, and from where on."""

    size: int
    token: Token

    def cut(self, found: Sequence[Row], place: Callable[[Row], dict[str, Any]]) -> tuple[Sequence[Row], str]:
        """Return the page's rows, and the token of the next page, "" on the last.

        Args:
            found: rows from the page's begin on; one more than `size` where there is a next page.
            place: returns the fields of the token that say where the rows after this one begin.
        """
        shown = found[: self.size]
        if len(found) <= self.size:
            return shown, ""
        token = msgspec.structs.replace(self.token, **place(shown[-1]))
        return shown, base64.urlsafe_b64encode(msgspec.json.encode(token)).decode()


def read_page(request: Any, listed: str, filters: str = "") -> Page:
    """Read a request's page_size and page_token; `filters` is all that the request filters by."""
    at_most("page_size", request.page_size, limits.MAX_PAGE_SIZE)
    token: Token | None = Token(listed, filters)
    if request.page_token:
        try:
            token = msgspec.json.decode(base64.urlsafe_b64decode(request.page_token), type=Token)
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            token = None
    if token is None or not (
        (token.listed, token.filters) == (listed, filters)
        and 0 <= token.offset <= limits.MAX_TIME_UNIX_NS
        and 0 <= token.version <= limits.MAX_TIME_UNIX_NS
        and limits.is_text(token.after)
    ):
        what = f"page_token is not one of this request's pages (value {request.page_token[:40]!r})"
        raise wrong(f"{what}; begin again without it", "page_token")
    return Page(request.page_size or _PAGE_SIZE, token)
