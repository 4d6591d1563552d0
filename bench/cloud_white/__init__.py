"""Cloud White's evaluation on the simulated hypervisor (docs/studies/cloud-white.md)."""
