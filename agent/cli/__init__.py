"""The host's commands; one file each. They need the light base only.

In: options. Out: text, or JSON by `--json`.
Next: the terminal.
"""
