"""Methods on traces: fits and evaluation (PANDA, section 5.2).

In: rows of a trace. Out: coefficients, and the ranks that each method gives to true antagonists.
Next: `central.cli`.
"""
