"""Questions that take all threads of asyncio's own pool hold up nothing that central does by itself."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from central.own_threads import in_own_thread

CENTRAL = Path(__file__).resolve().parents[3] / "central"
#: What waits there for a question, or runs before there are any.
ASKED = {"api", "cli", "demo", "journal.py"}


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
    users = {
        path.relative_to(CENTRAL).parts[0]
        for path in CENTRAL.rglob("*.py")
        if ".to_thread(" in path.read_text()
    }
    assert users <= ASKED
