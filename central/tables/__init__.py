"""People's CSV and Parquet files, read.

In: a file. Out: its columns, checked; a fault is one line with the row and the value.
Next: `central.placement`, `central.runtimes`, `central.upgrades`.
"""
