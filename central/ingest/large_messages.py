"""Messages above 64 KiB are read in a separate process: 4 MiB of tiny parts take the protobuf library a second.

So central pays neither Python's lock nor the memory. It starts the process at the first such message and hands it one
at a time; the checked answer is small, or bounded by `ingest.max_batch_rows`. A process that dies costs the stream
whose message it was reading.
"""

import asyncio
import contextlib
import os
import resource
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import msgspec
from google.protobuf.message import DecodeError

from central import worker_process
from central.ingest import gc_tuning
from central.ingest.peers import Peer
from central.validation.reader import ReadBatch, read_batch
from central.validation.rows import Sender, job_bytes
from whitepanda.v1 import agent_pb2

LARGE = 64 << 10  # bytes; the library reads this many in a millisecond, whatever they are

_NICE = 5  # than central
_MEMORY_BYTES = 1 << 30  # of the process; the worst 4 MiB take half of it
_TRIMMED_BYTES = 256 << 20  # with more than that it gives back what is free
_HEAD = struct.Struct(">II")
_NO_MEMORY = "alloc failed"  # in the protobuf library's DecodeError


@dataclass(frozen=True, slots=True)
class Answer:
    """What a large message is: `body` as in AgentMessage, "malformed", or "not_read" as memory was short; the `batch`.

    `jobs` is the longest list of a Hello's or heartbeat's jobs, `job_bytes` the most bytes of names in one; central
    itself reads those that are short enough. `took_s` is the reading time, without the wait for its turn.
    """

    body: str
    jobs: int = 0
    job_bytes: int = 0
    batch: ReadBatch | None = None
    took_s: float = field(default=0.0, compare=False)


def read(raw: bytes, sender: Sender) -> Answer:
    """Read a message; MemoryError if memory is short."""
    try:
        message = agent_pb2.AgentMessage.FromString(raw)
    except DecodeError as error:
        if _NO_MEMORY in str(error):
            raise MemoryError from error
        return Answer("malformed")
    body = message.WhichOneof("body") or ""
    if body == "batch":
        return Answer(body, batch=read_batch(message.batch, raw, sender))
    # Empty if the message is another one.
    lists = (message.hello.jobs, [held.job for held in message.hello.held], message.heartbeat.jobs)
    return Answer(body, max(map(len, lists)), max(map(job_bytes, lists)))


class LargeMessages:
    """The process, as central sees it. Its methods belong to the loop's thread, which must be the main one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1, "large messages")
        self._closed = False

    async def read(self, raw: bytes, sender: Sender, peer: Peer) -> Answer:
        """Do as `read` does, in the process.

        One message of a peer is read at a time, so others wait for one of it at most; it owes for the time, unless it
        is an importer. OSError: the process cannot be started, died, or its memory was short.
        """
        loop = asyncio.get_running_loop()
        async with peer.reads_large:
            answer = None
            while answer is None:  # the process died of another message while this one waited
                answer = await loop.run_in_executor(self._thread, self._exchange, self._running(), raw, sender)
        if not sender.is_importer:
            peer.owe_for(answer.took_s)
        if answer.body == "not_read":
            raise OSError("the process that reads large messages is short of memory")
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise OSError("central is stopping")
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            command = [sys.executable, "-m", "central.ingest.large_messages", str(os.getpid())]
            self._process = worker_process.start(command, bufsize=0)
        return self._process

    @staticmethod
    def _exchange(process: subprocess.Popen[bytes], raw: bytes, sender: Sender) -> Answer | None:
        if process.poll() is not None:
            return None
        if process.stdin is None or process.stdout is None:
            raise OSError("the process that reads large messages has no pipes")
        order = msgspec.msgpack.encode(sender)
        whole = b"".join((_HEAD.pack(len(order), len(raw)), order, raw))
        try:
            at = 0
            while at < len(whole):
                at += os.write(process.stdin.fileno(), memoryview(whole)[at:])
            size, _ = _HEAD.unpack(_read_exactly(process.stdout, _HEAD.size))
            return msgspec.msgpack.decode(_read_exactly(process.stdout, size), type=Answer)
        except (OSError, EOFError) as error:
            process.kill()
            raise OSError(f"the process that reads large messages ended with {process.wait()}") from error

    def close(self) -> None:
        """End the process. A caller that waits for an answer gets an OSError."""
        self._closed = True
        self._end()
        self._thread.shutdown()

    def _end(self) -> None:
        """Kill the process; its pipes are closed once the thread has done with them."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._thread.submit(_close, process)


def _close(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    worker_process.close_pipes(process)


def _read_exactly(pipe: IO[bytes], size: int) -> bytes:
    """Read exactly `size` bytes; EOFError if there are fewer."""
    found = bytearray()
    while len(found) < size:
        if not (some := os.read(pipe.fileno(), min(size - len(found), 1 << 20))):
            raise EOFError
        found += some
    return bytes(found)


def main() -> None:
    """Read messages until central is gone."""
    if not worker_process.begin(int(sys.argv[1]), nice=_NICE):
        return
    worker_process.bound_memory(_MEMORY_BYTES)
    statm = Path("/proc/self/statm")
    with contextlib.suppress(EOFError):
        while True:
            order, size = _HEAD.unpack(_read_exactly(sys.stdin.buffer, _HEAD.size))
            sender = msgspec.msgpack.decode(_read_exactly(sys.stdin.buffer, order), type=Sender)
            raw = _read_exactly(sys.stdin.buffer, size)
            began_s = time.perf_counter()
            try:
                answer = read(raw, sender)
            except MemoryError:
                answer = Answer("not_read")
            del raw
            said = msgspec.msgpack.encode(replace(answer, took_s=time.perf_counter() - began_s))
            sys.stdout.buffer.write(_HEAD.pack(len(said), 0) + said)
            sys.stdout.buffer.flush()
            del answer, said
            if int(statm.read_text().split()[1]) * resource.getpagesize() > _TRIMMED_BYTES:
                gc_tuning.trim()


if __name__ == "__main__":
    main()
