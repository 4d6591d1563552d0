"""Cache occupancy and memory bandwidth of each VM from the kernel's resctrl (Documentation/filesystems/resctrl.rst)."""
