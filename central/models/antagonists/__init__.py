"""Who hurts others: PANDA, CPI2, Proctor, and whitepanda's estimator. Pure.

In: task slots as columns. Out: job statistics, coefficients, scores of suspects.
Next: `central.build`, `central.traces`.
"""
