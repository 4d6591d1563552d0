"""A synthetic hypervisor.

In: a scenario file. Out: samples of source `simulated`, and the truth behind them.
Next: `agent.sampling`.
"""
