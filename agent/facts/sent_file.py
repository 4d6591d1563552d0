"""Which VMs central was sent, on disk: those that go while the agent is away are reported when it is back."""

import json
from collections.abc import Sequence
from pathlib import Path

_NAME = "facts-sent.json"
_MAX_VMS = 100_000
_MAX_BYTES = 16 << 20


class SentFile:
    """A JSON list of UUIDs. Methods block; one at a time."""

    def __init__(self, state_dir: str) -> None:
        self._path = Path(state_dir) / _NAME
        self._saved: list[str] = []

    def load(self) -> list[str]:
        """Return the VMs that the last agent had sent; none where the file is missing or no such list."""
        try:
            with self._path.open("rb") as file:
                found = json.loads(file.read(_MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return []
        if not isinstance(found, list) or not all(isinstance(vm, str) for vm in found):
            return []
        self._saved = found[:_MAX_VMS]
        return self._saved

    def save(self, vms: Sequence[str]) -> None:
        """Replace the list if it is another one. Raises OSError."""
        if list(vms) == self._saved:
            return
        new = self._path.with_suffix(".new")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(list(vms)), encoding="utf-8")
        new.replace(self._path)
        self._saved = list(vms)
