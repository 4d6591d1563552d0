"""Pressure, throttling and memory of the VMs' control groups.

In: the cgroup file systems, v1 and v2. Out: samples of source `cgroup`, and which group is which VM's.
Next: `agent.sampling`.
"""
