"""Recorded hosts, as JSON lines.

In: samples of all sources, or a recording. Out: a recording, or samples of source `recorded`.
Next: `agent.recording`, `agent.sampling`.
"""
