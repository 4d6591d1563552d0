import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from central.journal.sequence_ranges import RangeChange, SequenceRanges, merged

numbers = st.lists(st.integers(1, 60), max_size=80)


def pairs_of(ranges: SequenceRanges) -> list[tuple[int, int]]:
    return list(zip(ranges._firsts, ranges._lasts, strict=True))


@given(numbers)
def test_holds_what_was_added_as_ranges_that_never_touch(added: list[int]) -> None:
    ranges, model = SequenceRanges(), set()
    stored: dict[int, int] = {}  # as the journal's table keeps them, from the changes alone
    for number in added:
        change = ranges.add(number)
        assert (change is None) == (number in model)
        model.add(number)
        if change is not None:
            for first in change.removed:
                del stored[first]
            stored[change.first] = change.last
        assert ranges.add(number) is None
    pairs = pairs_of(ranges)
    assert {n for first, last in pairs for n in range(first, last + 1)} == model
    assert all(b[0] > a[1] + 1 for a, b in itertools.pairwise(pairs))
    assert sorted(stored.items()) == pairs
    assert merged(added) == pairs
    assert pairs_of(SequenceRanges(reversed(pairs))) == pairs


def test_reports_how_ranges_changed() -> None:
    ranges = SequenceRanges([(1, 3), (5, 6)])
    assert ranges.add(2) is None
    assert ranges.add(8) == RangeChange(8, 8)
    assert ranges.add(7) == RangeChange(5, 8, (8,))
    assert ranges.add(4) == RangeChange(1, 8, (5,))
    assert ranges.add(0) == RangeChange(0, 8, (1,))
    assert pairs_of(ranges) == [(0, 8)]


def test_a_range_that_ends_before_its_start_is_an_error() -> None:
    with pytest.raises(ValueError, match="ends at 1, before its start 2"):
        SequenceRanges([(2, 1)])
