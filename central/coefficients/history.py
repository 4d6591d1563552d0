"""A job's coefficient over time: its value in every version that is kept."""

import contextlib
import threading
from collections import OrderedDict

import msgspec
import pyarrow as pa

from central.coefficients.versions import VersionStore
from central.lake.errors import LakeError
from whitepanda.v1 import fleet_pb2

_KEPT_JOBS = 200


class CoefficientHistory:
    """Reads versions, each once per job: they never change. Safe in threads."""

    def __init__(self, versions: VersionStore) -> None:
        self._versions = versions
        self._lock = threading.Lock()
        self._known: OrderedDict[str, dict[int, fleet_pb2.CoefficientAt | None]] = OrderedDict()

    def of(self, job: str) -> list[fleet_pb2.CoefficientAt]:
        """Return the job's coefficients, oldest first, without versions that lack it or are damaged; raises OSError."""
        with self._lock:
            before = self._known.pop(job, {})
            now: dict[int, fleet_pb2.CoefficientAt | None] = {}
            for number in self._versions.numbers():
                with contextlib.suppress(OSError):  # deleted meanwhile, or the store does not answer now: next time
                    now[number] = before[number] if number in before else self._read(number, job)
            self._known[job] = now
            if len(self._known) > _KEPT_JOBS:
                self._known.popitem(last=False)
        return [found for found in now.values() if found is not None]

    def _read(self, number: int, job: str) -> fleet_pb2.CoefficientAt | None:
        try:
            return self._versions.coefficient(number, job)
        except (LakeError, pa.ArrowException, msgspec.MsgspecError, KeyError):
            return None  # damaged: the builder warns
