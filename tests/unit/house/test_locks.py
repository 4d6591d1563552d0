"""Locks of extras are installed beside each other, so they must agree."""

from __future__ import annotations

from pathlib import Path

LOCKS = Path(__file__).parents[3] / "requirements"


def test_no_two_locks_pin_different_versions():
    pinned: dict[tuple[str, str], dict[str, str]] = {}
    for lock in sorted(LOCKS.glob("*.lock")):
        for line in lock.read_text().splitlines():
            requirement, _, marker = line.partition(" ; ")
            name, equals, version = requirement.partition("==")
            assert equals, f"{lock.name}: {line}"
            pinned.setdefault((name, marker), {})[lock.name] = version
    assert len(pinned) > 50
    assert {key: found for key, found in pinned.items() if len(set(found.values())) > 1} == {}
