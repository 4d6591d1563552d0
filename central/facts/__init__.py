"""What VMs and hosts are and were: size, owner, place, devices, each version with its time.

In: facts that hosts report, from the journal. Out: versions at a time and VMs by a part of a text, for `central.api`,
`central.upgrades` and `central.placement`, which are next.
"""
