"""Degradation on measured runs (docs/studies/degradation-swan.md)."""
