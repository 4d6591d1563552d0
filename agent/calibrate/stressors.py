"""Starts and stops stressors: commands as lists of arguments, or lines to a TCP port."""

import asyncio
import os
import shlex
import signal
import textwrap
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

from agent.calibrate.plan import Stressor
from whitepanda.common.errors import UnavailableError

_END_S = 5.0  # from SIGTERM to SIGKILL
_SHOWN = 100  # characters of a command in messages
_KEPT_BYTES = 2000  # of a command's standard error, for the message


def _shown(arguments: Sequence[str]) -> str:
    """Shorten a command to one line for a message."""
    return textwrap.shorten(shlex.join(arguments), _SHOWN, placeholder=" ...")


def why_of(error: Exception) -> str:
    """Return why something failed; asyncio's own words for a failed connection name only the address."""
    if isinstance(error, OSError) and (error.errno or 0) > 0:
        return os.strerror(error.errno or 0)
    return getattr(error, "strerror", None) or str(error)


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to `host:port`; IPv6 addresses are in brackets."""
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host.strip("[]"), int(port))


@dataclass(slots=True)
class ChildCommand:
    """A command that lasts until it is ended, with its children: it has its own process group.

    `what` names it in messages; `output`: whether its standard output is read.
    """

    what: str
    arguments: Sequence[str]
    output: bool = False
    process: asyncio.subprocess.Process | None = None
    _said: bytearray = field(default_factory=bytearray)
    _listener: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it, or raise UnavailableError."""
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if self.output else asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is handled here: the children are ended in order
            )
        except (OSError, ValueError) as error:
            raise UnavailableError(f"{self.what}: cannot run {_shown(self.arguments)}: {why_of(error)}") from error
        self._listener = asyncio.create_task(self._listen(self.process))

    @property
    def ended(self) -> str:
        """How it ended, with its last line of standard error; "" while it runs."""
        if self.process is None or self.process.returncode is None:
            return ""
        last = bytes(self._said).decode(errors="replace").strip().rpartition("\n")[2]
        said = f": {last}" if last else ""
        return f"{_shown(self.arguments)} ended with status {self.process.returncode}{said}"

    async def wait(self) -> int:
        """Wait for its end; return its status."""
        assert self.process is not None  # noqa: S101 - for the type checker: only started commands are ended
        status = await self.process.wait()
        if self._listener is not None:  # what a child of it holds open is not waited for
            await asyncio.wait([self._listener], timeout=0.2)
        return status

    async def end(self) -> None:
        """End it and its children, the hard way if need be."""
        if self.process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), _END_S)
                break
        if self._listener is not None:
            self._listener.cancel()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None  # noqa: S101 - for the type checker: started with a pipe for it
        while some := await process.stderr.read(1 << 12):
            self._said += some
            del self._said[:-_KEPT_BYTES]


class Stressors:
    """The running stressors; `stop` also stops those whose start failed.

    `deadline_s`: a command or a control line that takes longer has failed.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._running: dict[str, tuple[Stressor, ChildCommand | None]] = {}

    async def start(self, stressors: Sequence[Stressor]) -> None:
        """Start all of them; UnavailableError says which one did not start, and why."""
        for stressor in stressors:
            lasting = ChildCommand(f"stressor '{stressor.name}'", stressor.run) if stressor.run else None
            self._running[stressor.name] = (stressor, lasting)
            if lasting is not None:
                await lasting.start()
            elif stressor.start:
                await self._command(stressor, stressor.start)
            else:
                await self._control(stressor, stressor.on)

    def check(self) -> None:
        """Raise UnavailableError where a lasting stressor has ended by itself."""
        for name, (_, lasting) in self._running.items():
            if lasting is not None and lasting.ended:
                raise UnavailableError(f"stressor '{name}' ended before its phase did: {lasting.ended}")

    async def stop(self) -> None:
        """Stop all of them, then raise UnavailableError for those that could not be stopped."""
        problems: list[str] = []
        for stressor, lasting in list(self._running.values()):
            try:
                if lasting is not None:
                    await lasting.end()
                if stressor.control:
                    await self._control(stressor, stressor.off)
                elif stressor.stop:
                    await self._command(stressor, stressor.stop)
            except UnavailableError as error:
                problems.append(str(error))
            del self._running[stressor.name]
        if problems:
            raise UnavailableError(f"{'; '.join(problems)}; stop what may still run there by hand")

    async def _command(self, stressor: Stressor, arguments: Sequence[str]) -> None:
        """Run a command; it must return with status 0."""
        command = ChildCommand(f"stressor '{stressor.name}'", arguments)
        await command.start()
        try:
            status = await asyncio.wait_for(command.wait(), self._deadline_s)
        except TimeoutError:
            why = f"took more than {self._deadline_s:g} s; a command that lasts belongs in `run`"
            raise UnavailableError(f"{command.what}: {_shown(arguments)} {why}") from None
        finally:
            # Its background processes are what it was started for; only the command itself is ended.
            if command.process is not None and command.process.returncode is None:
                await command.end()
        if status != 0:
            raise UnavailableError(f"{command.what}: {command.ended}")

    async def _control(self, stressor: Stressor, line: str) -> None:
        """Send a control line; the answer must begin with "ok"."""
        where = f"stressor '{stressor.name}': '{line}' to {stressor.control}"
        try:
            async with asyncio.timeout(self._deadline_s):
                reader, writer = await connect(stressor.control)
                with closing(writer):
                    writer.write(f"{line}\n".encode())
                    answer = (await reader.readline()).decode(errors="replace").strip()
        except TimeoutError:
            raise UnavailableError(f"{where}: no answer within {self._deadline_s:g} s") from None
        except (OSError, ValueError) as error:
            raise UnavailableError(f"{where}: {why_of(error)}") from error
        if not answer.startswith("ok"):
            raise UnavailableError(f"{where}: answered '{answer}' instead of 'ok'")
