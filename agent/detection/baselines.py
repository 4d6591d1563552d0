"""Learnt baselines on disk, over restarts of the agent. JSON; a write is whole or not at all, and only ours to read."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from whitepanda.common import log
from whitepanda.common.files import durable

_FORMAT = 1
_log = log.get("cloud_white")


class _Held(msgspec.Struct, frozen=True):
    format: int
    detector: str
    saved_unix_ns: int
    state: dict[str, Any]


class BaselineFile:
    """The file of one detector's baselines.

    Args:
        path: the file; its folder is made when it is written.
        detector: what one detector has learnt is nothing to another.

    """

    def __init__(self, path: Path, detector: str) -> None:
        self._path = path
        self._detector = detector

    def read(self) -> dict[str, Any] | None:
        """Return what was saved; None where there is nothing to go on with. A damaged file is told of and set aside."""
        try:
            held = msgspec.json.decode(self._path.read_bytes(), type=_Held)
        except FileNotFoundError:
            return None
        except OSError as error:
            told = "cannot read the baselines, learning anew"
            _log.warning(told, path=str(self._path), error=error.strerror)
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.set_aside(str(error))
            return None
        if held.format != _FORMAT:
            self.set_aside(f"format {held.format}, this agent knows {_FORMAT}")
            return None
        if held.detector != self._detector:
            _log.warning(
                "the baselines are another detector's and say nothing to this one: learning anew, over them",
                path=str(self._path),
                learnt_by=held.detector,
                detector=self._detector,
            )
            return None
        return held.state

    def set_aside(self, why: str) -> None:
        """Keep a file that is of no use under another name, for whoever wants to know, and say so."""
        aside = self._path.with_name(self._path.name + ".damaged")
        with contextlib.suppress(OSError):
            self._path.replace(aside)
        _log.warning("damaged baselines, learning anew", path=str(aside), error=why)

    def write(self, state: Mapping[str, Any], now_unix_ns: int) -> None:
        """Write it; waits for the disk.

        Raises:
            OSError: the folder cannot be written; what was there before still is.

        """
        data = msgspec.json.encode(_Held(_FORMAT, self._detector, now_unix_ns, dict(state)))
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with durable.replacing(self._path, mode=0o600) as file:  # they tell which VMs run here
            file.write(data)
