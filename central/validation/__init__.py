"""What a batch says, checked.

In: a message's bytes. Out: rows for the lake, events, reports; what is refused, counted by its reason.
Next: `central.journal`.
"""
