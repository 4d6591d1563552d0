"""The calibration campaign.

In: a plan with a served VM, its load and stressors. Out: a RUNS file.
Next: `central.degradation`.
"""
