"""Figures: PNG files (matplotlib, in the extra `train`), and bars for terminals.

In: numbers. Out: files and text.
Next: `central.cli`.
"""
