"""The host's memory, load and pressures, beside its CPU time: psutil for memory, /proc for the rest."""

import dataclasses
import threading

import psutil

from collector.base import HostCounters
from collector.files import KeptFile, KeptFiles
from collector.proc_parse import Pressure, parse_pressure

_psutil_root = threading.Lock()


class HostTotals:
    """Adds the values that /proc/stat lacks to the host's counters. Unknown ones stay None."""

    def __init__(self, root: str, files: KeptFiles) -> None:
        self._root = root
        self._files = files
        self._open: dict[str, KeptFile] = {}

    def add_to(self, host: HostCounters) -> HostCounters:
        """Return the counters with memory, load and pressures."""
        total, available = self._memory()
        memory, io = self._pressure("memory"), self._pressure("io")
        return dataclasses.replace(
            host,
            memory_total_bytes=total,
            memory_available_bytes=available,
            load_1=self._load(),
            cpu_some_ns=self._pressure("cpu").some_ns,
            memory_some_ns=memory.some_ns,
            memory_full_ns=memory.full_ns,
            io_some_ns=io.some_ns,
            io_full_ns=io.full_ns,
        )

    def close(self) -> None:
        """Close the files; may be called twice."""
        self._files.close(*self._open.values())
        self._open.clear()

    def _memory(self) -> tuple[int | None, int | None]:
        with _psutil_root:  # psutil's root is one for the whole process
            saved = psutil.PROCFS_PATH
            psutil.PROCFS_PATH = self._root
            try:
                memory = psutil.virtual_memory()
            except (OSError, KeyError, ValueError, psutil.Error):
                return None, None
            finally:
                psutil.PROCFS_PATH = saved
        return int(memory.total), int(memory.available)

    def _load(self) -> float | None:
        try:
            return float(self._read("loadavg").split()[0])
        except (OSError, ValueError, IndexError):
            return None

    def _pressure(self, resource: str) -> Pressure:
        try:
            return parse_pressure(self._read(f"pressure/{resource}"))
        except (OSError, ValueError):  # such as EOPNOTSUPP: the kernel was started with psi=0
            return Pressure()

    def _read(self, name: str) -> bytes:
        file = self._open.get(name)
        if file is None:
            file = self._open[name] = self._files.open(f"{self._root}/{name}")
        return file.read()
