"""The host's sources, one room per source. No analysis.

In: /proc, cgroups, perf, resctrl, libvirt, QEMU, Open vSwitch. Out: samples with raw cumulative counters (`base`).
`registry` has one row per source.
Next: `agent.sampling`.
"""
