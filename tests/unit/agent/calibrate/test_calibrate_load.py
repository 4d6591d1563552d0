"""The built-in request client and clients of the user's own."""

import asyncio
import json
import math
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.calibrate.client import CommandLoad
from agent.calibrate.latency import Latencies, Measured, percentile
from agent.calibrate.plan import Requests
from agent.calibrate.requests import RequestLoad
from whitepanda.common.errors import InputError, UnavailableError

S = 10**9
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_percentiles_are_numpys_by_nearest_rank(values, share):
    expected = np.percentile(values, 100 * share, method="inverted_cdf")
    assert percentile(sorted(values), share) == expected


def test_a_stretch_of_time_has_the_answers_that_came_in_it():
    latencies = Latencies()
    for number in range(1, 21):
        latencies.add(number * S // 10, number / 1000)
    assert latencies.over(0, 2 * S) == Measured(0.019, 0.010, 0.020, 10.0)
    assert latencies.over(S // 2, S) == Measured(0.010, 0.008, 0.010, 10.0)  # after 0.5 s, at 1 s still
    assert latencies.over(2 * S, 3 * S) is None


class Server:
    """Answers on a port of this machine; `answer` is the test's."""

    def __init__(self, answer):
        self.answer = answer
        self.connections = 0
        self.requests = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while line := await reader.readline():
                if line.startswith(b"GET"):
                    while (await reader.readline()).strip():
                        pass
                self.requests.append(line)
                if await self.answer(writer):
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


def says(text, *, closes=False):
    async def answer(writer):
        writer.write(text)
        await writer.drain()
        return closes

    return answer


async def load_until(condition, load):
    """Run a load until something has come true; what was measured by then."""
    task = asyncio.create_task(load.run())
    start_ns = time.monotonic_ns()
    await until(condition)
    measured = load.over(start_ns, time.monotonic_ns())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return measured


@pytest.mark.parametrize(
    ("answer", "closes"),
    [
        (OK, False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nok\n\r\n2;x=1\r\nok\r\n0\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nok\n", True),
        (b"HTTP/1.0 302 Found\r\n\r\nto the end", True),
    ],
)
async def test_answers_of_http_are_read_to_their_end(answer, closes):
    async with Server(says(answer, closes=closes)) as server:
        spec = Requests(address=server.address, send="/a?b=1", connections=2)
        load = RequestLoad(spec, 100.0, seed=1)
        measured = await load_until(lambda: len(server.requests) >= 20, load)
    assert (load.failures, load.trouble) == (0, "")
    assert server.requests[0] == b"GET /a?b=1 HTTP/1.1\r\n"
    assert (server.connections > 2) is closes
    assert 0 < measured.p50_latency_s <= measured.p95_latency_s <= measured.p99_latency_s


async def test_lines_are_answered_by_lines():
    async with Server(says(b"PONG\n")) as server:
        load = RequestLoad(Requests(server.address, "line", send="PING", connections=1), 50.0, seed=1)
        assert await load_until(lambda: len(server.requests) >= 3, load) is not None
    assert set(server.requests) == {b"PING\n"}
    assert server.connections == 1


@pytest.mark.parametrize(
    ("answer", "closes", "trouble"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", False, "HTTP status 503"),
        (b"", True, "the server closed the connection"),
        (b"hello\r\n\r\n", False, "no answer of HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", False, "an answer of -5 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", True, "2 bytes read on a total of 9 expected bytes"),
    ],
)
async def test_a_failed_request_is_counted_with_its_reason_and_is_no_latency(answer, closes, trouble):
    async with Server(says(answer, closes=closes)) as server:
        load = RequestLoad(Requests(address=server.address, connections=1), 50.0, seed=1)
        assert await load_until(lambda: load.failures >= 2, load) is None
    assert trouble in load.trouble


async def test_a_server_that_is_not_there_is_reported():
    async with Server(says(OK)) as server:
        address = server.address
    load = RequestLoad(Requests(address=address, connections=1), 50.0, seed=1)
    assert await load_until(lambda: load.failures, load) is None
    assert load.trouble == "Connection refused"


async def test_requests_fall_due_whether_or_not_the_server_answers():
    """A client that waits for each answer would have one slow request here, and a fine median."""

    async def stalls(writer):
        if len(server.requests) == 10:
            await asyncio.sleep(0.8)
        writer.write(OK)
        return False

    async with Server(stalls) as server:
        spec = Requests(address=server.address, connections=1, arrivals="even")
        # Those that waited come after all.
        measured = await load_until(lambda: len(server.requests) >= 60, RequestLoad(spec, 50.0, seed=1))
    assert measured.p95_latency_s > 0.6
    assert measured.p50_latency_s > 0.1


async def test_an_answer_that_takes_too_long_counts_as_the_limit():
    async def never(writer):
        await asyncio.sleep(60)

    async with Server(never) as server:
        load = RequestLoad(Requests(address=server.address, connections=1, timeout_s=0.15), 40.0, seed=1)
        measured = await load_until(lambda: load.over(0, time.monotonic_ns()), load)
    assert measured[:3] == (0.15, 0.15, 0.15)
    assert load.failures == 0


def printing(*lines, then="time.sleep(60)"):
    body = "\n".join(lines)
    return (sys.executable, "-u", "-c", f"import time, json\n{body}\n{then}")


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_client_of_ones_own_reports_by_lines_of_json():
    load = CommandLoad(printing("print('ready')", """print('{"p95_latency_s": 0.02, "p99_latency_s": 1}')"""))
    task = asyncio.create_task(load.run())
    start_ns = time.monotonic_ns()
    await until(lambda: load._lines)
    now_ns = time.monotonic_ns()
    assert load.over(start_ns, now_ns)[:3:2] == (0.02, 1.0)
    assert math.isnan(load.over(start_ns, now_ns).p50_latency_s)
    assert load.over(start_ns - 9 * S, start_ns - S) is None  # it came later
    assert load.over(start_ns, now_ns + S) is None  # and is not of the second after
    process = load._command.process
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert process.returncode is not None


async def test_lines_that_were_held_up_count_for_the_second_that_they_are_of():
    """Its clock is 1000 s off; the third second's line comes 0.9 s late, with the fourth's."""
    load = CommandLoad(("x",))
    for at_s, came_s in ((1, 1.1), (2, 2.1), (3, 4.1), (4, 4.1)):
        text = json.dumps({"p95_latency_s": at_s / 100, "at_s": 1000 + at_s})
        load._take(text.encode(), round(came_s * S))
    seconds = [load.over(n * S, n * S + S + S // 10) for n in range(5)]
    assert [m and m.p95_latency_s for m in seconds] == [0.01, 0.02, 0.03, 0.04, None]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("print('{oops')", "printed invalid JSON: {oops"),
        ("print('{\"p50_latency_s\": 1}')", "without p95_latency_s"),
        ('print(\'{"p95_latency_s": "1 ms"}\')', "without p95_latency_s"),
        ("print('{\"p95_latency_s\": true}')", "without p95_latency_s"),
        ("print('{' + 'x' * 100000)", "a line of more than 64 KiB"),
    ],
)
async def test_nonsense_of_a_client_is_reported(line, problem):
    with pytest.raises(InputError, match=r"served\.command printed") as caught:
        async with asyncio.timeout(20):
            await CommandLoad(printing(line)).run()
    assert problem in str(caught.value)


async def test_a_client_that_ends_early_ends_the_run():
    ends = printing("import sys", "print('no route', file=sys.stderr)", then="sys.exit(3)")
    with pytest.raises(UnavailableError, match=r"ended before the run did: .*with status 3: no route") as caught:
        await CommandLoad(ends).run()
    assert "\n" not in str(caught.value)


async def test_a_client_that_is_not_there_is_reported():
    with pytest.raises(UnavailableError, match=r"served.command: cannot run /nowhere/client: No such file"):
        await CommandLoad(("/nowhere/client",)).run()
