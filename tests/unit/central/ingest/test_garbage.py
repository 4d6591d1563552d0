import asyncio
import gc
import weakref

import pytest

from central.ingest import gc_tuning


class Knot:
    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def _as_before():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_only_young_objects_are_looked_at_and_what_is_there_already_is_forgotten() -> None:
    gc_tuning.be_patient()
    assert gc.get_threshold() == gc_tuning.YOUNG
    assert gc.get_freeze_count() > 10_000
    runs = gc.get_stats()[2]["collections"]
    kept = [Knot() for _ in range(40_000)]
    assert gc.get_stats()[1]["collections"] > 0
    assert gc.get_stats()[2]["collections"] == runs, "the third generation is not"
    young = [weakref.ref(Knot()) for _ in range(1000)]
    kept += [Knot() for _ in range(60_000)]
    assert [knot() for knot in young] == [None] * 1000, "and young cycles go as ever"


async def test_everything_is_looked_at_hourly_or_after_many_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = looks = 0
    collected: list[int] = []
    monkeypatch.setattr(gc_tuning, "collect", lambda: collected.append(looks))
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        nonlocal looks, ended
        assert seconds == 60
        looks += 1
        ended = 10_000 if looks >= 70 else 9_999 if looks >= 65 else 0
        if looks > 140:
            await real(3600)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    task = asyncio.create_task(gc_tuning.collect_rarely(lambda: ended))
    while looks <= 140:
        await real(0)
    task.cancel()
    assert collected == [60, 70, 130]


@pytest.mark.long
def test_a_collection_finds_old_cycles() -> None:
    gc.set_threshold(*gc_tuning.YOUNG)
    knot = Knot()
    for _ in range(3):
        gc.collect(1)
    old = weakref.ref(knot)
    del knot
    gc.collect(1)
    assert old() is not None
    gc_tuning.collect()
    assert old() is None
