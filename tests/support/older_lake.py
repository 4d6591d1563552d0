"""A lake as releases before digests left it."""

from __future__ import annotations

import json

import pyarrow.parquet as pq

from central.lake.segments import Lake

__all__ = ["no_digests"]

_OURS = ("slots_sha256", "batches_sha256")


def no_digests(lake: Lake) -> None:
    """Take seals and digests out of all that a lake in a folder has; the rest stays as it is, damage included."""
    for segment in lake.all_segments():
        table = pq.read_table(segment.path, partitioning=None)
        kept = {b"whitepanda.schema": (table.schema.metadata or {})[b"whitepanda.schema"]}
        pq.write_table(table.replace_schema_metadata(kept), segment.path, compression="zstd")
    for path in [*lake.root.glob("slots/*/*/*.json"), *lake.root.glob("versions/*/manifest.json")]:
        content = json.loads(path.read_text())
        for name in ("seal", "digests"):
            content.pop(name, None)
        for part in content.get("parts", ()):
            for name in _OURS:
                part.pop(name, None)
        path.write_text(json.dumps(content))
    for path in lake.root.glob("state/*/*/*/digests.json"):
        path.unlink()
