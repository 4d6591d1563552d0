"""CPU time, run-queue wait and storage bytes from /proc.

In: /proc of the VMs' processes and threads. Out: samples of source `procfs`.
Next: `agent.sampling`, which makes them ratios, such as the run-queue wait.
"""
