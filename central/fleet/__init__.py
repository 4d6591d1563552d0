"""Decisions about a fleet with WSMeter: files, the lake, drawing of machines, plots."""
