"""Where to put jobs so that they slow each other down least: D-Factor.

In: loading vectors of jobs, and the hosts. Out: hosts ranked for a new VM, schedules.
Next: `central.cli`, `central.api`.
"""
