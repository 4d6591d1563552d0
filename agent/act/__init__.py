"""`whitepanda act`: carries a recommendation out within limits, and undoes it. Only this package changes a VM.

In: requests on a unix socket. Out: quotas, cpu.max and resctrl groups of VMs, and an audit log.
Next: the hypervisor.
"""
