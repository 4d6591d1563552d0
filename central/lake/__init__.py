"""Immutable Parquet segments by day, in a folder or an object store.

In: flushes of the journal. Out: the view that counts a batch once; whole objects, checksums, the builder's lease.
Next: `central.roll_ups`, `central.build`.
"""
