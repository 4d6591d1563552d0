"""PANDA on one host: is it contended, who suffers, whom to suspect. Pure.

In: CPI of a slot's VMs, statistics and coefficients of their jobs. Out: nCPI, mnCPI, triggers, ranked suspects.
Next: `agent.antagonists`, which keeps the slots; central evaluates traces with this code.
"""
