"""Sees to it that the live view ends: on a signal, and where its terminal has gone.

textual hands what it draws to a thread that writes it. A terminal that has gone, or takes nothing more, ends or holds
that thread; then the view waits for it forever, and no signal that the view itself is to handle gets through.
"""

import os
import select
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_GRACE_S = 8.0  # an agent's answer is waited for 6 s, and then the terminal is set as it was
_GRACE_GONE_S = 2.0  # no terminal is left to be set as it was


class Ending:
    """While entered: a signal, or the end of the terminal, ends the view; first it is asked, then the process leaves.

    `ask` is called in another thread, `leave` after `grace_s` or at a second signal; after `grace_gone_s` where the
    terminal, known by its file descriptors, has gone.
    """

    def __init__(
        self,
        ask: Callable[[], object],
        terminal: Sequence[int],
        *,
        leave: Callable[[int], object] = os._exit,
        grace_s: float = _GRACE_S,
        grace_gone_s: float = _GRACE_GONE_S,
    ) -> None:
        self._ask = ask
        self._terminal = tuple(terminal)
        self._leave = leave
        self._grace_s = grace_s
        self._grace_gone_s = grace_gone_s
        #: 128 and the number of the signal that ended the view; a terminal that has gone is SIGHUP. 0: nothing did.
        self.exit_code = 0

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        self._thread = threading.Thread(target=self._watch, name="top-ending", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._write)  # which the thread sees as the end
        self._thread.join()
        os.close(self._read)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Tell the thread: Python runs this in the main thread also while that waits for a lock."""
        os.write(self._write, bytes((number,)))

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        for terminal in self._terminal:
            poll.register(terminal, 0)  # hanging up is reported unasked; what is typed is textual's
        ready = [file for file, _ in poll.poll()]
        number, grace_s = int(signal.SIGHUP), self._grace_gone_s
        if self._read in ready:
            sent = os.read(self._read, 1)
            if not sent:
                return
            number, grace_s = sent[0], self._grace_s
        self.exit_code = 128 + number
        self._ask()
        until_sent = select.poll()
        until_sent.register(self._read, select.POLLIN)
        if until_sent.poll(1000 * grace_s) and not os.read(self._read, 1):
            return
        self._leave(self.exit_code)
