"""Degradation on measured runs (docs/degradation-swan.md)."""
