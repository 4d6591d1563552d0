"""How long a job runs on a platform beside others: Pitot.

In: tables of measured runtimes, or the lake. Out: a fitted model, predictions and bounds.
Next: `central.placement`, `central.api`.
"""
