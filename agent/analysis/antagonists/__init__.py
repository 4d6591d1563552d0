"""PANDA on one host, and the live trigger. Pure.

In: CPI windows and coefficients. Out: normalised CPI, contention, ranked suspects.
Next: `agent.antagonists`.
"""
