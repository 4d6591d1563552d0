"""VMs that libvirt does not manage: Proxmox' and any other QEMU's.

In: command lines, QMP sockets, tap devices. Out: samples of source `qemu`, and identities for the inventory.
Next: `agent.sampling`.
"""
