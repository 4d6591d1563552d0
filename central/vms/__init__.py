"""The VMs of the fleet, found by name, UUID, project, job or host, without a question to the lake.

In: the VMs that ran lately, open incidents, names of VMs that are gone. Out: pages of a sorted list, hits of a search.
Next: `central.api.vms`.
"""
