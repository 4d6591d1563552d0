"""Pitot on real runtimes (docs/studies/pitot.md)."""
