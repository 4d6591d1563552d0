"""What several commands have in common.

In: options, answers of the fleet API. Out: tables, figures' bounds, and errors that say what to do.
Next: the commands, `central.cli`.
"""
