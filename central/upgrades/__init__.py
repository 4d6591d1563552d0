"""Did an upgrade help: WSMeter.

In: tables of jobs and instances, or the lake. Out: what to observe, a test cluster, comparisons with intervals.
Next: `central.cli`, `central.api`.
"""
