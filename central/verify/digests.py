"""What `whitepanda lake verify` says of digests: of days' states, and how much of a lake has none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from central.build.state_cache import check_state, state_folders
from central.coefficients.versions import VersionStore
from central.lake.segments import Lake, LakeError
from central.roll_ups.store import SlotStore
from central.verify.checks import slot_lengths

__all__ = ["not_covered", "state_problems"]


def state_problems(lake: Lake) -> Iterator[str]:
    """Yield a line per damaged state of a day. Where the lake is no folder, states are elsewhere and not looked at.

    Raises:
        OSError: the lake cannot be listed.

    """
    if not lake.is_folder:
        return
    for folder in state_folders(lake.root / "state"):
        try:
            check_state(folder)
        except LakeError as error:
            if folder.is_dir():  # else a builder has deleted it meanwhile
                yield str(error)
        except OSError as error:
            yield f"{folder.relative_to(lake.root)}: cannot be read: {error.strerror}"


def not_covered(lake: Lake) -> dict[str, int]:
    """Count the files that have no digest because an older release wrote them. What cannot be read is not counted.

    Returns:
        Files by what they are of: segments, slots, versions, states (none: without a digest they are damaged).

    Raises:
        OSError: the lake cannot be listed.

    """
    counts = dict.fromkeys(("segments", "slots", "versions", "states"), 0)
    for segment in lake.segments():
        with contextlib.suppress(LakeError, OSError):
            counts["segments"] += not segment.has_seal
    for length in slot_lengths(lake):
        with contextlib.suppress(LakeError, OSError):
            for manifest in SlotStore(lake, round(length * 1e9)).manifests().values():
                digests = [
                    each for part in manifest.parts for each in (part.slots_sha256, part.batches_sha256)
                ]
                counts["slots"] += (not manifest.seal) + digests.count("")
    versions = VersionStore(lake.objects)
    for number in versions.numbers():
        with contextlib.suppress(LakeError, OSError, msgspec.MsgspecError):
            found = versions.manifest(number)
            counts["versions"] += (not found.seal) + 2 - len(found.digests)
    return counts
