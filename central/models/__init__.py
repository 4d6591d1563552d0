"""Pure algorithms over a whole fleet.

In: numpy columns. Out: dataclasses. No I/O, no clocks.
Next: `central.build`, `central.placement`, `central.runtimes`, `central.upgrades`.
"""
