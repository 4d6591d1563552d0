"""Is the lake whole, and how much is in it.

In: segments, slots, states and versions, with their manifests and checksums. Out: one line per fault.
Next: `central.cli`.
"""
