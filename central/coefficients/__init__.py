"""Versions of statistics and coefficients.

In: what a build found. Out: immutable numbered versions, pushed to the hosts that run those jobs.
Next: `agent.antagonists`.
"""
