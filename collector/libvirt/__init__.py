"""Disk and network counters from libvirt.

In: one read-only connection with keep-alive. Out: samples of source `libvirt`, and life-cycle events.
Next: `agent.sampling`.
"""
