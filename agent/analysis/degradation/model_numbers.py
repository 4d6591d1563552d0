"""Numbers of a model file, checked as they are read.

A model file is untrusted, and estimates are shown as if they were measured: values that no fit gives are refused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

#: Limits of a feature in its own unit: bytes per second are the largest.
FEATURE = (-1e18, 1e18)
#: Limits of a feature's divisor.
SCALE = (1e-18, 1e18)
#: Coefficients and leaves: of features relative to their baselines, for a degradation relative to its own.
TERM = (-1e6, 1e6)

#: Limits of intervals' coverage.
NOMINAL = (0.01, 0.999)
#: The most features of a model.
MAX_COLUMNS = 9999


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn any error in a block of a model file into a ValueError that names the block."""
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{where}: {error} is missing") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{where}: a value is of the wrong kind: {error}") from error
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{where}: {error}") from error


def read_all(name: str, data: Iterable[Any], read: Callable[[Any], T]) -> Iterator[T]:
    """Read each entry of a list; errors name its place in the list."""
    for place, one in enumerate(data):
        with reading(f"{name}[{place}]"):
            yield read(one)


def number(data: Mapping[str, Any], name: str, limits: tuple[float, float]) -> float:
    """Return a number of a block; KeyError or ValueError if it is missing, not a number, or outside the limits."""
    return _checked(data[name], name, limits)


def numbers_from(data: Mapping[str, Any], name: str, limits: tuple[float, float]) -> NDArray[np.float64]:
    """Return a list of numbers, shape (n,); raises as `number`."""
    found = data[name]
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise ValueError(f"{name} must be a list of numbers (value {_shown(found)})")  # noqa: TRY004 - the reader's one kind of error
    return np.array([_checked(value, f"{name}[{at}]", limits) for at, value in enumerate(found)], np.float64)


def whole(data: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """Return a whole number of a block; raises as `number`."""
    value = data[name]
    if not _is_number(value) or value != value // 1:
        raise ValueError(f"{name} must be a whole number (value {_shown(value)})")
    return int(_checked(value, name, (least, most)))


def _checked(value: object, name: str, limits: tuple[float, float]) -> float:
    low, high = limits
    # The comparison is exact also for a whole number that is too large for a float.
    if not _is_number(value) or not low <= value <= high:
        raise ValueError(f"{name} must be a number from {low:g} to {high:g} (value {_shown(value)})")
    return float(value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."  # noqa: PLR2004 - one line for people
