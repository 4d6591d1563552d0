"""Traces with known antagonists, in Google's form.

In: settings or a preset. Out: Parquet or CSV files, and the truth as JSON.
Next: `collector.traces`.
"""
