"""What a frame of the history holds, and its form in bytes.

The first frame of a file of ticks is whole: the host's status and every VM, as the local API shows them. Each frame has
the rates of all VMs, and those VMs again whose verdict, name or limits have changed.
"""

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from collector.base import Reason

_WIDTH = 4


class TickFrame(msgspec.Struct, array_like=True, frozen=True):
    """The host at one tick; None: as in the frame before it.

    `values`: of `pack`, a row per VM of `uuids`: its metrics in their order, and its slow-down with its two ends.
    `vms`: `VmSummary`, without metrics if the frame before has them; `decision`: `HostDecision`; `explanations`:
    `VmExplanation`, of VMs that suffer or inflict; `host`: the host's metrics, likewise; `status`: `HostStatus`.
    """

    values: bytes
    host: bytes
    uuids: list[str] | None = None
    vms: list[bytes] = []
    decision: bytes | None = None
    explanations: list[bytes] = []
    status: bytes | None = None
    triggered: bool = False
    detector: str = ""
    tick_ms: int = 1000


class WindowFrame(msgspec.Struct, array_like=True, frozen=True):
    """The windows that ended together: a `CpiBatch` as in the spool, with the reason of each value that is not known.

    `status`: `HostStatus`; `vms`: `VmSummary` of those that suffer or inflict; `decision`: `HostDecision`, or empty.
    `longest_ms`: the longest window of this host: a VM that is not in the batch counts for so long.
    `explanations`: `VmExplanation` of VMs that suffer or inflict, of each at least every two minutes, with no more of
    the VM than UUID and verdict.
    """

    batch: bytes
    status: bytes
    vms: list[bytes] = []
    decision: bytes = b""
    triggered: bool = False
    window_ms: int = 10_000
    longest_ms: int = 10_000
    explanations: list[bytes] = []


encode = msgspec.msgpack.encode
tick_frame = msgspec.msgpack.Decoder(TickFrame).decode
window_frame = msgspec.msgpack.Decoder(WindowFrame).decode


def pack(rows: Sequence[Sequence[Any]]) -> bytes:
    """Return rows of numbers or reasons as float32, column by column; a reason is -1 less its number.

    Bytes of one significance follow each other: deflate finds them alike.
    """
    columns = chain.from_iterable(zip(*rows, strict=True))
    flat = [-1.0 - value if value.__class__ is Reason else value for value in columns]
    data = array("f", flat).tobytes()
    return b"".join(data[at::_WIDTH] for at in range(_WIDTH))


def unpack(data: bytes, rows: int) -> list[tuple[float, ...]]:
    """Return the rows again. ValueError: they are not so many."""
    if not rows:
        return []
    count, rest = divmod(len(data), _WIDTH)
    if rest or count % rows:
        raise ValueError(f"{len(data)} bytes are not values of {rows} VMs")
    mixed = bytearray(len(data))
    for at in range(_WIDTH):
        mixed[at::_WIDTH] = data[at * count : (at + 1) * count]
    flat = array("f", bytes(mixed))
    return [tuple(flat[row::rows]) for row in range(rows)]
