"""Public cluster traces (Google, 2019).

In: Parquet and CSV files. Out: checked rows as numpy columns, each refused row counted by its reason.
Next: `central.traces`, `agent.recording`.
"""
