"""Windows summed up to slots, and the lake's maintenance.

In: the lake's segments. Out: slots by day; few large segments of a finished day; retention.
Next: `central.build`.
"""
