"""Machines whose rows make a build fail: found by halving and left out, so that all others are built."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from central.lake.errors import NotFiniteError

#: If more machines fail than this, their rows are not the cause: the build fails as before.
MAX_LEFT_OUT = 100


def is_of_rows(error: BaseException) -> bool:
    """Return whether rows can be the cause: numbers or memory; not a disk, a damaged file, or a stop."""
    import duckdb  # noqa: PLC0415 - takes 0.1 s, and only builds need it

    if isinstance(error, duckdb.Error):
        return not isinstance(error, duckdb.InterruptException | duckdb.IOException)
    kinds = (NotFiniteError, MemoryError, ArithmeticError, ValueError, np.linalg.LinAlgError, pa.ArrowException)
    return isinstance(error, kinds)


def is_of_memory(error: BaseException) -> bool:
    """Return whether memory was short: it may work with less at a time."""
    import duckdb  # noqa: PLC0415 - takes 0.1 s, and only builds need it

    return isinstance(error, MemoryError | duckdb.OutOfMemoryException)


def failing(machines: Sequence[str], error: Exception, build: Callable[[Sequence[str]], object]) -> list[str]:
    """Return the machines without which `build`, which leaves out those that it is given, succeeds.

    If two fail only together, the later one is left out. `error` is why the build of all `machines` failed: it is
    raised if rows are not its cause, or if more than `MAX_LEFT_OUT` machines or none would remain at fault.
    """
    if not is_of_rows(error):
        raise error
    names = list(dict.fromkeys(machines))

    def goes_through(kept: Sequence[str]) -> bool:
        chosen = set(kept)
        try:
            build([name for name in names if name not in chosen])
        except Exception as found:
            if not is_of_rows(found):
                raise
            return False
        return True

    if not goes_through([]):
        raise error
    good: list[str] = []
    found: list[str] = []
    waiting = _halves(names)  # a stack of parts that are not known to go through together with `good`
    while waiting:
        part = waiting.pop()
        if goes_through([*good, *part]):
            good += part
        elif len(part) > 1:
            waiting += _halves(part)
        else:
            found += part
        if len(found) > MAX_LEFT_OUT:
            raise error
    return found


def _halves(part: Sequence[str]) -> list[list[str]]:
    """Return the second half and the first one, in the order of a stack; without empty ones."""
    middle = (len(part) + 1) // 2
    return [list(half) for half in (part[middle:], part[:middle]) if half]
