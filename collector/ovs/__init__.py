"""Network counters of the VMs' ports on Open vSwitch."""
