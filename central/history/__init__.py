"""The fleet's memory, asked: series of metrics of any VMs over any time, and the VMs that lead by a metric.

In: slots for long times, windows for short ones and for what is not rolled up yet. Out: steps of min, mean, max.
Next: `central.api.history`.
"""
