"""A synthetic hypervisor: scenario file, contention model, source, and whole simulated days."""
