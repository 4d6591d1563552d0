"""A real terminal (tmux), typed into and looked at."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest


class Terminal:
    """A terminal of tmux's, with a shell in it.

    Args:
        folder: of its socket.
        width: in columns.
        height: in lines.
        inside: what a command begins with to be run elsewhere, such as in a machine's namespaces.

    """

    def __init__(self, folder: Path, width: int = 80, height: int = 24, inside: Sequence[str] = ()) -> None:
        self._tmux = (*inside, "tmux", "-S", str(folder / "tmux.sock"), "-f", "/dev/null")
        environment = {
            **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TMUX")},
            "PS1": "$ ",
            "LC_ALL": "C.UTF-8",
        }
        size = ("-x", str(width), "-y", str(height))
        subprocess.run([*self._tmux, "new-session", "-d", *size, "/bin/sh"], check=True, env=environment)

    def ask(self, *arguments: str) -> str:
        return subprocess.run([*self._tmux, *arguments], check=True, capture_output=True, text=True).stdout

    def type(self, *keys: str) -> None:
        self.ask("send-keys", *keys)

    def screen(self, *options: str) -> list[str]:
        return self.ask("capture-pane", "-p", *options).splitlines()

    def state(self) -> str:
        return self.ask(
            "display-message", "-p", "#{alternate_on} #{cursor_flag} #{mouse_any_flag} #{keypad_flag}"
        ).strip()

    def until(self, is_seen: Callable[[list[str]], object]) -> list[str]:
        for _ in range(300):
            lines = self.screen()
            if is_seen(lines):
                return lines
            time.sleep(0.1)
        pytest.fail("not seen:\n" + "\n".join(self.screen()))

    def close(self) -> None:
        self.ask("kill-server")


def has(*texts: str) -> Callable[[list[str]], bool]:
    return lambda lines: all(any(text in line for line in lines) for text in texts)
