"""The VMs on this host.

In: libvirt's status files, QEMU processes, NUMA and cache topology. Out: identities of VMs, for every source.
Next: the rooms of the sources.
"""
