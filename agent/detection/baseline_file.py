"""Learnt baselines on disk, kept over restarts of the agent: JSON, written atomically, readable by the agent only."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from whitepanda.common import log
from whitepanda.common.files import durable

_FORMAT = 1
_log = log.get("cloud_white")


class _Saved(msgspec.Struct, frozen=True):
    format: int
    detector: str
    saved_unix_ns: int
    state: dict[str, Any]


class BaselineFile:
    """The file of one detector's baselines, which are of no use to another detector. Its folder is made on demand."""

    def __init__(self, path: Path, detector: str) -> None:
        self._path = path
        self._detector = detector

    def read(self) -> dict[str, Any] | None:
        """Return what was saved; None where nothing can be used. A damaged file is logged and set aside."""
        try:
            held = msgspec.json.decode(self._path.read_bytes(), type=_Saved)
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("cannot read the baselines, learning from scratch", path=str(self._path), error=error.strerror)
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.set_aside(str(error))
            return None
        if held.format != _FORMAT:
            self.set_aside(f"format {held.format}, this agent knows {_FORMAT}")
            return None
        if held.detector != self._detector:
            _log.warning(
                "the saved baselines are from another detector: learning from scratch and overwriting them",
                path=str(self._path),
                learnt_by=held.detector,
                detector=self._detector,
            )
            return None
        return held.state

    def set_aside(self, why: str) -> None:
        """Keep an unusable file under another name, and log it."""
        aside = self._path.with_name(self._path.name + ".damaged")
        with contextlib.suppress(OSError):
            self._path.replace(aside)
        _log.warning("damaged baselines, learning from scratch", path=str(aside), error=why)

    def write(self, state: Mapping[str, Any], now_unix_ns: int) -> None:
        """Write it, synced to disk; after an OSError what was there before still is."""
        data = msgspec.json.encode(_Saved(_FORMAT, self._detector, now_unix_ns, dict(state)))
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with durable.replacing(self._path, mode=0o600) as file:  # it names the VMs of this host
            file.write(data)
