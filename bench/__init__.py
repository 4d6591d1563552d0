"""Benchmarks and studies that print ratios; a folder per study.

In: options; simulated hosts, public data. Out: tables, and pages of docs/studies.
Run one as a module: `python -m bench.agent_cost.tick`.
"""
