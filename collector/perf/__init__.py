"""Hardware counters by perf_event_open, without a library.

In: the kernel's event tables, and the VMs' threads or control groups. Out: samples of source `perf`.
Next: `agent.sampling`.
"""
