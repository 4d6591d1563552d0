"""What requests have in common: the error that one ends with, pages of lists, times, and how many rows.

Each check here raises `ApiError`.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    """Why a request gets no answer, in one line with the remedy.

    `field` is the request's field that the message is about, if any; `problem` the message without that field's name,
    if it begins with it.
    """

    def __init__(self, code: grpc.StatusCode, message: str, field: str = "", problem: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.field = field
        self.problem = problem


def wrong(message: str, field: str = "") -> ApiError:
    """Return the error of a request that can never be answered."""
    return ApiError(grpc.StatusCode.INVALID_ARGUMENT, message, field)


def wrong_field(field: str, problem: str) -> ApiError:
    """Return the error of a request with a wrong value of a field; its message is "FIELD PROBLEM"."""
    return ApiError(grpc.StatusCode.INVALID_ARGUMENT, f"{field} {problem}", field, problem)


def unknown(message: str, field: str = "", problem: str = "") -> ApiError:
    """Return the error of a request for what does not exist."""
    return ApiError(grpc.StatusCode.NOT_FOUND, message, field, problem)


def away(message: str) -> ApiError:
    """Return the error of a request that needs something that does not answer now."""
    return ApiError(grpc.StatusCode.UNAVAILABLE, message)


def at_most(field: str, value: int, most: int) -> None:
    """Refuse a larger value."""
    if value > most:
        raise wrong_field(field, f"must be at most {most} (value {value})")


def read_top(top: int, default: int) -> int:
    """Return how many rows are wanted."""
    at_most("top", top, limits.MAX_TOP)
    return top or default


def check(request: Any) -> None:
    """Refuse a request whose times, texts or lists are beyond the limits; the method itself checks its numbers."""
    for field, value in request.ListFields():
        values = value if field.is_repeated else [value]
        if field.is_repeated and len(values) > limits.max_items(field):
            raise wrong_field(field.name, f"must be at most {limits.max_items(field):,} (value {len(values):,})")
        for each in values:
            if isinstance(each, str):
                _check_text(field, each)
            elif isinstance(each, int) and (limits.is_time(field) or field.name == "id"):
                at_most(field.name, each, limits.max_integer(field))


def _check_text(field: FieldDescriptor, text: str) -> None:
    most, shown = limits.max_length(field), repr(text[:80])
    if len(text) > most:
        raise wrong_field(field.name, f"must be at most {most:,} characters (value {shown}, {len(text):,})")
    if limits.has_control(text):
        raise wrong_field(field.name, f"must have no control characters (value {shown})")


def check_times(request: Any) -> None:
    """Refuse a request whose since_unix_ns is after its until_unix_ns; 0 of the latter is now."""
    if request.until_unix_ns and request.since_unix_ns > request.until_unix_ns:
        values = f"values {request.since_unix_ns}, {request.until_unix_ns}"
        raise wrong_field("since_unix_ns", f"must not be after until_unix_ns ({values})")


def read_span(request: Any, now_unix_ns: int, least_ns: int = 0) -> tuple[int, int]:
    """Return a request's since and until, at most a day; by default the last hour."""
    until = min(request.until_unix_ns or now_unix_ns, limits.MAX_TIME_UNIX_NS)
    since: int = request.since_unix_ns or max(0, until - _HOUR_NS)
    if not least_ns <= until - since <= _DAY_NS:
        value = f"value {(until - since) / 1e9:.0f} s"
        raise wrong_field("until_unix_ns", f"must be after since_unix_ns and at most a day later ({value})")
    return since, until


@dataclass(frozen=True, slots=True)
class Page:
    """How many rows of a list are wanted, and from which place on."""

    size: int
    scope: tuple[str, str]  # the kind of list, and all that the request filters by
    place: tuple[Any, ...]

    def cut(self, found: Sequence[Row], place: Callable[[Row], tuple[Any, ...]]) -> tuple[Sequence[Row], str]:
        """Return the page's rows, and the token of the next page, "" on the last.

        `found` has one row more than `size` if there is a next page; `place` returns the place after a row.
        """
        shown = found[: self.size]
        if len(found) <= self.size:
            return shown, ""
        return shown, self.token(*place(shown[-1]))

    def token(self, *place: str | int) -> str:
        """Return the token of the page after a place."""
        return base64.urlsafe_b64encode(msgspec.json.encode((*self.scope, *place))).decode()


def read_page(request: Any, kind: str, first: tuple[str | int, ...], filters: str = "") -> Page:
    """Read a request's page_size and page_token; tokens of another kind of list, or of other filters, are refused.

    `first` is the place of the first page; `filters` all that the request filters by.
    """
    at_most("page_size", request.page_size, limits.MAX_PAGE_SIZE)
    page = Page(request.page_size or _PAGE_SIZE, (kind, filters), first)
    if not request.page_token:
        return page
    try:
        token = msgspec.json.decode(base64.urlsafe_b64decode(request.page_token), type=tuple[str | int, ...])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        token = ()
    place = token[2:]
    if token[:2] != page.scope or [*map(type, place)] != [*map(type, first)] or not all(map(_is_place, place)):
        what = f"is not one of this request's pages (value {request.page_token[:40]!r})"
        raise wrong_field("page_token", f"{what}; begin again without it")
    return replace(page, place=place)


def _is_place(value: str | int) -> bool:
    return limits.is_text(value) if isinstance(value, str) else 0 <= value <= limits.MAX_TIME_UNIX_NS
