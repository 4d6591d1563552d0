"""The daemon on a hypervisor: cadence, join per VM, local analysis, uplink, local API, CLI."""
