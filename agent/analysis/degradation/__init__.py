"""Fitted models of degradation, evaluated. Pure.

In: features relative to the baseline. Out: how much slower a VM is, with an interval.
Next: `agent.detection`.
"""
