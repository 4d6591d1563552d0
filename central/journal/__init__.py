"""Every batch on disk before it is acknowledged (SQLite, group commit).

In: checked batches. Out: flushes into the lake's segments, each repeatable after a kill.
Next: `central.lake`, `central.incidents`.
"""
