"""Ends the live view on a signal, and when its terminal has gone.

textual writes to the terminal in a thread. A terminal that has gone, or takes nothing more, ends or blocks that thread;
then the view waits for it forever, and handles no signals.
"""

import os
import select
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Self

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_GRACE_S = 8.0  # an agent's answer is waited for 6 s, and then the terminal is set as it was
_GRACE_GONE_S = 2.0  # no terminal is left to be set as it was


class Ending:
    """While entered: a signal, or the end of the terminal, ends the view.

    First `ask` is called, in another thread; after a grace period or at a second signal the process exits. `terminal`:
    its file descriptors.
    """

    def __init__(self, ask: Callable[[], object], terminal: Sequence[int]) -> None:
        self._ask = ask
        self._terminal = terminal
        #: 128 and the number of the signal that ended the view; a terminal that has gone is SIGHUP. 0: neither.
        self.exit_code = 0

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        self._thread = threading.Thread(target=self._watch, name="top-ending", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._write)  # which the thread sees as the end
        self._thread.join()
        os.close(self._read)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Wake the thread: Python runs this in the main thread even while that waits for a lock."""
        os.write(self._write, bytes((number,)))

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        for terminal in self._terminal:
            poll.register(terminal, 0)  # hanging up is always reported; what is typed is textual's
        ready = [file for file, _ in poll.poll()]
        number, grace_s = int(signal.SIGHUP), _GRACE_GONE_S
        if self._read in ready:
            sent = os.read(self._read, 1)
            if not sent:
                return
            number, grace_s = sent[0], _GRACE_S
        self.exit_code = 128 + number
        self._ask()
        until_sent = select.poll()
        until_sent.register(self._read, select.POLLIN)
        if until_sent.poll(1000 * grace_s) and not os.read(self._read, 1):
            return
        os._exit(self.exit_code)
