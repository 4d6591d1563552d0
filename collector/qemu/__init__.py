"""VMs that libvirt does not manage: Proxmox' and any other QEMU's, by command line, QMP and tap devices."""
