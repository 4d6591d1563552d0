"""The daemon on a hypervisor.

In: samples of `collector`, coefficients of central. Out: verdicts on VMs, batches to central, the local API and CLI.
A tick goes through sampling, detection, antagonists, uplink and api.
"""
