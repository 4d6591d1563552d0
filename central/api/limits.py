"""Limits of requests to the fleet API by field, for parsers, answers and the OpenAPI document alike."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.descriptor import FieldDescriptor

MAX_TIME_UNIX_NS = 2**63 - 1  # in the year 2262
MAX_PAGE_SIZE = 1000
MAX_TOP = 1000  # rows of each list
MAX_WINDOWS = 10_000
MAX_BINS = 200
MAX_POINTS = 500
MAX_HISTORY_POINTS = 10_000  # of an answer
MAX_METRICS = 64
MAX_SCOPE = 1000  # VMs, hosts, jobs or projects
MAX_COUNT = 1_000_000  # jobs to observe or compare, and VMs of one of them
MAX_HOSTS = 10_000  # of a side
MAX_HTTP_BYTES = 1 << 16  # of the line and headers of an HTTP request
MAX_HTTP_ITEMS = 1000  # of a list there; fits with names of up to 48 characters
MAX_BESIDE = 64
MAX_EPSILONS = 16
MAX_EPSILON = 0.5
MAX_NAME = 512  # characters, as of the names that central takes
MAX_LOADING = 1000  # characters
MAX_TEXT = 1000  # characters of a reason or note
MAX_TOKEN = 12_000  # characters; a token has the names that its request filters by

#: Methods whose questions have a queue of their own (`central.api.admission.Worker`), which may be full.
QUEUED = frozenset(
    {
        "CompareSides",
        "GetHostTimeline",
        "GetJob",
        "GetVmHistory",
        "PlanObservation",
        "PredictRuntime",
        "QuerySeries",
        "TopVms",
    }
)

#: No control characters or line ends, which no accepted name has.
TEXT_PATTERN = r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*$"
TOKEN_PATTERN = r"^[A-Za-z0-9_=-]*$"  # noqa: S105 - no password

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_TOKEN = "page_token"  # noqa: S105 - no password
_MOST: dict[str, int] = {
    "page_size": MAX_PAGE_SIZE,
    "top": MAX_TOP,
    "max_windows": MAX_WINDOWS,
    "bins": MAX_BINS,
    "points": MAX_POINTS,
    "min_instances": MAX_COUNT,
    "id": 2**63 - 1,
}
_MOST_OF: dict[tuple[str, str], int] = {
    ("PlanObservationRequest", "top"): MAX_COUNT,
    ("CompareSidesRequest", "top"): MAX_COUNT,
    ("QuerySeriesRequest", "points"): MAX_HISTORY_POINTS,
}
_ITEMS = {
    "current_hosts": MAX_HOSTS,
    "new_hosts": MAX_HOSTS,
    "beside": MAX_BESIDE,
    "epsilons": MAX_EPSILONS,
    "metrics": MAX_METRICS,
    "vms": MAX_SCOPE,
    "hosts": MAX_SCOPE,
    "jobs": MAX_SCOPE,
    "projects": MAX_SCOPE,
}
_LENGTHS = {_TOKEN: MAX_TOKEN, "loading": MAX_LOADING, "reason": MAX_TEXT, "text": MAX_TEXT, "key": 64, "operator": 64}


@dataclass(frozen=True, slots=True)
class Numbers:
    """Range of a number with a fraction."""

    low: float
    high: float
    or_zero: bool = False  # 0 is allowed too, and means the default
    is_open: bool = False  # without `low` itself


NUMBERS: Mapping[str, Numbers] = {
    "margin_percent": Numbers(0.0, 1e6, is_open=True),
    "t": Numbers(0.01, 100.0, or_zero=True),
    "coverage": Numbers(0.0, 1.0),
    "design_effect": Numbers(1.0, 1e6, or_zero=True),
    "min_coverage": Numbers(0.0, 1.0),
    "confidence": Numbers(0.5, 0.9999, or_zero=True),
    "epsilons": Numbers(0.0, MAX_EPSILON, is_open=True),
}


def has_control(text: str) -> bool:
    """Whether a text has a control character, or one that ends a line."""
    return _CONTROL.search(text) is not None


def is_text(text: str) -> bool:
    """Whether a text may be a name: not too long, no control characters."""
    return len(text) <= MAX_NAME and not has_control(text)


def is_time(field: FieldDescriptor) -> bool:
    """Whether a field is a time in nanoseconds since 1970."""
    return field.name.endswith("unix_ns")


def max_integer(field: FieldDescriptor) -> int:
    """Return the largest integer that a request's field may be; the least is 0."""
    if is_time(field):
        return MAX_TIME_UNIX_NS
    message = field.containing_type
    of_field = None if message is None else _MOST_OF.get((message.name, field.name))
    return of_field or _MOST.get(field.name, 2**32 - 1)


def max_length(field: FieldDescriptor) -> int:
    """Return how many characters a request's text may have."""
    return _LENGTHS.get(field.name, MAX_NAME)


def max_items(field: FieldDescriptor) -> int:
    """Return how many values a request's list may have."""
    return _ITEMS.get(field.name, MAX_HOSTS)
