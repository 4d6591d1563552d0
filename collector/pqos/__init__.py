"""Cache occupancy and memory bandwidth from Intel's libpqos.

In: the library, on hosts without resctrl. Out: samples of source `pqos`, as those of `resctrl`.
Next: `agent.sampling`.
"""
