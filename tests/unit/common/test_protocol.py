"""Both sides speak the newest protocol version that both know, or none."""

import pytest

from whitepanda.common import protocol
from whitepanda.common.protocol import agree, version_span


@pytest.mark.parametrize(
    ("newest", "oldest", "spoken"),
    [(0, 0, None), (2, 0, None), (3, 3, 3), (3, 2, 3), (5, 0, 5), (9, 1, 5), (9, 5, 5), (9, 6, None), (9, 0, None)],
)
def test_the_newest_common_version_is_spoken(monkeypatch, newest, oldest, spoken):
    monkeypatch.setattr(protocol, "MIN_PROTOCOL_VERSION", 3)
    monkeypatch.setattr(protocol, "PROTOCOL_VERSION", 5)
    assert agree(newest, oldest) == spoken


def test_versions_are_shown_as_people_read_them():
    assert [version_span(1, 1), version_span(0, 4), version_span(1, 3)] == ["1", "4", "1 to 3"]
