"""Degradation models, fitted.

In: RUNS files of campaigns. Out: the file that `agent.analysis.degradation` evaluates, chosen by held-out error.
Next: `agent.detection`.
"""
