"""Cache occupancy and memory bandwidth from the kernel's resctrl (Documentation/filesystems/resctrl.rst).

In: /sys/fs/resctrl, one monitoring group per VM. Out: samples of source `resctrl`.
Next: `agent.sampling`.
"""
