"""Job statistics and coefficients from the lake.

In: slots of each day. Out: a day's state, which merges exactly, and a version made of all states. DuckDB or Spark.
Next: `central.coefficients`.
"""
