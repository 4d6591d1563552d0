"""What VMs and the host are: size, owner, place, devices; sent to central when it changes.

In: the VM table of `agent.sampling`, and files of the kernel. Out: messages for `agent.uplink`, which are next.
"""
