"""Commands that need the extra `central`; one file each.

In: options. Out: text, or JSON by `--json`.
Next: the terminal.
"""
