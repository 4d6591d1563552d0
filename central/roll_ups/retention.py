"""Old days' samples and slots are deleted, by `lake.raw_days` and `lake.slot_days`."""

from datetime import date, timedelta

from central.lake.deletion_notes import note_deletion
from central.lake.errors import DamagedError
from central.lake.segments import Lake, Segment
from central.roll_ups.store import SlotManifest, SlotStore


def drop_samples(
    lake: Lake, manifests: dict[date, SlotManifest], *, raw_days: int, build_days: int | None = None
) -> int:
    """Delete the samples of days that are `raw_days` or more older than the newest; slots and versions stay.

    What has not been rolled up to slots stays too. So do days with machines that the roll-up left out, as long as a
    build may take them: `build_days` back from the newest, or always (None). The slots that replace samples are checked
    first. Within a day the later rolls go first and a compacted segment after its sources, so that a kill leaves no
    segment that stands for a deleted one, or the other way round. Returns how many were deleted.

    DamagedError: a day's slots are not what was written; nothing of that day is deleted, all of the others. OSError:
    the lake cannot be read or written.
    """
    found = lake.all_segments()
    days = {*manifests, *(segment.day for segment in found)}
    if not days:
        return 0
    newest = max(days)
    until = newest - timedelta(days=raw_days)

    def may_go(segment: Segment) -> bool:
        slots = manifests.get(segment.day)
        if slots is None or segment.day > until or segment.last > slots.through.get(segment.origin, -1):
            return False
        is_unused = build_days is not None and segment.day <= newest - timedelta(days=build_days)
        return is_unused or not slots.machines_left_out

    gone = [segment for segment in found if may_go(segment)]
    damaged: dict[date, DamagedError] = {}
    for day in sorted({segment.day for segment in gone}):
        slots = SlotStore(lake, round(manifests[day].slot_s * 1e9))
        try:
            for part in manifests[day].parts:
                slots.check(part)
        except DamagedError as error:
            damaged[day] = error
    gone = [segment for segment in gone if segment.day not in damaged]
    if gone or (manifests and min(manifests) <= until):
        note_deletion(lake, "samples", until)
    for segment in sorted(gone, key=lambda each: (each.day, each.last - each.first, -each.last)):
        lake.objects.remove(segment.key)
    if damaged:
        raise damaged[min(damaged)]
    return len(gone)


def drop_slots(lake: Lake, slots: SlotStore, *, slot_days: int) -> int:
    """Delete the slots of days that are `slot_days` or more older than the newest; return how many days.

    Days that have samples left stay: these would be rolled up again.
    """
    manifests, with_samples = slots.manifests([]), set(lake.days())  # a damaged one's day stays
    days = {*manifests, *with_samples}
    if not days:
        return 0
    until = max(days) - timedelta(days=slot_days)
    gone = [day for day in manifests if day <= until and day not in with_samples]
    if gone:
        note_deletion(lake, "slots", until)
    for day in gone:
        slots.remove(day)
    return len(gone)
