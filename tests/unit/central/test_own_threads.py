"""Questions that take all threads of asyncio's own pool hold up nothing that central does by itself."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from central import own_threads
from central.own_threads import SharedAnswer, in_own_thread

CENTRAL = Path(__file__).resolve().parents[3] / "central"
#: What waits there for a question, or runs before there are any.
ASKED = ("api/", "cli/", "demo/", "journal/writer.py")


async def test_they_run_beside_a_pool_that_is_used_up() -> None:
    pool, go = ThreadPoolExecutor(1), threading.Event()
    asyncio.get_running_loop().set_default_executor(pool)
    asking = [asyncio.create_task(asyncio.to_thread(go.wait, 60)) for _ in range(3)]
    try:
        async with asyncio.timeout(30):
            assert await in_own_thread(divmod, 7, 2) == (3, 1)
            with pytest.raises(ZeroDivisionError):
                await in_own_thread(divmod, 7, 0)
    finally:
        go.set()
        await asyncio.gather(*asking)


def test_only_questions_use_asyncio_s_own_pool() -> None:
    users = [
        path.relative_to(CENTRAL).as_posix() for path in CENTRAL.rglob("*.py") if ".to_thread(" in path.read_text()
    ]
    assert [user for user in users if not user.startswith(ASKED)] == []


async def test_who_asks_meanwhile_gets_the_same_answer() -> None:
    go, calls = threading.Event(), []

    def call() -> int:
        calls.append(1)
        go.wait(60)
        if len(calls) == 1:
            raise ZeroDivisionError
        return len(calls)

    shared = SharedAnswer(call)
    asking = [asyncio.create_task(shared.get()) for _ in range(5)]
    await asyncio.sleep(0)
    asking[0].cancel()  # the others still get it
    go.set()
    _, *answers = await asyncio.gather(*asking, return_exceptions=True)
    assert {type(answer) for answer in answers} == {ZeroDivisionError}
    assert (await shared.get(), await shared.get()) == (2, 3)


async def test_an_answer_that_cost_much_is_good_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, used_s, took_s, calls = [100.0], [0.0], [0.01], []

    def call() -> int:
        used_s[0] += took_s[0]
        calls.append(1)
        return len(calls)

    clock = SimpleNamespace(monotonic=lambda: now_s[0], thread_time=lambda: used_s[0])
    monkeypatch.setattr(own_threads, "time", clock)
    shared = SharedAnswer(call, rest=9.0)
    assert (await shared.get(), await shared.get()) == (1, 2)
    took_s[0] = 1.01
    assert (await shared.get(), await shared.get()) == (3, 3)
    now_s[0] += 8.9
    assert await shared.get() == 3
    now_s[0] += 0.2
    assert await shared.get() == 4
