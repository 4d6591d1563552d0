"""From samples to rates and windows, on the tick's schedule.

In: each source's latest sample. Out: the table of VMs with their rates, and CPI windows.
Next: `agent.detection`, `agent.uplink`.
"""
