"""Network counters of the VMs' ports on Open vSwitch.

In: OVSDB and OpenFlow port statistics. Out: samples of source `ovs`.
Next: `agent.sampling`.
"""
