"""A synthetic hypervisor.

In: a scenario file, or a study's parameters. Out: samples of source `simulated`, and the truth behind them.
Next: `agent.sampling`.
"""
